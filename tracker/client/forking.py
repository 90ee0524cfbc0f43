"""Protection of `fork()` from gRPC.

A process may fork while other threads use gRPC. But then gRPC skips its own precautions, and the child may hang or
crash on what those threads left half done. So every use of gRPC in this package passes through this module. Before a
fork it waits for short calls and cancels long ones; their callers take this for a lost connection and repeat them in
the parent afterwards. The child starts with nothing: it may not use, or even free, any channel or call of the parent.

Importing this module registers handlers for `os.fork`; they cost nothing in a process that makes no calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_REST: Final = 5.0  #: seconds that a fork waits for running calls; after that it happens in spite of them

_inherited: list[object] = []  #: objects of a parent: kept, since freeing them would act on the parent's connection
_in_child: list[Callable[[], None]] = []


class _Gate:
    """A gate that is open except during a fork."""

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
        for cancel in list(self._long.values()):  # a call may end meanwhile, in this thread, as a watch is freed
            cancel()
        self._changed.wait_for(lambda: not self._inside, _REST)

    def reopen(self) -> None:
        self._open = True
        self._changed.notify_all()
        self._changed.release()


_gate = _Gate()


@contextmanager
def using_grpc() -> Iterator[None]:
    """Yield a context for each use of gRPC that ends soon or that `may_last` has announced; it waits during a fork."""
    with _gate.inside():
        yield


def may_last(call: object, cancel: Callable[[], object]) -> None:
    """Announce a call that may last long: if the process forks, the forking thread cancels it."""
    _gate.started(call, cancel)


def is_over(call: object) -> None:
    """Withdraw a call that `may_last` announced."""
    _gate.ended(call)


def keep_in_child(inherited: object) -> None:
    """Prevent a gRPC object that came from a parent process from being freed."""
    _inherited.append(inherited)


def after_fork_in_child(reset: Callable[[], None]) -> None:
    """Register a function that resets a module's state in a child process."""
    _in_child.append(reset)


def _reset_in_child() -> None:
    global _gate
    _inherited.append(_gate)
    _gate = _Gate()
    for reset in _in_child:
        reset()


os.register_at_fork(
    before=lambda: _gate.close(), after_in_parent=lambda: _gate.reopen(), after_in_child=_reset_in_child
)
