"""`tracker load`: drives a tracker as many producers would, and checks every end that it announces."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from tracker.cli.declarations import WrongUsageError, command, ending_at, new_commands
from tracker.cli.forms import Form
from tracker.cli.options import needs
from tracker.cli.output import print_json

if TYPE_CHECKING:
    from tracker.load.results import Result
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
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.load.scenario import ScenarioError
        from tracker.load.servers import FailedError

    signal.signal(signal.SIGTERM, _terminated)
    with ending_at(FailedError, wrong=(ScenarioError,)):
        scenario = _scenario(arguments)
        with _target(arguments) as target:
            return _run(arguments, scenario, target)


def _terminated(number: int, _frame: object) -> NoReturn:
    """End the command as Ctrl-C does, so that it stops the processes that it has started."""
    raise SystemExit(128 + number)


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
    from tracker.cli.views.load import print_machine, print_result, print_search, print_step, ticker
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
        from tracker.load.plot import draw  # imported here, since only this needs matplotlib

        draw(scenario, Path(arguments.scenario).stem, result, arguments.plot)
    return 0 if right else _WRONG


def _described(arguments: _Asked, scenario: Scenario) -> dict[str, str]:
    where = f"started here, journal {arguments.journal or 'memory'}" if arguments.start else f"at {arguments.server}"
    return {"tracker": where, "scenario": f"{arguments.scenario}: {scenario.description}"}
