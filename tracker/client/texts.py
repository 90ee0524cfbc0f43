"""The form of values for people: names, times and lists, in one line each.

The command line, the page and the test kit show values in the same form.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from tracker.contract.values import NO_END_TIME

_FIRST_TIME: Final = 31_536_000 * 10**6  #: the start of 1971, in microseconds since 1970
_LAST_TIME: Final = 7_258_118_400 * 10**6  #: the start of 2200


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

    >>> time_text(1356998400000000), time_text(24), time_text(2**63 - 1)
    ('2013-01-01 00:00:00', 24, 'the end')
    """
    if time == NO_END_TIME:
        return "the end"
    if time is None or not _FIRST_TIME <= time < _LAST_TIME:
        return time
    moment = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=time)
    return moment.isoformat(sep=" ").removesuffix("+00:00")


def ago(moment: datetime | None, now: datetime | None = None) -> str | None:
    """Format how long ago something happened, in the largest unit.

    Args:
        moment: when it happened.
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
