"""Observations of clients, with times: one operation a line, in a file that is judged afterwards."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

Outcome: TypeAlias = Literal["ok", "refused", "unknown"]

#: The kinds of operations, and what they carry: `asked` before the answer, `answer` after it.
#:
#: define   asked: fronts                            answer: log_id, created
#: open     asked: producer, run, resume             answer: committed
#: report   asked: producer, epoch, unit             answer: outcome
#: commit   asked: producer, epoch                   answer: outcome, last_seq (of a report that commits)
#: event    asked: watch                             answer: seq, log_id, body
#: status   asked: -                                 answer: last_seq, log_id, open, ended, in_flight, committed
#: list     asked: after                             answer: last_seq, log_id, events
#: await    asked: segment, scope, name              answer: body
#: epoch    asked: producer, epoch, line             what the epoch contains, before it is first reported
#: final    asked: -                                 answer: log_id, events, times, status: when all is over
#: fault    asked: the fault                         answer: what was found out when it struck
WRITES: Final = ("define", "open", "report", "commit")


@dataclass(slots=True)
class Operation:
    """One operation of a client.

    Args:
        client: who made it.
        kind: what it is.
        job: of which job.
        began: seconds since the run began.
        asked: what was asked for.
        ended: seconds since the run began; None: it never came to an end.
        outcome: ``ok``; ``refused``: it has changed nothing; ``unknown``: nobody knows.
        answer: what came back; with ``refused`` and ``unknown`` the reason.
        by: the process that has answered, PLACE.START; empty: unknown.
    """

    client: str
    kind: str
    job: str
    began: float
    asked: dict[str, Any] = field(default_factory=dict)
    ended: float | None = None
    outcome: Outcome = "unknown"
    answer: dict[str, Any] = field(default_factory=dict)
    by: str = ""

    def shown(self) -> str:
        """Return a line for people."""
        until = "…" if self.ended is None else f"{self.ended:.3f}"
        by = f" by {self.by}" if self.by else ""
        what = f"{self.kind} {_short(self.asked)} -> {self.outcome} {_short(self.answer)}{by}"
        return f"{self.began:9.3f} to {until:>9}  {self.client or self.job}  {what}"


def _short(values: dict[str, Any]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in values.items())
    return text if len(text) < 160 else f"{text[:157]}…"


class History:
    """The operations of a run, in the order in which they ended. Many threads may add to it.

    Args:
        file: where they are written, too; None: nowhere.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.operations: list[Operation] = []
        self._began = time.monotonic()
        self._file = None if file is None else file.open("w")
        self._lock = threading.Lock()
        self._under_way: dict[int, Operation] = {}

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def begin(self, client: str, kind: str, job: str, /, **asked: Any) -> Operation:
        """Return an operation that begins now. `end` must follow; one that never ends is of unknown outcome."""
        operation = Operation(client, kind, job, self.now(), asked)
        with self._lock:
            self._under_way[id(operation)] = operation
        return operation

    def end(self, operation: Operation, outcome: Outcome, by: str = "", /, **answer: Any) -> None:
        """Note how an operation has ended."""
        operation.ended, operation.outcome, operation.by, operation.answer = self.now(), outcome, by, answer
        with self._lock:
            self._under_way.pop(id(operation), None)
            self._add(operation)

    def note(self, client: str, kind: str, job: str, asked: dict[str, Any], /, **answer: Any) -> None:
        """Add an operation that took no time."""
        now = self.now()
        with self._lock:
            self._add(Operation(client, kind, job, now, asked, now, "ok", answer))

    def close(self) -> None:
        """Add what has not ended, and close the file."""
        with self._lock:
            for operation in self._under_way.values():
                self._add(operation)
            self._under_way.clear()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)
        if self._file is not None:
            self._file.write(json.dumps(asdict(operation)) + "\n")


@contextmanager
def recorded(file: Path | None = None) -> Iterator[History]:
    """Yield a history that is closed at the end."""
    history = History(file)
    try:
        yield history
    finally:
        history.close()


def read(file: Path) -> list[Operation]:
    """Return the operations of a file."""
    with file.open() as lines:
        return [Operation(**json.loads(line)) for line in lines]
