"""Values as texts for people, and why a substream has not ended, in sentences.

The command line, the page and the test kit show values in the same form.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

from tracker.contract.bounds import MAX_END_TIME
from tracker.contract.status import Explained, FrontStatus, JobStatus, SegmentStatus, StagedStatus, SubstreamStatus
from tracker.contract.values import NO_END_TIME

_FIRST_TIME: Final = 31_536_000 * 10**6  #: the start of 1971, in microseconds since 1970
_LAST_TIME: Final = 7_258_118_400 * 10**6  #: the start of 2200
_LISTED: Final = -MAX_END_TIME  #: the frontier of a scope that a front lists, and of which nothing has come


def shown(name: str) -> str:
    """Return text that is safe for a terminal, on one line: characters that a terminal would act on are escaped.

    Names come from reporters. A name could clear the screen, colour it, reverse the text or forge a line.

    >>> print(shown("JFK \\x1b[2J\\r\\n"))
    JFK \\x1b[2J\\r\\n
    """
    return name if name.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in name)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def text(value: object) -> str:
    """Format a value for people; times to the millisecond, in UTC."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
        case tuple() | list():
            return ", ".join(map(text, value)) or "-"
        case _:
            return shown(str(value))


def time_text(time: int | None) -> object:
    """Format an end time or a frontier for people.

    The tracker does not know its unit. A number that would be in the years 1971 to 2200 if it counts microseconds since
    1970, as in the Spark client, is shown as that time, in UTC.

    >>> time_text(1356998400000000), time_text(24), time_text(2**63 - 1), time_text(-(2**61))
    ('2013-01-01 00:00:00', 24, 'the end', 'nothing yet')
    """
    if time == _LISTED:
        return "nothing yet"
    if time == NO_END_TIME:
        return "the end"
    if time is None or not _FIRST_TIME <= time < _LAST_TIME:
        return time
    moment = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=time)
    return moment.isoformat(sep=" ").removesuffix("+00:00")


def ago(moment: datetime | None, now: datetime | None = None) -> str | None:
    """Format how long ago something happened, in the largest unit.

    Args:
        now: the present; None: this machine's time.

    >>> ago(datetime.now(timezone.utc) - timedelta(hours=50))
    '2d ago'
    """
    if moment is None:
        return None
    seconds = max(0, int(((now or datetime.now(timezone.utc)) - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


# Everything is derived from the states of the job and the substream at one moment.


def why_open(job: JobStatus, found: Explained, now: datetime | None = None) -> Iterator[str]:
    """Yield the reasons why a substream has not ended; none if it has ended.

    Args:
        now: the tracker's time; None: this machine's time.
    """
    substream = found.substream
    running = [] if substream is None else [segment for segment in substream.segments if not segment.ended]
    if substream is not None and not running:
        return
    reasons = [*_of_the_substream(job, substream, running), *(_staged(each, job, now) for each in found.staged)]
    if substream is not None:
        reasons += _promises_staged(job, substream, found, now)
    yield from reasons
    if found.earlier:
        yield from _ordered(job, found)
    elif not reasons:
        waits = (
            "substreams with earlier end times come first (ordering)"
            if job.spec.ordering != "none"
            else "run the command again"
        )
        yield f"it is closed and all its elements have arrived: {waits}"


def _ordered(job: JobStatus, found: Explained) -> Iterator[str]:
    """Yield which substreams hold its end back by the job's ordering, and why these are open in turn."""
    count = found.earlier_count
    which = "substream that ends earlier and has" if count == 1 else "substreams that end earlier and have"
    yield f"its end waits for {count:,} {which} not ended (ordering {job.spec.ordering})"
    for each in found.earlier:
        running = [segment for segment in each.segments if not segment.ended]
        reasons = "; ".join(_of_the_substream(job, each, running))
        waits = (
            reasons or f"`tracker explain {job.spec.job} {shlex.quote(each.scope)} {shlex.quote(each.name)}` tells why"
        )
        yield f"{each.name} of scope {each.scope!r} holds it back: {waits}"


def _of_the_substream(
    job: JobStatus, substream: SubstreamStatus | None, running: Sequence[SegmentStatus]
) -> Iterator[str]:
    if substream is None:
        yield "no report of it has been committed, so its reports do not count yet"
        return
    fronts = {front.front: front for front in job.fronts}
    expecting = {front for segment in running for front in segment.expected_by}
    yield from (_front(name, fronts.get(name), substream) for name in substream.waiting_for if name not in expecting)
    for segment in running:
        yield from _expected(segment, job, substream)
        if (unbalanced := _account(segment)) is not None:
            yield unbalanced
            if segment.sent > segment.received and segment.segment in job.unread_segments:
                yield (
                    f"no element has ever been received on segment {segment.segment!r}: check that its reader runs and "
                    "commits"
                )
    for producer in substream.held_by:
        yield f"producer {producer!r} had an epoch revoked whose entries took effect at once; it must commit it again"


def _expected(segment: SegmentStatus, job: JobStatus, substream: SubstreamStatus) -> Iterator[str]:
    """Yield what is expected on a segment and missing: elements, or the numbers of other fronts."""
    if segment.expected is None:
        return
    if segment.missing:
        numbers = ", ".join(f"{front or 'fronts that were removed'}: {n}" for front, n in segment.expected_by.items())
        yield f"segment {segment.segment!r}: {segment.sent} of {segment.expected} expected elements sent ({numbers})"
    elif segment.differs:
        yield (
            f"segment {segment.segment!r}: {segment.sent} of {segment.expected} expected elements sent, but not the "
            "promised ones, by their identities: a copy stands for a missing one, or one was sent that nobody promised"
        )
    if not set(substream.waiting_for).isdisjoint(segment.expected_by):
        for front in job.fronts:
            feeds = not front.segments or segment.segment in front.segments
            if feeds and front.front not in segment.expected_by and not front.finished and not front.idle:
                yield (
                    f"front {front.front!r} also feeds segment {segment.segment!r}, and has neither promised a number "
                    "of elements (which may be 0) nor finished"
                )


def _account(segment: SegmentStatus) -> str | None:
    people = f"last sent by {segment.last_sender or 'nobody'!r}, last received by {segment.last_receiver or 'nobody'!r}"
    counts = f"{segment.sent} sent, {segment.received} received; {people}"
    missing = segment.sent - segment.received
    if missing > 0:
        return f"segment {segment.segment!r}: {missing} in flight ({counts})"
    if missing < 0:
        return (
            f"segment {segment.segment!r}: {-missing} more received than sent ({counts}): an element was received "
            "twice, as when a queue redelivers it (its receiver has to drop the second copy by its label), or its "
            "sender's report is not committed yet, or its sender does not report"
        )
    if segment.xor:
        return (
            f"segment {segment.segment!r}: as many elements received as sent, but not the same ones ({counts}): "
            "sender and receiver label an element differently, or one was received twice and another one not at all"
        )
    return None


def _front(name: str, front: FrontStatus | None, substream: SubstreamStatus) -> str:
    if front is None or not front.producer:
        return (
            f"front {name!r} has promised nothing yet: its source has not started, has no rows, or was declared "
            "without a promise (front=)"
        )
    where = f"front {name!r} (producer {front.producer!r}, last promise {text(front.last_promise)})"
    if substream.end_time is None:
        return f"{where} has not closed it"
    promised = [time for scope, time in front.frontiers.items() if scope in ("*", substream.scope)]
    reached = f"has promised up to {time_text(max(promised))}" if promised else "has promised no time for this scope"
    if promised and max(promised) == _LISTED:
        reached = "has listed this scope, and sent nothing of it yet"
    if front.more_frontiers and substream.scope not in front.frontiers:
        reached = f"has promised times for {front.more_frontiers} scopes that the answer has no room for"
    idle = "; it is idle" if front.idle else ""
    return f"{where} {reached}, and the substream ends at {time_text(substream.end_time)}{idle}"


def _staged(staged: StagedStatus, job: JobStatus, now: datetime | None) -> str:
    """Describe an epoch that has entries or promises of the substream and is not committed."""
    counts = [f"{each.sent} sent and {each.received} received on {each.segment!r}" for each in staged.segments]
    closes = [f"that {front or 'its only source'!r} closes it" for front in staged.closed_by]
    numbers = [f"how many elements {front!r} sends, or which" for front in staged.expected_by]
    done = "sealed" if staged.sealed else "reported"
    counting = "so it does not count" if staged.mode == "staged" else "so its effect can still be revoked"
    return (
        f"producer {staged.producer!r} has {done} epoch {staged.epoch} and not committed it "
        f"({', '.join([*counts, *closes, *numbers])}), {counting}; {_contact(staged.producer, job, now)}"
    )


def _promises_staged(
    job: JobStatus, substream: SubstreamStatus, found: Explained, now: datetime | None
) -> Iterator[str]:
    """Yield epochs that do not name the substream, but may hold a promise for which it waits."""
    owners = {front.front: front.producer for front in job.fronts}
    named = {(each.producer, each.epoch) for each in found.staged}
    for name in substream.waiting_for:
        owner = next((each for each in job.producers if each.producer == owners.get(name)), None)
        epochs = [epoch for epoch in owner.staged_epochs if (owner.producer, epoch) not in named] if owner else []
        if owner is not None and epochs:
            which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
            yield (
                f"producer {owner.producer!r}, the owner of front {name!r}, has reported {which} and not committed it, "
                f"so its promises there do not count; {_contact(owner.producer, job, now)}"
            )


def _contact(producer: str, job: JobStatus, now: datetime | None) -> str:
    status = next((each for each in job.producers if each.producer == producer), None)
    if status is None or status.closed:
        return "its run is closed"
    return f"its last report or commit came {text(status.last_heard)} ({ago(status.last_heard, now)})"
