"""Assertions about a tracker's jobs and events, whose failures state why."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Final, NoReturn, TypeAlias

from tracker.client import Ended, Explained, Kind, Reason, SegmentStatus, SubstreamStatus, TrackerClient, TrackerError
from tracker.client.texts import why_open
from tracker.client.watch import pages
from tracker.contract.events import Body
from tracker.contract.refusal import Refusal

_CONTEXT: Final = 5  #: the most events that are shown before the first difference
_MOST: Final = 300  #: the most events that are compared from the first difference on


@dataclass(frozen=True, slots=True)
class Like:
    """An event of one kind, of which only some fields matter. Made by `like`."""

    kind: type[Body]
    wanted: tuple[tuple[str, Any], ...]

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(f'{name}={_text(value)}' for name, value in self.wanted)}, …)"


Expected: TypeAlias = Body | Like


def like(kind: type[Body], **wanted: Any) -> Like:
    """Expect an event of which only some fields matter.

    Args:
        kind: its class, such as `tracker.client.Ended`.
        wanted: the fields that matter, and their values.

    Raises:
        TypeError: the kind has no such field.

    >>> from tracker.client import Ended
    >>> like(Ended, segment="orders", name="monday")
    Ended(segment='orders', name='monday', …)
    """
    known = [each.name for each in fields(kind)]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise TypeError(f"{kind.__name__} has no field {unknown[0]!r}; it has {', '.join(known)}")
    return Like(kind, tuple(wanted.items()))


def matches(expected: Expected, event: Body) -> bool:
    """Return whether an event is as expected."""
    if isinstance(expected, Like):
        return type(event) is expected.kind and all(getattr(event, name) == value for name, value in expected.wanted)
    return expected == event


def difference(expected: Sequence[Expected], events: Sequence[Body]) -> list[str]:
    """Describe how events differ from what was expected, line by line; empty: they do not.

    Args:
        expected: what should have come, in this order.

    Returns:
        A line for each event: with two spaces what came as expected, with ``-`` what is missing, and with ``+`` what
        came and was not expected. Events that differ in a few fields are next to one another, expected first. Events
        that came as expected at the beginning, and those after hundreds of others, are only counted.
    """
    same = 0
    while same < min(len(expected), len(events)) and matches(expected[same], events[same]):
        same += 1
    if same == len(expected) == len(events):
        return []
    rest, came = expected[same:][:_MOST], events[same:][:_MOST]
    lines = [f"  … {same - _CONTEXT} as expected"] if same > _CONTEXT else []
    lines += [f"  {_line(each)}" for each in expected[max(0, same - _CONTEXT) : same]]
    at = seen = 0
    for expected_at, seen_at in [*_common(rest, came), (len(rest), len(came))]:
        missing, extra = rest[at:expected_at], came[seen:seen_at]
        for wanted, event in zip_longest(missing, extra):
            lines += [f"- {_line(wanted)}"] if wanted is not None else []
            lines += [f"+ {_line(event, wanted)}"] if event is not None else []
        if expected_at < len(rest):
            lines.append(f"  {_line(rest[expected_at])}")
        at, seen = expected_at + 1, seen_at + 1
    more, came_more = len(expected) - same - len(rest), len(events) - same - len(came)
    return [*lines, f"… and {more} more expected, {came_more} more there"] if more or came_more else lines


def _common(expected: Sequence[Expected], events: Sequence[Body]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence, in both."""
    same = [[matches(each, event) for event in events] for each in expected]
    longest = [[0] * (len(events) + 1) for _ in range(len(expected) + 1)]
    for i in reversed(range(len(expected))):
        for j in reversed(range(len(events))):
            longest[i][j] = longest[i + 1][j + 1] + 1 if same[i][j] else max(longest[i + 1][j], longest[i][j + 1])
    places, i, j = [], 0, 0
    while i < len(expected) and j < len(events):
        if same[i][j]:
            places.append((i, j))
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return places


def _line(each: Expected, beside: Expected | None = None) -> str:
    """Write an event with its fields by name; beside an expectation of some fields, only with those."""
    if isinstance(each, Like):
        return repr(each)
    if isinstance(beside, Like) and beside.kind is type(each) and not matches(beside, each):
        return repr(Like(type(each), tuple((name, getattr(each, name)) for name, _ in beside.wanted)))
    told = [
        f"{field.name}={_text(getattr(each, field.name))}"
        for field in fields(each)
        if field.default is MISSING or getattr(each, field.name) != field.default
    ]
    return f"{type(each).__name__}({', '.join(told)})"


def _text(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)


_LOOK_S: Final = 0.02  #: seconds between two looks at the events
_MOST_NAMES: Final = 5  #: the most names that a failure lists
_MOST_LISTED: Final = 10_000  #: the most substreams among which a failure looks for similar names


class Assertions:
    """Assertions about the jobs of a tracker. A failure explains what the tracker waits for.

    A `LocalTracker` has them as its own methods; for another tracker, make them of a client of it.

    Args:
        client: of the tracker whose jobs are looked at.

    >>> def check(address):
    ...     Assertions(TrackerClient(address)).assert_ended("shop", "orders", "berlin", "monday")
    """

    def __init__(self, client: TrackerClient) -> None:
        self.client = client

    def assert_ended(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        *,
        elements: int | None = None,
        reason: Reason = Reason.COMPLETE,
        timeout: float = 10.0,
    ) -> Ended:
        """Assert that a substream ends on a segment, and wait for it.

        Args:
            segment: the segment on which the end is awaited.
            scope, name: of the substream; the scope is ``""`` in jobs without scopes.
            elements: how many elements were sent there in all; None: any number.
            reason: the way in which it has to end; another one is a failure.
            timeout: seconds to wait; 0: it must have ended already.

        Returns:
            The event.

        Raises:
            AssertionError: it has not ended in time, with the reasons; or it has ended in another way.
        """
        __tracebackhide__ = True
        known = self._on(job, segment, self._found(job, scope, name))
        try:
            if timeout <= 0 and (known is None or not known.ended):
                raise TimeoutError
            wait = None if known is not None and known.ended else timeout
            ended = self.client.wait_for_end(job, segment, scope, name, timeout=wait)
        except TimeoutError:
            when = f" within {timeout:g} s" if timeout > 0 else ""
            raise AssertionError(
                f"{_named(scope, name)} has not ended on {segment!r}{when}:\n{self.explain(job, scope, name)}"
            ) from None
        wrong = []
        if ended.reason is not reason:
            in_flight = f", with {ended.in_flight} in flight" if ended.in_flight else ""
            wrong.append(f"reason: expected {reason}, and it is {ended.reason}{in_flight}")
        if elements is not None and ended.elements != elements:
            wrong.append(f"elements: expected {elements}, and there were {ended.elements}")
        if wrong:
            raise AssertionError("\n- ".join([f"{_named(scope, name)} has ended on {segment!r}, but not so:", *wrong]))
        return ended

    def assert_open(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        *,
        in_flight: int | None = None,
        waiting_for: Iterable[str] | None = None,
    ) -> SubstreamStatus:
        """Assert that a substream is known and has not ended on a segment. It looks once.

        Args:
            segment: where it is open.
            in_flight: how many elements were sent on the segment and not yet received; None: any number.
            waiting_for: the fronts that have not closed the substream, in any order; None: any.

        Returns:
            The substream's status.

        Raises:
            AssertionError: it has ended, no committed report has named it, or it is open with other numbers.
        """
        __tracebackhide__ = True
        found = self._found(job, scope, name)
        on = self._on(job, segment, found)
        if found.substream is None or on is None:
            raise AssertionError(f"{_named(scope, name)} is not known:\n{self._unknown(job, name, found)}")
        if on.ended:
            ended = self.client.wait_for_end(job, segment, scope, name)
            raise AssertionError(
                f"{_named(scope, name)} is not open on {segment!r}: it has ended ({ended.reason}, {ended.elements} "
                f"elements, {ended.in_flight} in flight)"
            )
        wrong = []
        if in_flight is not None and on.sent - on.received != in_flight:
            wrong.append(
                f"in flight: expected {in_flight}, and there are {on.sent - on.received} ({on.sent} sent, "
                f"{on.received} received)"
            )
        if waiting_for is not None and sorted(waiting_for) != sorted(found.substream.waiting_for):
            wrong.append(
                f"waiting for: expected {sorted(waiting_for)}, and it is {sorted(found.substream.waiting_for)}"
            )
        if wrong:
            raise AssertionError("\n- ".join([f"{_named(scope, name)} is open on {segment!r}, but not so:", *wrong]))
        return found.substream

    def assert_events(
        self,
        job: str,
        expected: Sequence[Expected],
        *,
        only: type[Kind] | tuple[type[Kind], ...] = (),
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        after_seq: int = 0,
        timeout: float = 10.0,
    ) -> None:
        """Assert that a job's events are these, in this order, and wait until there are as many.

        Args:
            expected: events, or `like` for those of which only some fields matter.
            only: the kinds that matter, such as `Ended` or ``(Ended, Late)``; others are left out. Empty: all.
            segments: only `Ended`, `Late`, `Excess` and `Advanced` on these; other kinds always. Empty: on all.
            scopes: only `Ended`, `Late` and `Excess` in these. Empty: in all.
            after_seq: only events after this number.
            timeout: seconds to wait until there are as many events as expected.

        Raises:
            AssertionError: the events differ, with a line for each of them.

        >>> def check(tracker):
        ...     tracker.assert_events("shop", [like(Ended, name="monday"), like(Ended, name="tuesday")], only=Ended)
        """
        __tracebackhide__ = True
        until = time.monotonic() + timeout
        while True:
            events = self._events(job, only, segments, scopes, after_seq)
            if len(events) >= len(expected) or time.monotonic() >= until:
                break
            time.sleep(_LOOK_S)
        differing = difference(expected, events)
        if differing:
            raise AssertionError("\n".join([f"the events of job {job!r} differ (- expected, + there):", *differing]))

    def explain(self, job: str, scope: str, name: str) -> str:
        """Describe why a substream has not ended, one reason a line.

        Raises:
            AssertionError: there is no such job.
        """
        __tracebackhide__ = True
        found = self._found(job, scope, name)
        if found.substream is None:
            return self._unknown(job, name, found)
        reasons = list(why_open(self.client.job(job), found, self._now()))
        return "\n".join(f"- {reason}" for reason in reasons) or "- it has ended on every segment"

    def _now(self) -> datetime | None:
        """Return the tracker's time; None: the machine's."""
        return None

    def _found(self, job: str, scope: str, name: str) -> Explained:
        __tracebackhide__ = True
        try:
            return self.client.explain(job, scope, name)
        except TrackerError as error:
            self._refused(error, job)

    def _refused(self, error: TrackerError, job: str) -> NoReturn:
        __tracebackhide__ = True
        if error.reason != Refusal.UNKNOWN_JOB:
            raise error
        raise AssertionError(f"there is no job {job!r}; the tracker has {self.client.jobs()}") from None

    def _on(self, job: str, segment: str, found: Explained) -> SegmentStatus | None:
        __tracebackhide__ = True
        known = self.client.job(job).spec.segments
        if segment not in known:
            raise AssertionError(f"job {job!r} has no segment {segment!r}; it has {sorted(known)}")
        states = found.substream.segments if found.substream is not None else ()
        return next((state for state in states if state.segment == segment), None)

    def _unknown(self, job: str, name: str, found: Explained) -> str:
        if found.staged:
            return "\n".join(f"- {reason}" for reason in why_open(self.client.job(job), found, self._now()))
        listed = islice(self.client.substreams(job, include_ended=True), _MOST_LISTED)
        known = [(each.scope, each.name) for each in listed]
        near = {name, *difflib.get_close_matches(name, {each for _, each in known}, _MOST_NAMES)}
        close = [each for each in known if each[1] in near] or known
        others = ", ".join(f"{each!r} of scope {of!r}" for of, each in close[:_MOST_NAMES])
        return f"- nothing was reported of it; the job has {others or 'no substreams yet'}"

    def _events(
        self,
        job: str,
        only: type[Kind] | tuple[type[Kind], ...],
        segments: Sequence[str],
        scopes: Sequence[str],
        after_seq: int,
    ) -> list[Kind]:
        __tracebackhide__ = True
        found: list[Kind] = []
        try:
            for page in pages(partial(self.client.list_events, job, segments=segments, scopes=scopes), after_seq):
                found += [event.kind for event in page.events if not only or isinstance(event.kind, only)]
        except TrackerError as error:
            self._refused(error, job)
        return found


def _named(scope: str, name: str) -> str:
    return f"substream {name!r} of scope {scope!r}"
