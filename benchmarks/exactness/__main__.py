"""Results of event-time windows on several engines, held against a batch; `python -m benchmarks.exactness`.

The program prints one table for each workload, and keeps the figures as JSON. Engines that are not installed are named
and left out; `make exactness-peers` installs them. That an engine's results are not exact is no failure; the exit
status is 1 if the tracker's with counts are not, and 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.exactness import faults, flights, peers, report
from benchmarks.exactness.engine import Engine, Run, UnavailableError
from benchmarks.exactness.in_lake import InLake
from benchmarks.exactness.judge import judge
from benchmarks.exactness.queries import QUERIES
from benchmarks.exactness.tracked import Tracked, delayed
from benchmarks.exactness.watermarks import Watermark
from benchmarks.exactness.workload import Workload, make, usual
from examples.flights.progress import Progress

#: The engines by the names of the command line, on tenants that share partitions.
SHARED: Mapping[str, Callable[[], Sequence[Engine]]] = {
    "spark": lambda: [Watermark("5 minutes"), Watermark("40 minutes")],
    "ours": lambda: [Tracked(), Tracked(delayed("5 minutes"))],
    "lake": lambda: [InLake(), InLake(delayed("5 minutes"))],
    "flink": lambda: [peers.flink(5, 5), peers.flink(40, 5)],
    "beam": lambda: [peers.beam(5), peers.beam(40)],
    "bytewax": lambda: [peers.bytewax(5), peers.bytewax(40)],
    "streams": lambda: [peers.streams(5), peers.streams(40)],
}
#: Those that have a watermark for each partition, and the tracker, with a partition for each tenant.
OWN: Mapping[str, Callable[[], Sequence[Engine]]] = {
    "ours": lambda: [Tracked()],
    "flink": lambda: [peers.flink(5, 5), peers.flink(5, None)],
    "beam": lambda: [peers.beam(5)],
    "streams": lambda: [peers.streams(5)],
}
_QUICK = 30  #: minutes of events
#: Parts that can be run.
_PARTS: Mapping[str, str] = {
    "shared": "tenants share partitions",
    "own": "a partition for each tenant",
    "flights": "two weeks of flights",
    "faults": "the faults of others' bug reports",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    given = _parser().parse_args(arguments)
    data = report.Data(given.json or (report.DATA if given.docs else report.ROOT / "artifacts" / "exactness.json"))
    parts = [] if given.take else given.parts
    for path in given.take:
        other = report.Data(path)
        data.workloads.update(other.workloads)
        data.take(other.lines, other.faults)
    progress = Progress()
    measured: list[report.Line] = []
    for part, table in (("shared", SHARED), ("own", OWN)):
        if part in parts:
            measured += _tables(given, part, table, data, progress)
    if "flights" in parts:
        data.take(flights.lines(progress, data))
    if "faults" in parts:
        for fault in faults.run(given.engines, progress, given.faults):
            data.take(faults=[fault])
            print(f"{fault.fault}: {fault.engine}: {'right' if fault.right else 'NOT RIGHT'}: {fault.found}")
    if given.docs:
        report.PAGE.write_text(report.rendered(report.PAGE.read_text(), data))
    if not measured and {"shared", "own"} & {*parts}:
        return 2
    ours = [each for each in measured if each.engine in (Tracked().name, InLake().name)]
    return 0 if all(each.right == each.windows and not each.wrong for each in ours) else 1


def _tables(
    given: argparse.Namespace,
    part: str,
    table: Mapping[str, Callable[[], Sequence[Engine]]],
    data: report.Data,
    progress: Progress,
) -> list[report.Line]:
    """Run a part's engines, one after the other, and print its table."""
    workload = make(usual(_QUICK if given.quick else given.minutes, own=part == "own", seed=given.seed))
    queries = [query for query in given.queries if part == "shared" or query == "tumbling"]
    name = workload.plan.name
    data.workloads[name] = _described(workload)
    measured = []
    for engine in (each for chosen in given.engines for each in table.get(chosen, list)()):
        if isinstance(engine, Tracked) and given.promises and given.promises not in engine.name:
            continue
        lines = _measured(engine, workload, queries, given.results, progress)
        data.take(lines)
        measured += lines
    print(f"\n{name}: {len(workload.rows):,} rows\n")
    print(report.text([each for each in data.lines if each.workload == name]), "\n")
    return measured


def _keep(directory: Path, workload: Workload, engine: Engine, runs: Mapping[str, Run]) -> None:
    """Write down every result, a line of JSON each."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{workload.plan.name}, {engine.name}.jsonl").open("w") as file:
        for query, run in runs.items():
            file.writelines(json.dumps({"query": query, **asdict(each)}) + "\n" for each in run.emitted)


def _measured(
    engine: Engine, workload: Workload, queries: Sequence[str], results: Path | None, progress: Progress
) -> list[report.Line]:
    wanted = [query for query in queries if query in engine.queries]
    progress.say(f"{engine.name}: {', '.join(wanted)}")
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as directory:
        try:
            runs = engine.run(workload, wanted, Path(directory), lambda how_far: progress.show(how_far))
        except UnavailableError as error:
            progress.say(f"left out: {error}")
            return []
    rows = workload.rows
    if results:
        _keep(results, workload, engine, runs)
    return [
        report.line(
            workload.plan.name,
            engine.name,
            engine.configured,
            query,
            judge(QUERIES[query](rows), run.emitted, workload.steps),
            run.aside,
        )
        for query, run in runs.items()
    ]


def _described(workload: Workload) -> dict[str, int]:
    plan = workload.plan
    return {"minutes": plan.minutes, "seed": plan.seed, "rows": len(workload.rows), "steps": len(workload.steps)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter

    def names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
        def split(text: str) -> list[str]:
            chosen = text.split(",")
            if unknown := set(chosen) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
            return chosen

        return split

    parser.add_argument(
        "--engines", type=names(SHARED), default=list(SHARED), help=f"of {','.join(SHARED)}; default all"
    )
    parser.add_argument("--queries", type=names(QUERIES), default=list(QUERIES), help=f"of {','.join(QUERIES)}")
    parser.add_argument(
        "--parts", type=names(_PARTS), default=["shared", "own"], help=f"of {','.join(_PARTS)}; default shared,own"
    )
    numbered = ", ".join(f"{number} {name}" for number, name in faults.NAMES.items())
    parser.add_argument(
        "--faults", type=names(faults.NAMES), default=list(faults.NAMES), help=f"by number, of {numbered}; default all"
    )
    parser.add_argument("--promises", choices=["counts", "delay"], help="of the tracker; default both")
    parser.add_argument("--minutes", type=int, default=120, help="of events; default 120")
    parser.add_argument("--seed", type=int, default=7, help="of the generator; default 7")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK} minutes of events")
    parser.add_argument(
        "--take",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="run nothing: take in what other runs have kept",
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="also keep every result there, a line each")
    parser.add_argument("--json", type=Path, help="where figures are kept; default artifacts/exactness.json")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="keep them in docs/design/exactness.json, and write docs/design/exactness.md",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
