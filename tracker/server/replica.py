"""The tracker's state, and how a journal gives it back.

What the state depends on beside the callers' requests is journaled too: the time of each command, and, in a `Started`
record for each start, what the server itself brought. So a journal alone rebuilds the same state, answers and events,
whatever the server is started with next.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgpack  # type: ignore[import-untyped]

from tracker.core import Refused, Tracker
from tracker.core.commands import Answer, Command, DefineJob, Recovered
from tracker.journal import Journal, JournalError, Record

from .translation import Method, command

log = logging.getLogger("tracker.replica")

_FORM = 1  # of a dump: raised when the core's changes


@dataclass(frozen=True, slots=True)
class Started:
    """What a server brought when it started."""

    prefix: str  #: for the log ids of a state that begins here
    lost_tail: str  #: a new prefix for log ids, if the journal had lost its tail; else empty
    retention: int  #: ns, for jobs that name none

    def payload(self) -> bytes:
        return bytes(msgpack.packb(asdict(self)))

    @classmethod
    def read(cls, payload: bytes) -> Started:
        return cls(**msgpack.unpackb(payload))


class Replica:
    """The state machine with the server's own inputs to it.

    Args:
        state: what `dump` gave; None: a state that begins with the first `Started` record.

    Raises:
        tracker.journal.JournalError: another version of the program made the dump.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self._tracker: Tracker | None = None
        self._retention = 0
        self.at = 0  #: the time of the last command, in ns since the Unix epoch
        if state is not None:
            if state["form"] != _FORM:
                raise JournalError(f"the snapshot is of form {state['form']}; this version reads form {_FORM}")
            self._tracker = Tracker.load(state["tracker"])
            self._retention = state["retention"]
            self.at = state["at"]

    @property
    def tracker(self) -> Tracker:
        if self._tracker is None:
            raise ValueError("the state has not begun: no server has started on it")
        return self._tracker

    def start(self, started: Started, at: int) -> None:
        """A server has started on this state."""
        if self._tracker is None:
            self._tracker = Tracker(started.prefix)
        self._retention = started.retention
        self.apply(Recovered(started.lost_tail), at)

    def apply(self, command: Command, at: int) -> Answer:
        """Carry out a command at a time that is not before the last one's.

        Raises:
            tracker.core.Refused: as the core does.
        """
        self.at = at
        if isinstance(command, DefineJob) and command.spec.retention is None:
            command = replace(command, spec=replace(command.spec, retention=self._retention))
        return self.tracker.apply(command, at)

    def replay(self, record: Record) -> None:
        """Apply what a journal remembers, with the outcome that it had."""
        method = Method(record.method)
        if method is Method.STARTED:
            self.start(Started.read(record.payload), record.at)
            return
        try:
            self.apply(command(method, record.payload), record.at)
        except Refused:
            pass  # as it was when it was taken
        except Exception:
            # A fault in the program, which the command met when it was taken, too. To stop here would be to stop
            # at every start; what the caller heard then was that the command had failed.
            log.exception("a command failed again at recovery", extra={"method": method.name, "time": record.at})

    def dump(self) -> dict[str, Any]:
        """A consistent copy, for `Replica`; it may be encoded in another thread."""
        return {"form": _FORM, "tracker": self.tracker.dump(), "retention": self._retention, "at": self.at}


def recover(journal: Journal, retention: int, now: int) -> tuple[Replica, int]:
    """The state that a journal gives, started anew, and the number of its last record.

    Args:
        retention: ns, for jobs that are defined from now on and name none.
        now: ns since the Unix epoch.
    """
    recovery = journal.recover()
    for damage in recovery.damage:
        log.error(
            "the journal was damaged: %s",
            damage,
            extra={"file": damage.file, "record": damage.record, "lost": damage.lost, "set_aside": damage.set_aside},
        )
    replica = Replica(recovery.state)
    replayed = 0
    for record in recovery.records:
        replica.replay(record)
        replayed += 1
    prefix = secrets.token_hex(6)
    started = Started(prefix, prefix if recovery.tail_lost else "", retention)
    record = Record(Method.STARTED, max(now, replica.at), started.payload())
    number = journal.append([record])
    replica.start(started, record.at)
    replica.tracker.take_woken()
    log.info(
        "recovered",
        extra={
            "snapshot": recovery.number,
            "replayed": replayed,
            "jobs": len(replica.tracker.jobs()),
            "record": number,
        },
    )
    return replica, number
