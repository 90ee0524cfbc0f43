"""The command line of the benchmarks: what is measured, and what is printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import append, core, growth, latency, peers, relay, served
from benchmarks.figures import HEADER, Figure, row
from benchmarks.journals import journal
from tracker.cli.output import print_pairs, print_table
from tracker.load.results import machine

_PARTS: Final = ("core", "growth", "served", "latency", "append", "relay", "peers")
_SIZES: Final = [10_000, 1_000]
_FEWEST: Final = 30_000  # so that each of a sender's callers has a report of the larger size


def main() -> int:
    """Measure and print."""
    arguments = _parser().parse_args()
    if arguments.compiled:
        from tracker.core.compiled import use

        use()
        os.environ["TRACKER_SERVE_COMPILED"] = "true"  # the servers' option
    described = machine()
    print_pairs(described.items())
    print()
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        for figure in _figures(arguments, Path(directory)):
            print(f"measured: {figure.what}", file=sys.stderr)
            figures.append(figure)
    print_table(HEADER, map(row, figures))
    if arguments.json is not None:
        document = {"machine": described, "figures": [figure.as_dict() for figure in figures]}
        arguments.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    bench = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure entries per second, in the core in this process and over gRPC from other processes, what "
        "opening and ending cost with few substreams open and with many, the time from a promise to the end that it "
        "brings, and what a journal takes for one record; each beside what the same costs if next to nothing is done; "
        "what a relay saves, beside the same without one; and others that do what an acker does: Storm's own, a script "
        "in Redis and a dict. It starts the servers that it needs. The figures are medians over several runs; on a "
        "machine that does other things at the same time, only the ratios tell something.",
        epilog="example: python -m benchmarks --quick --journal memory --journal sqlite",
    )
    bench.add_argument("--quick", action="store_true", help="less of everything: a minute or so")
    bench.add_argument(
        "--only", metavar="PART", choices=_PARTS, action="append", help=f"{', '.join(_PARTS)}; may be repeated"
    )
    bench.add_argument(
        "--journal",
        metavar="KIND",
        action="append",
        help="of the servers: memory, sqlite (a temporary file), redis or s3 (a server is started), file (objects in a "
        "temporary directory), redis?OPTIONS and so on, or an address; may be repeated (default: memory)",
    )
    bench.add_argument(
        "--substreams",
        metavar="NUMBER",
        type=_substreams,
        help=f"how many are open, {_FEWEST:,} or more (default: 1,000,000; quick: 100,000)",
    )
    bench.add_argument(
        "--senders", metavar="NUMBER", type=int, default=2, help="processes that report to a server (default: 2)"
    )
    bench.add_argument("--compiled", action="store_true", help="with the compiled loops of the extra `fast`")
    bench.add_argument("--json", metavar="FILE", type=Path, help="also write everything to this file")
    return bench


def _substreams(said: str) -> int:
    number = int(said)
    if number < _FEWEST:
        raise argparse.ArgumentTypeError(f"{_FEWEST:,} or more")
    return number


def _up_to(substreams: int) -> list[int]:
    """Return a thousand, ten thousand, … and in the end so many, to the thousand."""
    sizes = [1_000]
    while sizes[-1] * 10 < substreams:
        sizes.append(sizes[-1] * 10)
    return [*sizes, substreams // 1_000 * 1_000]


def _figures(arguments: argparse.Namespace, directory: Path) -> Iterator[Figure]:
    parts = arguments.only or _PARTS
    quick = arguments.quick
    substreams = arguments.substreams or (100_000 if quick else 1_000_000)
    if "core" in parts:
        yield from core.measure(substreams, _SIZES, runs=3 if quick else 7)
    if "growth" in parts:
        yield from growth.measure(_up_to(substreams), turns=20 if quick else 50)
    for number, kind in enumerate(arguments.journal or ["memory"]):
        if "served" in parts:
            plan = served.Plan(
                substreams, _SIZES, runs=2 if quick else 5, seconds=0.7 if quick else 3.0, senders=arguments.senders
            )
            with journal(kind, directory, f"served-{number}") as place:
                yield from served.measure(place, plan)
        if "peers" in parts:
            plan = served.Plan(substreams, _SIZES[:1], 2 if quick else 5, 0.7 if quick else 3.0, arguments.senders)
            with journal(kind, directory, f"peers-{number}") as place:
                yield from peers.measure(sorted({1_000, 100_000, substreams})[quick:], plan.runs, plan, place)
        if "latency" in parts:
            with journal(kind, directory, f"latency-{number}") as place:
                yield from latency.measure(place, runs=2 if quick else 5, rounds=300 if quick else 1_000)
        if "append" in parts:
            with journal(kind, directory, f"append-{number}") as place:
                yield from append.measure(place, directory, runs=2 if quick else 5, rounds=200 if quick else 500)
        if "relay" in parts:
            workers = (2, 8) if quick else (2, 8, 32)
            with journal(kind, directory, f"relay-{number}") as place:
                yield from relay.measure(
                    place, relay.Plan(workers, runs=2 if quick else 5, epochs=20 if quick else 100)
                )


if __name__ == "__main__":
    sys.exit(main())
