"""Traffic of tracking on the network: punctuations, an agent, an agent with aggregation, batches.

    python -m experiments.traffic --json traffic.json --plots docs/images
    python -m experiments.traffic --quick

Print tables in Markdown, and progress on stderr. End with an error if the tracker made a mistake in any run.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments import cells, published, tables
from experiments.cells import Cell
from experiments.dataflow import Kind, Shape

_SIZES, _MACHINES, _PER_SUBSTREAM = (10, 30, 100), (10, 15, 20), (1, 10, 100)
_INTERVALS = [5.0, 15.0, 50.0, 100.0, 250.0, 500.0, 1000.0]


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m experiments.traffic", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2,000 elements, and published configurations only")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plots", type=Path, help="draw the plots into this directory")
    parser.add_argument(
        "--follow",
        type=int,
        default=15_000,
        metavar="MESSAGES",
        help="put about so many messages of each protocol and configuration to the tracker (default: %(default)s)",
    )
    parser.add_argument(
        "--whole", action="store_true", help="only RR-30 with 15 machines, and all of its messages to the tracker"
    )
    arguments = parser.parse_args()
    begun = time.process_time()
    elements = 2_000 if arguments.quick else published.ELEMENTS
    if arguments.whole:
        report = _whole(elements)
    else:
        report = _everything(elements, arguments.quick, arguments.follow, arguments.plots)
    seconds = time.process_time() - begun
    print(f"\n{seconds:,.0f} s of CPU, Python {platform.python_version()}, numpy {np.__version__}")
    if arguments.json:
        report |= {"elements": elements, "cpu_seconds": round(seconds), "python": platform.python_version()}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _whole(elements: int) -> dict[str, Any]:
    cell = cells.measure(Shape(elements=elements), None, relays=True)
    _show("RR-30, 15 machines, 10 elements a substream", tables.in_detail(cell))
    return {"whole": asdict(cell)}


def _everything(elements: int, quick: bool, follow: int, plots: Path | None) -> dict[str, Any]:
    grid = published.CELLS if quick else tuple(product(_SIZES, _MACHINES, _PER_SUBSTREAM))
    standard = Shape(elements=elements)
    lines = list(_measured([Shape(Kind.LINE, *cell, elements=elements) for cell in grid], follow))
    loops = list(_measured([Shape(Kind.LOOP, size, elements=elements) for size in _SIZES], follow))
    apart = list(
        _measured([Shape(kind, elements=elements, segments_apart=True) for kind in (Kind.LINE, Kind.LOOP)], follow)
    )
    waiting = list(cells.intervals(standard, _INTERVALS, follow))
    papers = published.figures(Shape())
    assert papers is not None
    bar = papers.node * elements / published.ELEMENTS

    known = [
        cell for cell in lines if (cell.shape.size, cell.shape.machines, cell.shape.per_substream) in published.CELLS
    ]
    _show("RR-30, 15 machines, 10 elements a substream", tables.in_detail(_of(lines, standard)))
    _show("Messages with notices, beside the papers'", tables.against_published(known))
    if not quick:
        _show("A tenth of the papers' messages", tables.judgement(known))
        _show("Messages with notices, all configurations", tables.against_published(lines))
    _show("MB of reports and punctuations", tables.megabytes(lines))
    _show("Mean delay in hops", tables.delays(lines))
    _show("Batching by machines and substreams", tables.linear(lines))
    _show("How long a node waits (RR-30, 15 machines, 10 elements a substream)", tables.by_interval(waiting, bar))
    _show("Loops: messages with notices", tables.against_published(loops))
    _show("Loops: mean delay in hops", tables.delays(loops))
    for cell in apart:
        _show(f"{' '.join(tables.name(cell.shape)[:1])} with a segment for each edge", tables.in_detail(cell))
    if plots:
        from experiments import plots as pictures  # matplotlib is not needed for the tables

        plots.mkdir(parents=True, exist_ok=True)
        pictures.messages(lines, plots / "papers-messages.png")
        pictures.delays(lines, plots / "papers-delays.png")
        pictures.intervals(waiting, bar, plots / "papers-intervals.png")
    return {
        "lines": [asdict(cell) for cell in lines],
        "loops": [asdict(cell) for cell in loops],
        "segments_apart": [asdict(cell) for cell in apart],
        "intervals": [asdict(result) for result in waiting],
    }


def _measured(shapes: Iterable[Shape], follow: int) -> Iterator[Cell]:
    for shape in shapes:
        begun = time.process_time()
        yield cells.measure(shape, follow, relays=shape == Shape(elements=shape.elements))
        print(f"{' / '.join(tables.name(shape))}: {time.process_time() - begun:.1f} s of CPU", file=sys.stderr)


def _of(measured: Iterable[Cell], shape: Shape) -> Cell:
    return next(cell for cell in measured if cell.shape == shape)


def _show(title: str, text: str) -> None:
    print(f"\n## {title}\n\n{text}")


if __name__ == "__main__":
    main()
