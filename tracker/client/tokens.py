"""Tokens: what one report has sent, and how to wait until all of it is through everything.

A service that has no substream to wait for, such as one that answers "your order has been processed", takes a token of
its report and waits for that. The server knows a report's elements by their substreams: it answers for each of these
once nothing of it is in flight, on any segment, at some moment after the report took effect.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from google.protobuf.duration_pb2 import Duration

from tracker.contract.bounds import MAX_EPOCH
from tracker.wire.gen import tracker_pb2

AT_ONCE: Final = 500  #: substreams in one question
_WAIT_S: Final = 20.0  #: that one question lasts at most

Question: TypeAlias = tracker_pb2.AwaitThroughRequest


@dataclass(frozen=True, slots=True)
class Token:
    """Reference to all that a report has sent, for `TrackerClient.wait_for`; `Report.token` makes it.

    Its text can be kept, or passed on to another process, and be waited for after any restart.

    Attributes:
        log_id: the log that has answered the report; of a job on several trackers their logs, joined by ``+``.
        substreams: scope and name of each that the report names.

    >>> token = Token("shop", "8f", "till", 7, (("berlin", "monday"),))
    >>> str(token)
    '["shop", "8f", "till", 7, [["berlin", "monday"]]]'
    >>> Token.of(str(token)) == token
    True
    """

    job: str
    log_id: str
    producer: str
    epoch: int
    substreams: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return json.dumps([self.job, self.log_id, self.producer, self.epoch, self.substreams])

    @classmethod
    def of(cls, text: str | Token) -> Token:
        """Return the token of a text.

        Raises:
            ValueError: the text is no token's.

        >>> Token.of("yesterday")
        Traceback (most recent call last):
        ValueError: 'yesterday' is no token; give what str(report.token()) has returned
        """
        try:
            job, log_id, producer, epoch, substreams = json.loads(str(text))
            token = cls(job, log_id, producer, epoch, tuple((scope, name) for scope, name in substreams))
            texts = (job, log_id, producer, *(part for pair in token.substreams for part in pair))
            if not all(isinstance(each, str) for each in texts):
                raise ValueError
            if type(epoch) is not int or not 0 <= epoch <= MAX_EPOCH:
                raise ValueError
        except (ValueError, TypeError):
            raise ValueError(f"{str(text)[:60]!r} is no token; give what str(report.token()) has returned") from None
        return token

    def question(self, substreams: Sequence[tuple[str, str]], wait: float) -> Question:
        """Return what to ask the tracker.

        Args:
            wait: seconds that the answer may take.
        """
        scopes = list(dict.fromkeys(scope for scope, _ in substreams))
        places = {scope: place for place, scope in enumerate(scopes)}
        return Question(
            job=self.job,
            log_id=self.log_id,
            producer=self.producer,
            epoch=self.epoch,
            scopes=scopes,
            names=[name for _, name in substreams],
            scope_index=[places[scope] for scope, _ in substreams],
            wait=Duration(seconds=int(wait), nanos=int(wait % 1 * 1e9)),
        )


@dataclass(frozen=True, slots=True)
class Passed:
    """All that a report has sent is through, or is not followed any more.

    Attributes:
        lost: substreams, by scope and name, of which something was given up: they ended as EXPIRED or ABANDONED, or
            something of them came after their end.
        forgotten: substreams that have ended, and the tracker does not know any more how.

    >>> Passed().complete, Passed(lost=(("berlin", "monday"),)).complete
    (True, False)
    """

    lost: tuple[tuple[str, str], ...] = ()
    forgotten: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Return whether all that was sent is known to be through everything."""
        return not (self.lost or self.forgotten)

    @classmethod
    def merged(cls, parts: Sequence[Passed]) -> Passed:
        """Return the whole of what several trackers have answered."""
        return cls(sum((each.lost for each in parts), ()), sum((each.forgotten for each in parts), ()))


class Following:
    """A token that is followed: what to ask the tracker next, and what it has answered.

    Args:
        timeout: seconds; None: for ever.
        longest: seconds that one question may take.
    """

    def __init__(self, token: Token, timeout: float | None, longest: float) -> None:
        self._token = token
        self._timeout = timeout
        self._until = math.inf if timeout is None else time.monotonic() + timeout
        self._longest = min(longest, _WAIT_S)
        self._left = list(token.substreams)
        self.passed = Passed()  #: what was lost so far

    def question(self) -> Question | None:
        """Return what to ask; None: all is through."""
        wait = max(0.0, min(self._longest, self._until - time.monotonic()))
        return self._token.question(self._left[:AT_ONCE], wait) if self._left else None

    def learn(self, answer: tracker_pb2.AwaitThroughResponse) -> None:
        """Learn the answer to the question.

        Raises:
            TimeoutError: time is up, and something is still in flight.
        """
        asked = self._left[:AT_ONCE]
        lost, forgotten = (tuple(asked[at] for at in places) for places in (answer.lost, answer.forgotten))
        self.passed = Passed.merged([self.passed, Passed(lost, forgotten)])
        self._left = [asked[at] for at in answer.pending] + self._left[AT_ONCE:]
        if self._left and time.monotonic() >= self._until:
            raise TimeoutError(_not_through(self._token, self._left, answer.waits_for_epoch, self._timeout))


def _not_through(token: Token, left: Sequence[tuple[str, str]], waits_for_epoch: bool, timeout: float | None) -> str:
    if waits_for_epoch:
        return (
            f"epoch {token.epoch} of producer {token.producer!r} of job {token.job!r} has not taken effect within "
            f"{timeout} s: it is not committed, or was revoked and not reported again"
        )
    (scope, name), more = left[0], len(left) - 1
    return (
        f"{name!r} of scope {scope!r}{f' and {more} more substreams' if more else ''} of job {token.job!r} are not "
        f"through within {timeout} s; `tracker explain` tells where their elements are"
    )
