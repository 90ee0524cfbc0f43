"""`tracker load`: drives a tracker as many producers would, and checks every end that it announces."""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tracker.cli.output import print_pairs, print_table

if TYPE_CHECKING:
    from tracker.load.results import Result
    from tracker.load.running import Progress
    from tracker.load.scenario import Scenario
    from tracker.load.searching import Search, Step
    from tracker.load.servers import Target

_WRONG: Final = 1
_USAGE: Final = 2
_LINE_EVERY_S: Final = 10.0  # seconds between two lines if the output is not a terminal


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    load = commands.add_parser(
        "load",
        help="drive a tracker as many producers would, and check what it announces",
        description="Run a load scenario against a tracker, in a job of its own that is deleted at the end. Reports "
        "are due at moments that are planned before; latencies count from these, however late a report could leave. "
        "Every substream must be announced exactly once, with the right count, and not too early. Exit status: 0 all "
        "was right; 1 something was wrong, or the tracker refused; 2 wrong usage; 3 no tracker could be reached.",
        epilog="examples: tracker load smoke --start | tracker load churn --start --journal sqlite --plot churn.png | "
        "tracker load steady --server tracker:7654 --rate 500 | tracker load steady --start --find-rate",
    )
    load.add_argument("scenario", metavar="SCENARIO", help="a shipped one (a wrong name lists them), or a TOML file")
    where = load.add_mutually_exclusive_group(required=True)
    where.add_argument("--start", action="store_true", help="start a tracker for it, and stop it at the end")
    where.add_argument(
        "--server", metavar="HOST:PORT", help="drive the tracker at this address; no other tracker gets any traffic"
    )
    load.add_argument(
        "--journal",
        metavar="KIND",
        help="with --start: memory, sqlite (a temporary file) or sqlite:PATH (default: memory)",
    )
    load.add_argument("--rate", metavar="NUMBER", type=float, help="reports a second, instead of the scenario's")
    load.add_argument(
        "--duration", metavar="SECONDS", type=float, help="how long to measure, instead of the scenario's"
    )
    load.add_argument(
        "--find-rate",
        action="store_true",
        help="find the highest rate that is sustained: p99 within the bound, and no growing backlog",
    )
    load.add_argument(
        "--bound",
        metavar="MS",
        type=float,
        default=50.0,
        help="with --find-rate: what p99 of reports and of ends may be (default: 50)",
    )
    load.add_argument("--keep", action="store_true", help="keep the job; a job that failed is always kept")
    load.add_argument("--json", metavar="FILE", type=Path, help="also write everything to this file")
    load.add_argument("--plot", metavar="FILE", type=Path, help="also draw it, as a PNG (needs matplotlib)")
    load.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs `tracker load` and returns the exit status."""
    try:
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.load.running import FailedError
        from tracker.load.scenario import ScenarioError
        from tracker.load.servers import ServerFailedError
    except ModuleNotFoundError as missing:
        print(f"tracker load: needs {missing.name}: pip install 'substream-tracker[load]'", file=sys.stderr)
        return _USAGE

    signal.signal(signal.SIGTERM, _terminated)
    try:
        scenario = _scenario(arguments)
        with _target(arguments) as target:
            if arguments.find_rate:
                return _find_rate(arguments, scenario, target)
            return _run_once(arguments, scenario, target)
    except ScenarioError as error:
        print(f"tracker load: {error}", file=sys.stderr)
        return _USAGE
    except (FailedError, ServerFailedError) as error:
        print(f"tracker load: {error}", file=sys.stderr)
        return _WRONG


def _terminated(number: int, _frame: object) -> NoReturn:
    """Ends the command as Ctrl-C does, so that it stops the processes that it has started."""
    raise SystemExit(128 + number)


def _scenario(arguments: argparse.Namespace) -> Scenario:
    from tracker.load.scenario import ScenarioError, find, read

    fields = find(arguments.scenario)
    for name in ("rate", "duration"):
        if getattr(arguments, name) is not None:
            fields[name] = getattr(arguments, name)
    scenario = read(fields)
    if arguments.journal and not arguments.start:
        raise ScenarioError("--journal belongs to --start: give both, or neither")
    if arguments.start and scenario.failures.kill_server_every and (arguments.journal or "memory") == "memory":
        raise ScenarioError(
            "this scenario kills the tracker (failures.kill_server_every), and with the journal in memory its state "
            "would be lost: add --journal sqlite"
        )
    if arguments.plot and arguments.find_rate:
        raise ScenarioError("--plot shows one run, --find-rate makes many: give one of the two")
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        raise ScenarioError("--plot needs matplotlib: pip install 'substream-tracker[load]'")
    return scenario


@contextmanager
def _target(arguments: argparse.Namespace) -> Iterator[Target]:
    from tracker.load.servers import Remote, started

    if arguments.start:
        with started(arguments.journal or "memory") as server:
            yield server
    else:
        yield Remote(arguments.server)


def _run_once(arguments: argparse.Namespace, scenario: Scenario, target: Target) -> int:
    from tracker.load.machine import machine
    from tracker.load.running import run as run_scenario

    described = machine() | _described(arguments, scenario)
    print_pairs(described.items())
    print(flush=True)
    result = run_scenario(scenario, target, _Ticker(), arguments.keep)
    _print(scenario, result)
    if arguments.json is not None:
        _write(arguments.json, {"machine": described, "scenario": scenario.as_dict(), "result": result.as_dict()})
    if arguments.plot is not None:
        from tracker.load.plot import draw  # imported here, since only this needs matplotlib

        draw(scenario, Path(arguments.scenario).stem, result, arguments.plot)
    return 0 if result.verdict.right else _WRONG


def _find_rate(arguments: argparse.Namespace, scenario: Scenario, target: Target) -> int:
    from tracker.load.machine import machine
    from tracker.load.running import run as run_scenario
    from tracker.load.searching import find_rate

    described = machine() | _described(arguments, scenario)
    print_pairs(described.items())
    print(flush=True)

    def run_at(rate: float) -> Result:
        return run_scenario(replace(scenario, rate=rate), target, _Ticker())

    search = find_rate(run_at, scenario.rate, arguments.bound, _print_step)
    _print_search(search, arguments.bound)
    if arguments.json is not None:
        _write(arguments.json, {"machine": described, "scenario": scenario.as_dict(), "search": search.as_dict()})
    return _WRONG if search.steps[-1].result.verdict.faults or not search.rate else 0


def _described(arguments: argparse.Namespace, scenario: Scenario) -> dict[str, str]:
    where = f"started here, journal {arguments.journal or 'memory'}" if arguments.start else f"at {arguments.server}"
    return {"tracker": where, "scenario": f"{arguments.scenario}: {scenario.description}"}


class _Ticker:
    """Shows the progress: on a terminal as one line that changes, elsewhere as a line every few seconds."""

    def __init__(self) -> None:
        self._alive = sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        from tracker.load.display import line

        if self._alive:
            print(f"\r\x1b[K{line(progress)}", end="", file=sys.stderr, flush=True)
        elif progress.at >= self._next:
            self._next = progress.at + _LINE_EVERY_S
            print(line(progress), file=sys.stderr, flush=True)


def _print(scenario: Scenario, result: Result) -> None:
    from tracker.load.display import LATENCY_HEADER, latency_rows, pairs, warnings, wrongs

    if sys.stderr.isatty():
        print(file=sys.stderr)
    print_table(LATENCY_HEADER, latency_rows(result))
    print()
    print_pairs(pairs(scenario, result))
    sys.stdout.flush()
    for warning in warnings(result):
        print(f"tracker load: {warning}", file=sys.stderr)
    for wrong in wrongs(result):
        print(f"tracker load: WRONG: {wrong}", file=sys.stderr)
    if result.verdict.right:
        print("\nevery substream was announced exactly once, with the right count, and none too early")


def _print_step(step: Step) -> None:
    verdict = "sustained" if step.sustained else f"not sustained: {step.failed}"
    result = step.result
    parts = f"p99 of reports {result.reports.p99:.1f} ms, of ends {result.ends.p99:.1f} ms"
    if result.floor.count:
        parts += f", of a call that does nothing {result.floor.p99:.1f} ms"
    kept_up = "" if result.generator.kept_up else "; the generator could not keep up"
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{step.rate:,.1f} reports/s: {verdict} ({parts}{kept_up})", flush=True)


def _print_search(search: Search, bound: float) -> None:
    if not search.rate:
        why = ""
        if search.too_busy:
            took = search.steps[-1].result.floor.p99
            why = (
                f": this machine is too busy for a search: 99 % of the calls to a server that does nothing also took "
                f"up to {took:.1f} ms; try again when it is quieter, or with a higher --bound"
            )
        print(f"\nno rate was sustained{why}")
        return
    print(f"\nsustained: {search.rate:,.1f} reports/s, p99 within {bound:g} ms and no growing backlog")
    if search.by_generator:
        print("above it the generator could not keep up: the tracker may sustain more than this machine can show")


def _write(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
