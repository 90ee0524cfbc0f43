"""Output of `tracker load`: its progress, the figures of a run, the steps of a search."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tracker.cli.forms import Form
from tracker.cli.output import print_line, print_pairs, print_table, progress
from tracker.load.display import LATENCY_HEADER, latency_rows, line, pairs, warnings, wrongs
from tracker.load.results import Result
from tracker.load.running import Progress
from tracker.load.scenario import Scenario
from tracker.load.searching import Search, Step


@contextmanager
def ticker() -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a run as long as the context is open."""
    with progress() as show:
        yield lambda state: show(max(0.0, state.at), state.of, line(state))


def print_machine(described: Mapping[str, str], form: Form) -> None:
    """Print where the load is made, and what it is."""
    if form is not Form.JSON:
        print_pairs(described.items())
        print_line(flush=True)


def print_result(scenario: Scenario, result: Result) -> None:
    """Print the figures of a run, and whether all was right."""
    print_table(LATENCY_HEADER, latency_rows(result))
    print_line()
    print_pairs(pairs(scenario, result))
    sys.stdout.flush()
    for warning in warnings(result):
        print_line(f"tracker: {warning}", error=True)
    for wrong in wrongs(result):
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
    if not search.rate:
        why = ""
        if search.too_busy:
            took = search.steps[-1].result.floor.p99
            why = (
                f": this machine is too busy for a search: 99 % of the calls to a server that does nothing also took "
                f"up to {took:.1f} ms; try again when it is quieter, or with a higher --bound"
            )
        print_line()
        print_line(f"no rate was sustained{why}")
        return
    print_line()
    print_line(f"sustained: {search.rate:,.1f} reports/s, p99 within {bound:g} ms and no growing backlog")
    if search.by_generator:
        print_line("above it the generator could not keep up: the tracker may sustain more than this machine can show")
