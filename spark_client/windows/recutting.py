"""Windows that are cut otherwise by the next version: which of the new ones takes in what an old one has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError
from spark_client.windows.substreams import Substream, Substreams


@dataclass(frozen=True)
class Recut:
    """From one rule of windows to another, each of whose windows takes in whole ones of the first.

    Attributes:
        before: the rule by which rows fell into windows.
        now: the one by which they do.
    """

    before: Substreams
    now: Substreams

    @classmethod
    def between(cls, before: Substreams, now: Substreams) -> Recut | None:
        """Return what leads from one rule to another; None: they are the same.

        Raises:
            UsageError: they differ in more than the length and the offset of windows.
        """
        if replace(before, zone=None) == replace(now, zone=None):
            return None
        if not _may_differ(before, now):
            raise UsageError(
                f"substreams was {before.to_json()}, is {now.to_json()}. Only the length and the offset of windows may "
                "change, not what a substream is; and not of windows that a calendar cuts, or that overlap: start with "
                "a new job, with new checkpoints and new paths for channels"
            )
        return cls(before, now)

    def makes(self, rule: Substreams) -> bool:
        """Return whether a rule, of whichever source, cuts windows as the new one does."""
        cut = (rule.length, rule.offset, rule.time) == (self.now.length, self.now.offset, self.now.time)
        return cut and rule.by_end and not rule.slide and not rule.shared

    def window(self, old: Substream) -> Substream:
        """Return the window that takes in an old one.

        Raises:
            UsageError: none does: it would have to be split.
        """
        assert old.end_time is not None
        start = old.end_time - self.before.length
        new = self.now.substream(old.scope, start - (start - self.now.offset) % self.now.length + self.now.length)
        assert new.end_time is not None
        if new.end_time < old.end_time:
            raise UsageError(
                f"the window {old.name!r} of the scope {old.scope!r} is open, and does not lie within one window of "
                f"the new rule: {new.name!r} ends before it. What is kept of it cannot be split: take windows that are "
                "made of whole old ones, or start with a new job, with new checkpoints"
            )
        return new

    def key(self, old: Column) -> Column:
        """Return the same of the key of partial rows."""
        return self.now.end_after(F.unix_micros(old) - F.lit(self.before.length))


def can_recut(before: object, now: object) -> bool:
    """Return whether a restored release may cut windows by another rule.

    Args:
        before, now: the rules, as `Substreams.to_json` gives them.
    """
    if not isinstance(before, dict) or not isinstance(now, dict) or before == now:
        return False
    return _may_differ(Substreams.from_json(before), Substreams.from_json(now))


def _may_differ(before: Substreams, now: Substreams) -> bool:
    """Return whether only the length and the offset of windows differ, and each is told by its end alone."""
    alike = replace(before, length=now.length, offset=now.offset, zone=None) == replace(now, zone=None)
    return alike and all(rule.by_end and not rule.slide and not rule.shared for rule in (before, now))
