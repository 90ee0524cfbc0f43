"""Output of `tracker load`: its progress, the figures of a run, the steps of a search."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tracker.cli.forms import Form
from tracker.cli.output import print_line, print_pairs, print_table, progress
from tracker.load.results import Latency, Result
from tracker.load.run import Progress, Search, Step
from tracker.load.scenario import Scenario

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
    return [_row(name, latency) for name, latency in kinds.items() if latency.count]


def _row(name: str, latency: Latency) -> list[str]:
    numbers = (latency.p50, latency.p90, latency.p99, latency.p999, latency.longest)
    return [name, f"{latency.count:,}", *map(_ms, numbers)]


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
