"""Which ends of substreams are good enough for those who act on them: by default only those that are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracker.contract.events import Ended
from tracker.contract.values import Reason


@dataclass(frozen=True, slots=True)
class AcceptedEnds:
    """The ends that are good enough.

    Args:
        reasons: the names of the reasons; an end of another reason has lost elements.
        by_drain: whether the end of a substream is that only a drain has closed: the next deployment may bring more.

    Raises:
        ValueError: a reason is none, or there are none.

    >>> AcceptedEnds(["COMPLETE", "EXPIRED"]).reasons
    ('COMPLETE', 'EXPIRED')
    >>> AcceptedEnds(["DONE"])
    Traceback (most recent call last):
    ValueError: reasons: 'DONE' is none of COMPLETE, EXPIRED, ABANDONED
    """

    reasons: Sequence[str] = (Reason.COMPLETE.name,)
    by_drain: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.reasons, str) or not self.reasons:
            raise ValueError(f"reasons={self.reasons!r}: give a list, such as ['COMPLETE', 'EXPIRED']")
        for reason in self.reasons:
            if reason not in Reason.__members__:
                raise ValueError(f"reasons: {reason!r} is none of {', '.join(Reason.__members__)}")
        object.__setattr__(self, "reasons", tuple(self.reasons))

    def accepts(self, ended: Ended) -> bool:
        """Tell whether an end is good enough."""
        return not self.complaint(ended)

    def complaint(self, ended: Ended) -> str:
        """Return why an end is not good enough; empty if it is.

        >>> AcceptedEnds().complaint(Ended("clean", "JFK", "monday", None, 7, Reason.EXPIRED, 3))
        "'monday' of scope 'JFK' ended on 'clean' as EXPIRED with 3 elements in flight, so it is not complete"
        """
        where = f"{ended.name!r} of scope {ended.scope!r} ended on {ended.segment!r}"
        if ended.reason.name not in self.reasons:
            return f"{where} as {ended.reason} with {ended.in_flight} elements in flight, so it is not complete"
        if ended.by_drain and not self.by_drain:
            return f"{where} because a drain has closed it, so the next deployment may bring more of it"
        return ""
