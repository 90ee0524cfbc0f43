"""Events, and the lines of the ledger, for people."""

from __future__ import annotations

from typing import Final, get_args

from tracker.cli.forms import Form
from tracker.cli.output import Column, print_json, print_line
from tracker.client.ledger import Entry
from tracker.client.texts import text, time_text
from tracker.contract.events import Advanced, Drained, DrainRequested, Ended, Event, Excess, FrontIdle, Late, Stalled
from tracker.contract.events import Body as Kind
from tracker.contract.values import DrainMode

#: The names of all kinds of events.
KINDS: Final = tuple(sorted(kind.__name__ for kind in get_args(Kind)))


#: The styles of kinds that need attention, and of those for which people wait.
_STYLES: Final = {Ended: "green", Late: "yellow", Stalled: "red", Excess: "red"}


def print_event(event: Event, form: Form) -> None:
    """Print an event on one line, at once."""
    if form is Form.JSON:
        print_json(event)
    else:
        print_line(line(event, wide=form is Form.WIDE), flush=True, style=_STYLES.get(type(event.kind), ""))


def line(event: Event, wide: bool = False) -> str:
    """Format an event as a line for people.

    >>> line(Event(7, 1_357_084_800_000_000_000, "d1", Advanced("raw", 24)))
    '     7  2013-01-02 00:00:00.000  Advanced          raw  up to 24'
    """
    deployment = f"{event.deployment}  " if wide else ""
    return f"{event.seq:>6}  {text(event.at)}  {deployment}{type(event.kind).__name__:<16}  {_details(event)}"


def _details(event: Event) -> str:
    match event.kind:
        case Ended() as ended:
            return f"{ended.segment}  {substream(ended.scope, ended.name)}  {ended.account}"
        case Late() as late:
            return (
                f"{late.segment}  {substream(late.scope, late.name)}  "
                f"{late.sent} sent, {late.received} received by {late.producer}"
            )
        case Stalled() as stalled:
            of = f", {stalled.sent} of {stalled.expected} sent" if stalled.expected else ""
            where = f"{text(stalled.segments)}  {substream(stalled.scope, stalled.name)}"
            return f"{where}  {stalled.in_flight} in flight{of}"
        case Excess() as excess:
            where = f"{excess.segment}  {substream(excess.scope, excess.name)}"
            return f"{where}  {excess.sent} sent, only {excess.expected} expected"
        case FrontIdle(front, idle):
            return f"{front} {'is idle and not waited for' if idle else 'is active again'}"
        case Advanced(segment, time):
            return f"{segment}  up to {time_text(time)}"
        case DrainRequested(drain_id, mode) | Drained(drain_id, mode) if mode is DrainMode.HAND_OVER:
            return f"{drain_id}, to hand over"
        case drain:
            return drain.drain_id


def substream(scope: str, name: str) -> str:
    """Return a substream's name with its scope, if that has a name."""
    return f"{scope}/{name}" if scope else name


def columns(by_segment: bool) -> list[Column[Entry]]:
    """Return the columns of the ledger.

    Args:
        by_segment: whether there are lines of single segments.
    """
    at_segments: list[Column[Entry]] = [
        Column("SEGMENT", lambda line: "all" if line.segment is None else line.segment),
    ]
    passed_on: list[Column[Entry]] = [Column("PASSED ON", lambda line: line.passed_on)]
    return [
        Column("JOB", lambda line: line.key.job, wide=True),
        Column("SCOPE", lambda line: line.key.scope),
        Column("NAME", lambda line: line.key.name),
        Column("END TIME", lambda line: time_text(line.end_time), wide=True),
        Column("FROM", lambda line: line.origins, wide=True),
        *(at_segments if by_segment else []),
        Column("SENT", lambda line: line.sent),
        Column("RELEASED", lambda line: line.released),
        Column("FILTERED", lambda line: line.filtered),
        Column("LATE", lambda line: line.late),
        Column("GIVEN UP", lambda line: line.given_up),
        Column("QUARANTINED", lambda line: line.quarantined),
        *(passed_on if by_segment else []),
        Column("MISSING", lambda line: line.missing, style=lambda line: "red" if line.missing or line.wrong else ""),
    ]
