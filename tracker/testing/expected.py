"""Events as a test expects them, and how they differ from those that came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from tracker.contract.events import Body

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
        events: what came.

    Returns:
        A line for each event: with two spaces what came as expected, with ``-`` what is missing, and with ``+`` what
        came and was not expected. Events that differ in a few fields are next to one another, expected first. What
        came as expected at the beginning, and what follows after hundreds of other events, is only counted.
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
