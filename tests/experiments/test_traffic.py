"""The experiment as a whole, made small: it runs through, and writes what its help names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_quick_experiment_writes_tables_figures_and_plots(tmp_path: Path) -> None:
    figures = tmp_path / "traffic.json"
    command = [sys.executable, "-m", "experiments.traffic", "--quick", "--follow", "200"]
    command += ["--json", str(figures), "--plots", str(tmp_path / "plots")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "| RR-30 | 15 | 10 |" in ran.stdout
    assert "not possible" in ran.stdout  # punctuations on a loop
    assert len(list((tmp_path / "plots").glob("papers-*.png"))) == 3
    measured = json.loads(figures.read_text())
    for cell in measured["lines"]:
        total = {result["protocol"]: result["total"] for result in cell["results"]}
        reports = {result["protocol"]: result["messages"] for result in cell["results"]}
        assert reports["agent, batching"] * 10 < total["agent, node aggregation"]
        assert total["agent, batching in step"] <= total["agent, batching"] < total["agent, node aggregation"]
        assert total["agent, node aggregation"] < total["agent, each step"]
        assert total["agent, each step"] < total["agent, each action"]
