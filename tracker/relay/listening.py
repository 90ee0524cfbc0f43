"""Where a relay listens: a socket file that only its owner's group may use, or a port.

One relay at a time listens at a path. Who listens holds a lock beside it, which goes with the process however that
ends; so a socket file that nobody holds the lock of is a dead relay's, and its successor takes its place.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio

_UNIX = "unix:"
_LONGEST_PATH = 107  # bytes; the system's


class CannotListenError(Exception):
    """The address cannot be listened on."""


@contextmanager
def bound(server: grpc.aio.Server, listen: str, mode: int) -> Iterator[str]:
    """The server is bound to an address while the context lasts; gives the address as callers are to say it.

    Args:
        server: not started yet.
        listen: ``unix:PATH`` or ``HOST:PORT``; port 0 picks one.
        mode: of the socket file.

    Raises:
        ValueError: it is no such address.
        CannotListenError: another relay listens there, or nobody can.
    """
    if listen.startswith(_UNIX):
        with _lock(_usable(listen)):
            _bind_socket(server, Path(listen.removeprefix(_UNIX)), mode)
            yield listen
        return
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"listen on unix:PATH or HOST:PORT, such as 127.0.0.1:7655, not {listen!r}")
    yield f"{host}:{_add_port(server, listen)}"


def _usable(listen: str) -> Path:
    path = Path(listen.removeprefix(_UNIX))
    if not path.is_absolute():
        raise ValueError(f"a socket's path is absolute, such as unix:/run/relay.sock, not {listen!r}")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(
            f"the path of a socket has at most {_LONGEST_PATH} bytes, not {len(os.fsencode(path))}: {path}"
        )
    return path


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    beside = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotListenError(f"cannot listen on {path}: {error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotListenError(f"another relay listens on {path}") from error
        yield
    finally:
        os.close(descriptor)


def _bind_socket(server: grpc.aio.Server, path: Path, mode: int) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISSOCK(found.st_mode):
            raise CannotListenError(f"cannot listen on {path}: it is there and no socket")
        path.unlink()
    before = os.umask(0o777 & ~mode)  # so that there is no moment at which others may
    try:
        _add_port(server, f"{_UNIX}{path}")
    finally:
        os.umask(before)


def _add_port(server: grpc.aio.Server, address: str) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListenError(f"cannot listen on {address}; is it taken, or not this node's?") from error
