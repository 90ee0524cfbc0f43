"""Keeps gRPC out of the way of `fork()`.

A process may fork while other threads use gRPC, but then gRPC skips its own precautions and the child may hang or
crash on what those threads left half done. So every use of gRPC in this package passes through this module: before a
fork what runs is brought to rest (short calls are waited for, long ones cancelled, which their callers take for a lost
connection and repeat), and goes on in the parent afterwards. The child starts with nothing: no channel, no call of
the parent's may be used or even freed there.

Importing this module registers handlers for `os.fork`; they cost nothing in a process that makes no calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_REST: Final = 5.0  #: seconds that a fork waits for running calls; after that it takes the risk

_inherited: list[object] = []  #: what came from a parent; kept, since to free it would act on the parent's connection
_in_child: list[Callable[[], None]] = []


class _Gate:
    """Open, but for the time of a fork."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self._inside = 0
        self._long: dict[object, Callable[[], object]] = {}

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def started(self, call: object, cancel: Callable[[], object]) -> None:
        with self._changed:
            self._long[call] = cancel
            if not self._open:
                cancel()

    def ended(self, call: object) -> None:
        with self._changed:
            self._long.pop(call, None)

    def close(self) -> None:
        self._changed.acquire()
        self._open = False
        for cancel in self._long.values():
            cancel()
        self._changed.wait_for(lambda: not self._inside, _REST)

    def reopen(self) -> None:
        self._open = True
        self._changed.notify_all()
        self._changed.release()


_gate = _Gate()


@contextmanager
def using_grpc() -> Iterator[None]:
    """Around every use of gRPC that ends soon, or that was announced by `may_last`. Waits while the process forks."""
    with _gate.inside():
        yield


def may_last(call: object, cancel: Callable[[], object]) -> None:
    """Announces a call that may go on for long: it is cancelled if the process forks, by the thread that does."""
    _gate.started(call, cancel)


def is_over(call: object) -> None:
    """Takes back what `may_last` announced."""
    _gate.ended(call)


def keep_in_child(inherited: object) -> None:
    """Keeps a gRPC object that came from a parent from being freed."""
    _inherited.append(inherited)


def after_fork_in_child(start_anew: Callable[[], None]) -> None:
    """Registers what a module has to forget in a child."""
    _in_child.append(start_anew)


def _start_anew() -> None:
    global _gate
    _inherited.append(_gate)
    _gate = _Gate()
    for start_anew in _in_child:
        start_anew()


os.register_at_fork(before=lambda: _gate.close(), after_in_parent=lambda: _gate.reopen(), after_in_child=_start_anew)
