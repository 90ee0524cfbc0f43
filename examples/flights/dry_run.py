"""A dry run over the year of flights, to find the right promise. `make demo-replay`; neither Spark nor a tracker runs.

The history is what `replay` makes of the data: the time of a row is the scheduled departure. The data does not have
when a row reached anybody, so it arrives when its flight left, the first moment at which its delay is known; a
cancelled flight at its scheduled departure. Rows of a real source come later still.

A substream is an airport's scheduled day, as in the other demonstrations, and a query reads once in a quarter of an
hour. The page is kept as `report.html`, the history as `flights.parquet`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from examples.flights.program import ARTIFACTS
from examples.flights.replay import DataMissingError, departures
from tracker.cli.main import main as tracker

KEPT = ARTIFACTS.with_name("flights-replay")
PROMISES = [
    *(f"{kind}={delay}" for kind in ("watermark", "per-scope", "wait") for delay in ("1h", "6h", "1d")),
    "least=99%",
    "least=99.9%",
    "measured=99%",
    "measured=99.9%",
    "counts",
]


def main(artifacts: Path = KEPT, days: int = 365) -> int:
    """Write the history, and replay it. Return the exit status of `tracker replay`."""
    artifacts.mkdir(parents=True, exist_ok=True)
    history, page = artifacts / "flights.parquet", artifacts / "report.html"
    try:
        departures(days=days)[["sched_dep", "known_at", "origin"]].to_parquet(history, index=False)
    except DataMissingError as missing:
        print(f"demo: {missing}", file=sys.stderr)
        return 2
    columns = ["--time", "sched_dep", "--arrived", "known_at", "--scope", "origin"]
    options = ["--window", "1d", "--trigger", "15min", "--ahead", "none", "--html", str(page)]
    status = tracker(["replay", str(history), *columns, *options, *(f"--promise={each}" for each in PROMISES)])
    print(f"\npage: {page}")
    return status


if __name__ == "__main__":
    sys.exit(main())
