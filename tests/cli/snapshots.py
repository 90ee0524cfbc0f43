"""Snapshots of the command line's output; `RENEW=1 pytest tests/cli` renews them."""

from __future__ import annotations

import os
import re
from pathlib import Path

HOME = Path(__file__).parent / "snapshots"
_TIME = (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?", "TIME")
_MASKS = [
    (r"127\.0\.0\.1:\d{4,5}", "ADDRESS"),
    _TIME,
    (r"/\S+/config\.toml", "FILE"),
    (r"(version\W+)\d+\.\d+\.\w+", r"\1VERSION"),
    (r"\d+[smhd] ago", "AGO"),
    (r"\b[0-9a-f]{12}-\d+\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "ID"),
    (r'("log_id": )"[^"]*"', r'\1"ID"'),
    (r'("instance": )"[^"]*"', r'\1"ID"'),
    (r"  +", "  "),  # columns are as wide as what was masked in them
]


def masked(output: str) -> str:
    """Return output without what changes from run to run."""
    for pattern, mask in _MASKS:
        output = re.sub(pattern, mask, output)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def masked_times(output: str) -> str:
    """Return output without times, whose columns are of one width whatever the time."""
    return re.sub(_TIME[0], _TIME[1], output)


def compare(name: str, output: str, home: Path = HOME) -> None:
    """Compare output with what is committed, or commit it if `RENEW` is set."""
    file = home / f"{name}.txt"
    if os.environ.get("RENEW"):
        file.write_text(output)
    assert file.exists(), f"there is no {file}: run with RENEW=1, and read what it has written"
    assert output == file.read_text(), f"{file} differs: if that is meant, run with RENEW=1"
