"""`python -m benchmarks` measures what it names, and judges nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = [sys.executable, "-m", "benchmarks"]


def bench(file: Path, *arguments: str) -> list[str]:
    """Run benchmarks. Return the lines of their figures."""
    command = [*BENCHMARKS, "--quick", "--substreams", "30000", "--json", str(file), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    document = json.loads(file.read_text())
    assert {"machine", "python", "numpy", "grpcio", "protobuf", "substream-tracker"} <= document["machine"].keys()
    for figure in document["figures"]:
        assert figure["what"] in ran.stdout
        assert 0 < figure["min"] <= figure["median"] <= figure["max"]
        assert figure["floor"] > 0
    return [figure["what"] for figure in document["figures"]]


@pytest.mark.thorough
def test_the_core_and_the_way_of_a_notification(tmp_path: Path) -> None:
    assert bench(tmp_path / "figures.json", "--only", "core", "--only", "latency") == [
        "core, by id, 10,000 entries a report",
        "core, by id, 1,000 entries a report",
        "core, by name, 10,000 entries a report",
        "core, by name, 1,000 entries a report",
        "promise to Ended (memory), stubs, p50",
        "promise to Ended (memory), stubs, p99",
        "promise to Ended (memory), client, p50",
        "promise to Ended (memory), client, p99",
    ]


@pytest.mark.thorough
def test_one_record_of_a_journal_beside_its_storage(tmp_path: Path) -> None:
    figures = bench(tmp_path / "figures.json", "--only", "append", "--journal", "file", "--journal", "sqlite")
    assert figures == [f"append of one record ({kind}), p{p}" for kind in ("file", "sqlite") for p in (50, 99)]


@pytest.mark.thorough
def test_what_many_open_substreams_cost(tmp_path: Path) -> None:
    figures = bench(tmp_path / "figures.json", "--only", "growth")
    assert figures[0] == "opening one, 1,000 open"
    assert figures[-1] == "memory of one, 30,000 open"
    assert len(figures) == 3 * 3 + 1


@pytest.mark.slow
def test_servers_with_either_journal(tmp_path: Path) -> None:
    journals = ["--journal", "memory", "--journal", "sqlite"]
    assert len(bench(tmp_path / "figures.json", "--only", "served", *journals)) == 16


@pytest.mark.slow
def test_others_that_do_what_an_acker_does(tmp_path: Path) -> None:
    figures = bench(tmp_path / "figures.json", "--only", "peers")
    assert figures.count("served (memory), by id, 10,000 entries a report, ReportStream") == 3
    assert figures.count("core, by id, 10,000 entries a report") == 6


@pytest.mark.thorough
def test_scrapes_with_reports_beside_them() -> None:
    command = [sys.executable, "-m", "benchmarks.scrape", "--substreams", "5000", "--seconds", "1", "--turns", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    measured = [line.partition("  ")[0] for line in ran.stdout.splitlines()[1:]]
    reports = [f"a report to the job with {job} open, p{share}" for job in ("few", "many") for share in (50, 99, 99.9)]
    assert measured == ["a scrape", "a scrape's answer", *reports]


@pytest.mark.thorough
def test_what_metrics_and_tls_cost() -> None:
    command = [sys.executable, "-m", "benchmarks.protection", "--runs", "1", "--seconds", "0.3", "--rounds", "20"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    for subject in ("alone", "with metrics", "with TLS and a token"):
        assert ran.stdout.count(f"\n{subject}: ") == 4


def test_too_few_substreams_are_refused() -> None:
    ran = subprocess.run([*BENCHMARKS, "--substreams", "10"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "30,000 or more" in ran.stderr


@pytest.mark.slow
def test_a_relay_beside_none(tmp_path: Path) -> None:
    kinds = ("time of an epoch", "reports to the tracker, an epoch", "the tracker's processor time, an epoch")
    assert bench(tmp_path / "figures.json", "--only", "relay") == [
        f"relay (memory), {workers} workers: {kind}" for workers in (2, 8) for kind in kinds
    ]
