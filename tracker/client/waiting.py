"""Waits for one end, or until a whole stretch of time is over, and which ends are good enough."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from tracker.client import forking
from tracker.client.calls import Calls, Patience
from tracker.client.connection import Connection
from tracker.contract.bounds import MAX_EPOCH
from tracker.contract.events import Ended
from tracker.contract.status import JobStatus
from tracker.contract.values import Reason
from tracker.wire import codec
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


LOOK_EVERY_S: Final = 0.5  #: seconds between two looks at a job
LONGEST_WAIT_S: Final = 60.0  #: seconds that one Await lasts before it is made again
ONE_LOOK_S: Final = 1.0  #: seconds that an answer gets at least, so that even a wait of 0 seconds finds what is there


class WrongJobError(ValueError):
    """The job cannot be waited for in this way; the message names the remedy."""


class _Jobs(Protocol):
    def job(self, job: str) -> JobStatus:
        """Describe the current state of a job."""


def wait_for_progress(client: _Jobs, job: str, segment: str, end_time: int, timeout: float | None = None) -> int:
    """Wait until every substream with an end time up to this one has ended on a segment, of all scopes.

    This needs a job with `progress`, as `Tracking(progress=True)` makes it. It asks for the job's state twice a second,
    so it goes on when the tracker restarts.

    Args:
        client: a `TrackerClient` or a `ShardedClient`.
        end_time: in the job's unit; the Spark client counts microseconds since 1970, UTC.
        timeout: seconds; None: for ever.

    Returns:
        How far the segment has come: at least `end_time`.

    Raises:
        TimeoutError: it has not come so far in time.
        WrongJobError: the job announces no progress, or has no such segment.
        TrackerError: ``UNKNOWN_JOB``.
        TrackerUnavailable: the tracker could not be reached for the client's `retry_for`.

    >>> def print_january(client):
    ...     wait_for_progress(client, "flights", "clean", 1_359_676_800_000_000)  # 2013-02-01
    ...     print("all flights of January have arrived")
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        come = reached(client.job(job), segment)
        if come is not None and come >= end_time:
            return come
        left = LOOK_EVERY_S if until is None else until - time.monotonic()
        if left <= 0:
            raise TimeoutError(not_so_far(job, segment, come, end_time, timeout))
        time.sleep(min(LOOK_EVERY_S, left))


def reached(status: JobStatus, segment: str) -> int | None:
    """Return how far a segment has come; None: it has announced nothing yet.

    Raises:
        WrongJobError: the job announces no progress, or has no such segment.
    """
    spec = status.spec
    if segment not in spec.segments:
        raise WrongJobError(
            f"job {spec.job!r} has no segment {segment!r}; it has {', '.join(map(repr, spec.segments))}"
        )
    if not spec.progress:
        raise WrongJobError(
            f"job {spec.job!r} does not announce how far it has come: define it with progress=True, or wait for its "
            "substreams one by one"
        )
    return status.advanced.get(segment)


def not_so_far(job: str, segment: str, come: int | None, end_time: int, timeout: float | None) -> str:
    """Return the message of a wait for a segment's progress that was not over in time."""
    far = "has announced no progress yet" if come is None else f"has come up to {come}"
    return f"segment {segment!r} of job {job!r} {far}, and not up to {end_time}, in {timeout} s"


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
    ValueError: reasons: 'DONE' is none of COMPLETE, EXPIRED, ABANDONED, DEADLINE, THRESHOLD, IDLE
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
            return f"{where} as {ended.reason} with {ended.holds}, so it is not complete"
        if ended.by_drain and not self.by_drain:
            return f"{where} because a drain has closed it, so the next deployment may bring more of it"
        return ""


# Calls in an event loop. Waits take no thread: thousands of them share a connection. They are those of the synchronous
# client, started as futures, so addresses, credentials and forks are handled as there; but they neither pause nor check
# whether the tracker is reachable. Reports, which are answered soon, take turns on a few threads that nothing else
# uses.


Request = TypeVar("Request")
Response = TypeVar("Response")


_threads = ThreadPoolExecutor(8, "tracker-report")


def _in_child() -> None:
    global _threads
    _threads = ThreadPoolExecutor(8, "tracker-report")


forking.after_fork_in_child(_in_child)


async def in_thread(call: Callable[..., Response], *arguments: object) -> Response:
    """Make a call that is answered soon in a thread that is kept for such calls: no other work can hold it back."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call, *arguments)


async def end_of(calls: Calls, request: tracker_pb2.AwaitRequest, timeout: float | None) -> Ended:
    """Wait until a substream has ended: see `TrackerClient.await_end`."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    patience = Patience(calls, request)
    while True:
        left = max(ONE_LOOK_S, until - time.monotonic())
        try:
            answer = await _answer(calls, lambda connection: connection.stubs.Await, request, min(left, LONGEST_WAIT_S))
            return codec.read_ended(answer.ended)
        except grpc.RpcError as error:
            # A deadline that has passed is no failure: the call waits for something to happen.
            waited = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            pause = 0.0 if waited else patience.after(error)
            if waited:
                patience.reset()
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"{request.name!r} of scope {request.scope!r} has not ended on {request.segment!r} within {timeout} s"
            )
        await asyncio.sleep(min(left, pause))


async def progress_of(calls: Calls, job: str, segment: str, end_time: int, timeout: float | None) -> int:
    """Wait until a segment has come so far: see `TrackerClient.await_progress`."""
    until = math.inf if timeout is None else time.monotonic() + timeout
    request = tracker_pb2.GetJobRequest(job=job)
    patience = Patience(calls, request)
    come = None
    while True:
        pause = LOOK_EVERY_S
        try:
            answer = await _answer(calls, lambda connection: connection.stubs.GetJob, request, calls.timeout)
        except grpc.RpcError as error:
            pause = patience.after(error)
        else:
            patience.reset()
            come = reached(codec.read(answer, JobStatus), segment)
            if come is not None and come >= end_time:
                return come
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(not_so_far(job, segment, come, end_time, timeout))
        await asyncio.sleep(min(left, pause))


async def passed_of(calls: Calls, token: Token, timeout: float | None) -> Passed:
    """Wait until all that a report has sent is through: see `TrackerClient.await_token`."""
    following = Following(token, timeout, calls.timeout / 2)
    patience = Patience(calls, following.question())
    while (question := following.question()) is not None:
        try:
            answer = await _answer(calls, lambda connection: connection.stubs.AwaitThrough, question, calls.timeout)
        except grpc.RpcError as error:
            await asyncio.sleep(patience.after(error))
        else:
            patience.reset()
            following.learn(answer)
    return following.passed


async def _answer(
    calls: Calls,
    method: Callable[[Connection], grpc.UnaryUnaryMultiCallable[Request, Response]],
    request: Request,
    seconds: float,
) -> Response:
    """Make one attempt.

    Raises:
        grpc.RpcError: it failed.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: object) -> None:  # in a thread of gRPC's
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(done.set)

    with forking.using_grpc():
        connection = calls.waiting_connection()  # without a reference it would be closed
        call = method(connection).future(request, timeout=seconds)
        forking.may_last(call, call.cancel)
    try:
        call.add_done_callback(wake)
        await done.wait()
        if call.code() is not grpc.StatusCode.OK:
            if call.code() is grpc.StatusCode.UNAVAILABLE:
                calls.failed_at(connection.address)
            raise cast(grpc.RpcError, call)
        return call.result()
    finally:
        call.cancel()
        forking.is_over(call)
