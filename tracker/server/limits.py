"""What the server lets a caller ask of it, and the refusals of what goes beyond.

Limits keep one caller's mistake from taking the server down for all. They are the server's, not the state's: they are
checked before a command is taken, so another limit after a restart never changes what a journal adds up to.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from tracker.core.refusal import Refused


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits, each with its default."""

    max_message_bytes: int = 64 << 20  #: of one request
    max_report_entries: int = 1_000_000  #: of one report
    max_report_substreams: int = 1_000_000  #: that one report names, ids included
    max_report_units: int = 100_000  #: of one report, and of a manifest
    max_promises: int = 100_000  #: of one report or commit
    max_jobs: int = 10_000
    max_segments: int = 1_000  #: of one job
    max_fronts: int = 10_000  #: of one job
    max_producers: int = 10_000  #: of one job
    max_open_substreams: int = 20_000_000  #: of one job
    max_watchers: int = 10_000  #: watches and waits under way
    max_pending_bytes: int = 256 << 20  #: of commands that wait for the journal
    max_page: int = 10_000  #: events or substreams in one answer; more are not refused but come with the next page

    def by_name(self) -> dict[str, int]:
        return asdict(self)

    def check(self, name: str, wanted: int, remedy: str) -> None:
        """Refuse what goes beyond a limit.

        Args:
            remedy: what the caller can do about it.

        Raises:
            Refused: ``LIMIT``.

        >>> Limits(max_jobs=2).check("max_jobs", 3, "delete one first")
        Traceback (most recent call last):
        tracker.core.refusal.Refused: LIMIT: max_jobs is 2, and this would make it 3; delete one first
        """
        limit = getattr(self, name)
        if wanted > limit:
            message = f"{name} is {limit}, and this would make it {wanted}; {remedy}"
            raise Refused("RESOURCE_EXHAUSTED", "LIMIT", message)


def parse_limits(settings: list[str]) -> Limits:
    """Limits from ``NAME=NUMBER`` settings; the others keep their defaults.

    Raises:
        ValueError: no such limit, or no positive number.

    >>> parse_limits(["max_jobs=5"]).max_jobs
    5
    """
    known = [field.name for field in fields(Limits)]
    values = {}
    for setting in settings:
        name, _, number = setting.partition("=")
        if name not in known:
            raise ValueError(f"there is no limit {name!r}; there are {', '.join(known)}")
        if not number.isdecimal() or int(number) == 0:
            raise ValueError(f"{setting!r}: a limit is given as NAME=NUMBER, the number above 0")
        values[name] = int(number)
    return Limits(**values)
