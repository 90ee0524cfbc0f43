"""`tracker load`: drives a tracker as many producers would, and checks every end that it announces."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracker.cli.declarations import WrongUsageError, command, ending_at, new_commands
from tracker.cli.options import needs
from tracker.cli.output import Form, print_json, print_line, print_pairs, print_table, progress

if TYPE_CHECKING:
    from tracker.load.results import Result
    from tracker.load.run import Progress, Search, Step
    from tracker.load.scenario import Scenario
    from tracker.load.servers import Target

commands = new_commands()
_WRONG: Final = 1


@dataclass(frozen=True)
class _Asked:
    """Settings from the command line."""

    form: Form
    scenario: str
    start: bool
    server: str | None
    journal: str | None
    rate: float | None
    duration: float | None
    find_rate: bool
    bound: float
    keep: bool
    save: Path | None
    plot: Path | None


@command(commands, "load", "tracker load churn --start --journal sqlite --plot churn.png")
def load(
    form: Form,
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="a shipped one (a wrong name lists them), or a TOML file")
    ],
    rest: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="")] = None,
    start: Annotated[bool, typer.Option("--start", help="start a tracker for it, and stop it at the end")] = False,
    server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="drive the tracker at this address; no other tracker gets any traffic"),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="with --start: memory, sqlite (a temporary file) or sqlite:PATH (default: memory)"
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="reports a second, instead of the scenario's")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="how long to measure, instead of the scenario's")
    ] = None,
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate", help="find the highest rate that is sustained: p99 within the bound, and no growing backlog"
        ),
    ] = False,
    bound: Annotated[
        float, typer.Option(metavar="MS", help="with --find-rate: what p99 of reports and of ends may be")
    ] = 50.0,
    keep: Annotated[bool, typer.Option("--keep", help="keep the job; a job that failed is always kept")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write everything to this file, as JSON")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw it, as a PNG (needs matplotlib)")] = None,
) -> int:
    """Run a load scenario against a tracker, in a job of its own that is deleted at the end.

    Reports are due at moments that are planned before; latencies count from these, however late a report could leave.
    Every substream must be announced exactly once, with the right count, and not too early. Give --start, or --server
    with an address. Exit status: 0 all was right; 1 something was wrong, or the tracker refused; 2 wrong usage; 3 no
    tracker could be reached.
    """
    if rest:
        raise WrongUsageError(
            f"`tracker load` runs one scenario, and {scenario!r} is followed by {' '.join(rest)!r}; --json prints the "
            "figures, and --save FILE writes them to a file"
        )
    if start == (server is not None):
        raise WrongUsageError(
            "`tracker load` needs either --start, to start a tracker for it, or --server HOST:PORT, and not both"
        )
    return run(_Asked(form, scenario, start, server, journal, rate, duration, find_rate, bound, keep, save, plot))


def run(arguments: _Asked) -> int:
    """Run `tracker load` and return the exit status."""
    with needs("load", "load"):
        from tracker.load.scenario import ScenarioError
        from tracker.load.servers import FailedError

    # As Ctrl-C ends the command, so that it stops the processes that it has started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with ending_at(FailedError, wrong=(ScenarioError,)):
        scenario = _scenario(arguments)
        with _target(arguments) as target:
            return _run(arguments, scenario, target)


def _scenario(arguments: _Asked) -> Scenario:
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
def _target(arguments: _Asked) -> Iterator[Target]:
    from tracker.client.credentials import TOKEN_VARIABLE, VARIABLES
    from tracker.load.servers import Remote, started

    if arguments.start:
        for variable in (*VARIABLES.values(), TOKEN_VARIABLE):  # they are for another tracker than this one
            os.environ.pop(variable, None)
        with started(arguments.journal or "memory") as server:
            yield server
    else:
        yield Remote(str(arguments.server))


def _run(arguments: _Asked, scenario: Scenario, target: Target) -> int:
    from tracker.load.results import machine
    from tracker.load.run import find_rate
    from tracker.load.run import run as run_scenario

    described = machine() | _described(arguments, scenario)
    document = {"machine": described, "scenario": scenario.as_dict()}
    print_machine(described, arguments.form)
    is_json = arguments.form is Form.JSON  # then stdout has one document

    def run_at(rate: float) -> Result:
        with ticker() as show:
            return run_scenario(replace(scenario, rate=rate), target, show, arguments.keep)

    if arguments.find_rate:
        search = find_rate(run_at, scenario.rate, arguments.bound, partial(print_step, to_stderr=is_json))
        document["search"] = search.as_dict()
        right = bool(search.rate) and not search.steps[-1].result.verdict.faults
        show_it = partial(print_search, search, arguments.bound)
    else:
        result = run_at(scenario.rate)
        document["result"] = result.as_dict()
        right = result.verdict.right
        show_it = partial(print_result, scenario, result)
    if is_json:
        print_json(document, indent=2)
    else:
        show_it()
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    if arguments.plot is not None:
        from tracker.load.results import draw

        draw(scenario, Path(arguments.scenario).stem, result, arguments.plot)
    return 0 if right else _WRONG


def _described(arguments: _Asked, scenario: Scenario) -> dict[str, str]:
    where = f"started here, journal {arguments.journal or 'memory'}" if arguments.start else f"at {arguments.server}"
    return {"tracker": where, "scenario": f"{arguments.scenario}: {scenario.description}"}


# ---------------------------------------------------------------- output

_LATENCY_HEADER: Final = ["LATENCY IN MS", "NUMBER", "P50", "P90", "P99", "P99.9", "LONGEST"]


@contextmanager
def ticker() -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a run as long as the context is open."""
    with progress() as show:
        yield lambda state: show(max(0.0, state.at), state.of, _line(state))


def print_machine(described: Mapping[str, str], form: Form) -> None:
    """Print where the load is made, and what it is."""
    if form is not Form.JSON:
        print_pairs(described.items())
        print_line(flush=True)


def print_result(scenario: Scenario, result: Result) -> None:
    """Print the figures of a run, and whether all was right."""
    print_table(_LATENCY_HEADER, _latency_rows(result))
    print_line()
    print_pairs(_pairs(scenario, result))
    sys.stdout.flush()
    generator = result.generator
    if not generator.kept_up:
        print_line(
            "tracker: the generator could not keep up, so the latencies above are not the tracker's alone: its busiest "
            f"process used {generator.busiest:.0%} of a core; half of the reports left {generator.lag.p50:.1f} ms late "
            f"or later, one in a hundred {generator.lag.p99:.1f} ms. Use a machine with more free cores, more "
            "processes, or a lower rate.",
            error=True,
        )
    for wrong in _wrongs(result):
        print_line(f"tracker: WRONG: {wrong}", error=True)
    if result.verdict.right:
        print_line()
        print_line("every substream was announced exactly once, with the right count, and none too early")


def print_step(step: Step, *, to_stderr: bool) -> None:
    """Print what one step of the search has found."""
    verdict = "sustained" if step.sustained else f"not sustained: {step.failed}"
    result = step.result
    parts = f"p99 of reports {result.reports.p99:.1f} ms, of ends {result.ends.p99:.1f} ms"
    if result.floor.count:
        parts += f", of a call that does nothing {result.floor.p99:.1f} ms"
    kept_up = "" if result.generator.kept_up else "; the generator could not keep up"
    print_line(f"{step.rate:,.1f} reports/s: {verdict} ({parts}{kept_up})", flush=True, error=to_stderr)


def print_search(search: Search, bound: float) -> None:
    """Print which rate is sustained.

    Args:
        bound: what p99 might be, in milliseconds.
    """
    print_line()
    if not search.rate:
        why = ""
        if search.too_busy:
            took = search.steps[-1].result.floor.p99
            why = (
                f": this machine is too busy for a search: 99 % of the calls to a server that does nothing also took "
                f"up to {took:.1f} ms; try again when it is quieter, or with a higher --bound"
            )
        print_line(f"no rate was sustained{why}")
        return
    print_line(f"sustained: {search.rate:,.1f} reports/s, p99 within {bound:g} ms and no growing backlog")
    if search.by_generator:
        print_line("above it the generator could not keep up: the tracker may sustain more than this machine can show")


def _line(progress: Progress) -> str:
    """Format the progress of a run in one line."""
    parts = [
        f"{max(0.0, progress.at):.0f} of {progress.of:.0f} s",
        f"reports due {progress.due:,}, answered {progress.answered:,}",
        f"lately p50 {_ms(progress.recent.p50)} p99 {_ms(progress.recent.p99)} ms",
        f"ends seen {progress.ended:,}",
    ]
    if progress.memory is not None:
        parts.append(f"server {_mib(progress.memory)}")
    return " | ".join(parts)


def _latency_rows(result: Result) -> list[list[str]]:
    kinds = {
        "report: due to answered": result.reports,
        "end: due to seen": result.ends,
        "for comparison, report: sent to answered": result.round_trips,
        "the generator's own lateness": result.generator.lag,
        "in the same seconds, a call that does nothing": result.floor,
    }
    return [
        [name, f"{each.count:,}", *map(_ms, (each.p50, each.p90, each.p99, each.p999, each.longest))]
        for name, each in kinds.items()
        if each.count
    ]


def _pairs(scenario: Scenario, result: Result) -> list[tuple[str, str]]:
    """Return the other figures of a run, as names and texts."""
    generator = result.generator
    parts = [
        ("reports a second", f"{result.rate:,.1f} answered, {scenario.rate:,.1f} asked for"),
        ("reports", f"{result.planned:,} planned, {result.answered:,} answered, {generator.repeated:,} sent twice"),
        ("backlog", f"{result.backlog[0]:.1f} reports early on, {result.backlog[1]:.1f} at the end"),
        ("ends checked", f"{result.verdict.checked:,}"),
    ]
    if generator.taken_over or generator.producers_killed or generator.servers_killed:
        parts.append(
            (
                "broken on purpose",
                f"{generator.taken_over:,} runs taken over, {generator.producers_killed:,} processes of producers and "
                f"{generator.servers_killed:,} trackers killed; {generator.left_out:,} reports left out of the "
                "latencies",
            )
        )
    parts.append(("busiest process", f"{generator.busiest:.0%} of a core"))
    if result.server is not None:
        parts.append(
            (
                "server's processor",
                f"{result.server:.0%} of a core; {result.server_waited:.0%} of the time it waited for one",
            )
        )
    if result.others is not None:
        parts.append(("others on this machine", f"{result.others:.2f} cores"))
    uses = [sample.server for sample in result.samples if sample.server is not None]
    if uses:
        parts.append(("server's memory", _course([use.memory for use in uses])))
        parts.append(("server's disk", _course([use.disk for use in uses])))
    return parts


def _wrongs(result: Result) -> list[str]:
    """Return what was wrong: the verdict's faults, and reports without an answer."""
    wrong = list(result.verdict.faults)
    if result.verdict.unanswered:
        wrong.append(
            f"{result.verdict.unanswered:,} of {result.planned:,} reports were not answered before patience was at its "
            "end: the tracker was too slow for this rate, or away"
        )
    return wrong


def _course(values: Sequence[int]) -> str:
    """Format the course of a quantity: after a quarter of the run, half way, at the end, and its maximum."""
    places = [len(values) // 4, len(values) // 2, len(values) - 1]
    return f"{' → '.join(_mib(values[place]) for place in places)}, at most {_mib(max(values))}"


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
