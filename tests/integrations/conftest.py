"""The packages for orchestrators are not installed where their plain parts are tested: they are taken from here."""

from __future__ import annotations

import sys
from pathlib import Path

INTEGRATIONS = Path(__file__).resolve().parents[2] / "integrations"
sys.path[:0] = [str(INTEGRATIONS / "airflow"), str(INTEGRATIONS / "dagster")]
