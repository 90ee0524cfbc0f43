"""Drains: how far one is, and what becomes of what is open."""

from __future__ import annotations

from tracker.contract.refusal import Refusal, Refused
from tracker.contract.status import DrainStatus
from tracker.contract.values import DrainMode, DrainState
from tracker.wire.gen import tracker_pb2 as wire


def read_asked_mode(number: int) -> DrainMode:
    """Return the mode of a drain that is asked for; unspecified: it finishes.

    Raises:
        Refused: ``MALFORMED``: there is no such mode.
    """
    if number and number not in DrainMode.by_number():
        known = ", ".join(f"{mode.number} ({mode})" for mode in DrainMode)
        raise Refused(Refusal.MALFORMED, f"mode={number} is not a known value; use one of {known}")
    return read_drain_mode(number)


def write_drain_mode(mode: DrainMode | None) -> wire.DrainMode.ValueType:
    """Return a drain's mode; None: there is no drain."""
    return wire.DrainMode.ValueType(0 if mode is None else mode.number)


def read_drain_mode(number: int) -> DrainMode:
    """Return a drain's mode; a server or caller that gives none knows only of drains that finish."""
    return DrainMode.of(number) if number else DrainMode.FINISH


def write_drain_status(answer: DrainStatus) -> wire.DrainStatus:
    return wire.DrainStatus(
        state=wire.DrainState.ValueType(answer.state.number),
        drain_id=answer.drain_id,
        deployment=answer.deployment,
        unfinished_fronts=answer.unfinished_fronts,
        open_substreams=answer.open_substreams,
        in_flight=answer.in_flight,
        uncommitted_producers=answer.uncommitted_producers,
        open_producers=answer.open_producers,
        mode=write_drain_mode(answer.mode),
        unbalanced_segments=answer.unbalanced_segments,
    )


def read_drain_status(message: wire.DrainStatus) -> DrainStatus:
    return DrainStatus(
        state=DrainState.of(message.state),
        drain_id=message.drain_id,
        deployment=message.deployment,
        unfinished_fronts=tuple(message.unfinished_fronts),
        open_substreams=message.open_substreams,
        in_flight=message.in_flight,
        uncommitted_producers=tuple(message.uncommitted_producers),
        open_producers=tuple(message.open_producers),
        mode=None if message.state == DrainState.NOT_DRAINING.number else read_drain_mode(message.mode),
        unbalanced_segments=tuple(message.unbalanced_segments),
    )
