"""The bounds of the numbers that a caller can send.

They are part of the wire's rules, not of the state: whoever takes a command from outside calls `check_bounds` before it
is kept anywhere, so a number beyond its bound is never journaled. The core itself does not refuse them: a journal that
an older version wrote may hold them, and what it holds was acknowledged. It keeps its arithmetic safe by `bounded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from .commands import CloseProducer, Command, Commit, DefineJob, Drain, Expect, OpenProducer, Promise, Report, Subscribe
from .refusal import Refusal, Refused
from .spec import DURATIONS, Spec
from .values import NO_END_TIME

# A century: any sum of a time until the year 2162 and a duration fits 64 bits of nanoseconds.
MAX_DURATION = 36_525 * 24 * 3600 * 10**9  #: ns
MAX_EPOCH = 2**62 - 1  #: so that the epoch after it fits, and a -1 that was meant as none is refused
MAX_EXPECTED = 2**48  #: elements, so that the sum over fronts fits 64 bits
MAX_END_TIME = 2**61  #: either way of 0; in microseconds 73,000 years

_FEW = 8  # up to so many times are quicker one by one than as a column


def whole(name: str, value: SupportsIndex) -> int:
    """Return a number as Python's own.

    Args:
        name: of the argument, for the message.

    Raises:
        TypeError: the value is no integer.

    >>> whole("time", 7.5)
    Traceback (most recent call last):
    TypeError: time=7.5 is no integer
    """
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is no integer") from None


def checked_epoch(epoch: int | None) -> int | None:
    """Return an epoch that the tracker accepts, unchanged.

    Raises:
        ValueError: the epoch is negative, or needs more than 62 bits.
        TypeError: the epoch is no integer.

    >>> checked_epoch(-1)
    Traceback (most recent call last):
    ValueError: epoch=-1 is out of range; epochs are 0, 1, 2, … up to 2^62 - 1
    """
    if epoch is not None and not 0 <= whole("epoch", epoch) <= MAX_EPOCH:
        raise ValueError(f"epoch={epoch} is out of range; epochs are 0, 1, 2, … up to 2^62 - 1")
    return epoch


def check_bounds(command: Command) -> None:
    """Refuse a command with a number beyond its bound, whatever the state; call it before the command is journaled.

    Durations have at most 100 years, epochs lie below 2^62, end times within 2^61 of 0 (or are ``NO_END_TIME``), and a
    front expects at most 2^48 elements.

    Raises:
        Refused: ``MALFORMED``, which names the field, its value and the bound.

    >>> check_bounds(OpenProducer("job", "p", "run", resume_epoch=2**62))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tracker.contract.refusal.Refused: MALFORMED: resume_epoch=4611686018427387904 is out of range: ...
    """
    match command:
        case DefineJob(spec):
            for field in DURATIONS:
                _check_duration(field, getattr(spec, field))
        case Drain():
            _check_duration("timeout", command.timeout)
        case Subscribe():
            _check_duration("max_age", command.max_age)
        case OpenProducer() | CloseProducer():
            _check_epoch("resume_epoch", command.resume_epoch)
        case Commit():
            _check_epoch("epoch", command.epoch)
            for _, name, time in command.substreams:
                if time is not None and time != NO_END_TIME and abs(time) > MAX_END_TIME:
                    raise _beyond(time, f" of {name[:60]!r}")
            _check_expected(command.promises)
        case Report():
            _check_epoch("epoch", command.epoch)
            _check_end_times(command)
            _check_expected(command.promises)


def _check_duration(field: str, duration: int | None) -> None:
    if duration is not None and duration > MAX_DURATION:
        raise Refused(
            Refusal.MALFORMED,
            f"{field} is {duration / 10**9:.0f} s; a duration has at most 100 years "
            f"({MAX_DURATION // 10**9} s): shorten it, or leave it out",
        )


def _check_epoch(field: str, epoch: int | None) -> None:
    if epoch is not None and epoch > MAX_EPOCH:
        raise Refused(
            Refusal.MALFORMED, f"{field}={epoch} is out of range: an epoch is a number from 0 to 2^62-1; count from 0"
        )


def _check_end_times(report: Report) -> None:
    times = report.end_times
    if len(times) <= _FEW and all(
        -MAX_END_TIME <= time <= MAX_END_TIME or time == NO_END_TIME for time in times.tolist()
    ):
        return
    beyond = ((times > MAX_END_TIME) | (times < -MAX_END_TIME)) & (times != NO_END_TIME)
    if beyond.any():
        place = int(np.flatnonzero(beyond)[0])
        of = f" of {report.names[place][:60]!r}" if place < len(report.names) else ""
        raise _beyond(int(times[place]), of)


def _beyond(time: int, of: str) -> Refused:
    return Refused(
        Refusal.MALFORMED,
        f"the end time {time}{of} is beyond 2^61 (in microseconds 73,000 years) from 0; use a coarser unit, or none",
    )


def _check_expected(promises: Sequence[Promise]) -> None:
    for promise in promises:
        if isinstance(promise, Expect) and promise.elements > MAX_EXPECTED:
            raise Refused(
                Refusal.MALFORMED,
                f"front {promise.front[:60]!r} expects {promise.elements} elements; the highest number is 2^48",
            )


def bounded(spec: Spec) -> Spec:
    """Return a spec with its durations cut to the longest that there can be.

    >>> bounded(Spec("job", "d1", (), retention=10**20)).retention == MAX_DURATION
    True
    """
    durations = {field: getattr(spec, field) for field in DURATIONS}
    beyond: dict[str, Any] = {
        field: MAX_DURATION for field, value in durations.items() if value is not None and value > MAX_DURATION
    }
    return replace(spec, **beyond) if beyond else spec
