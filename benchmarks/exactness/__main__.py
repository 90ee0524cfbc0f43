"""What comes out of event-time windows, on several engines, held against a batch; `make exactness`.

It prints one table for each workload, and keeps the figures as JSON. Engines that are not installed are named and left
out; `make exactness-peers` installs them. That an engine's results are not exact is no failure; the exit status is 1 if
the tracker's with counts are not, and 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.exactness import faults, flights, peers, report
from benchmarks.exactness.engine import Engine, UnavailableError
from benchmarks.exactness.judge import judge
from benchmarks.exactness.queries import QUERIES
from benchmarks.exactness.tracked import Tracked
from benchmarks.exactness.watermarks import Watermark
from benchmarks.exactness.workload import Workload, make, usual
from examples.flights.progress import Progress

#: The engines by the names of the command line, on tenants that share partitions.
SHARED: Mapping[str, Callable[[], Sequence[Engine]]] = {
    "spark": lambda: [Watermark("5 minutes"), Watermark("40 minutes")],
    "ours": lambda: [Tracked(), Tracked("5 minutes")],
    "flink": lambda: [peers.flink(5, 5), peers.flink(40, 5)],
    "beam": lambda: [peers.beam(5), peers.beam(40)],
    "bytewax": lambda: [peers.bytewax(5), peers.bytewax(40)],
    "streams": lambda: [peers.streams(5), peers.streams(40)],
}
#: Those that have a watermark for each partition, with a partition for each tenant.
OWN: Mapping[str, Callable[[], Sequence[Engine]]] = {
    "ours": lambda: [Tracked()],
    "flink": lambda: [peers.flink(5, 5), peers.flink(5, None)],
    "beam": lambda: [peers.beam(5)],
    "streams": lambda: [peers.streams(5)],
}
_QUICK = 30  #: minutes of events


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    data = report.Data(given.json or (report.DATA if given.docs else report.ROOT / "artifacts" / "exactness.json"))
    progress = Progress()
    ran, exact = 0, True
    for own, table in ((False, SHARED), (True, OWN)):
        workload = make(usual(_QUICK if given.quick else given.minutes, own=own, seed=given.seed))
        engines = [(name, each) for name in given.engines for each in table.get(name, list)()]
        if given.promises:
            engines = [(name, each) for name, each in engines if name != "ours" or given.promises in each.name]
        if given.only and given.only not in ("own" if own else "shared"):
            continue
        data.workloads[workload.plan.name] = _described(workload)
        for name, engine in engines:
            lines = _measured(engine, workload, given.queries, progress)
            data.take(lines)
            ran += len(lines)
            if name == "ours" and "counts" in engine.name:
                exact &= all(each.right == each.windows and not each.wrong for each in lines)
        print(f"\n{workload.plan.name}: {_described(workload)['rows']:,} rows\n")
        print(report.text([each for each in data.lines if each.workload == workload.plan.name]), "\n")
    if given.flights:
        data.take(flights.lines(progress, data))
    if given.faults:
        data.take(faults=faults.run(given.engines, progress))
        for fault in data.faults:
            print(f"{fault.fault}: {fault.engine}: {'right' if fault.right else 'NOT RIGHT'}: {fault.found}")
    if given.docs:
        report.PAGE.write_text(report.rendered(report.PAGE.read_text(), data))
    return 2 if not (ran or given.flights or given.faults) else 0 if exact else 1


def _measured(engine: Engine, workload: Workload, queries: Sequence[str], progress: Progress) -> list[report.Line]:
    wanted = [query for query in queries if query in engine.queries]
    progress.say(f"{engine.name}: {', '.join(wanted)}")
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as directory:
        try:
            runs = engine.run(workload, wanted, Path(directory), lambda how_far: progress.show(how_far))
        except UnavailableError as error:
            progress.say(f"left out: {error}")
            return []
    rows = workload.rows
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
    parser.add_argument("--only", choices=["shared", "own"], help="one of the two layouts of partitions")
    parser.add_argument("--promises", choices=["counts", "delay"], help="of the tracker; default both")
    parser.add_argument("--minutes", type=int, default=120, help="of events; default 120")
    parser.add_argument("--seed", type=int, default=7, help="of the generator; default 7")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK} minutes of events")
    parser.add_argument(
        "--flights", action="store_true", help="also two weeks of flights, with the tracker and watermarks"
    )
    parser.add_argument("--faults", action="store_true", help="also the faults of others' bug reports")
    parser.add_argument("--json", type=Path, help="where figures are kept; default artifacts/exactness.json")
    parser.add_argument(
        "--docs", action="store_true", help="keep them in docs/exactness.json, and write docs/exactness.md"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
