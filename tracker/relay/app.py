"""The relay as a process: it listens, relays until a signal stops it, and ends when it has answered all it accepted.

Its address is a socket file that only its owner's group may use, or a port. One relay at a time listens at a path. It
holds a lock beside the path, which the system releases when the process ends, however it ends. A relay removes an
existing socket file only if the file belongs to its own user and no process listens there: then it is a dead relay's.
It never removes anything else, not even a file that has replaced its own socket while it ran. gRPC would remove
whatever is at the path where it listens, before and after. So gRPC gets a path that no other program knows, and the
socket gets its name by a link, which never replaces a file.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from tracker.client.credentials import Credentials
from tracker.client.servers import alternatives
from tracker.security.guard import Security
from tracker.security.transport import Certificate, Transport, add_port
from tracker.wire.addresses import UNIX, CannotListenError, host_and_port

from .batching import Budget
from .service import SERVICE, Relay, RelayMetrics, Upstream

log = logging.getLogger("tracker.relay")


_LONGEST_PATH = 107  # bytes: the system's limit for the path of a socket


@contextmanager
def bound(server: grpc.aio.Server, listen: str, mode: int, certificate: Certificate | None = None) -> Iterator[str]:
    """Bind a server to an address while the context lasts; give the address that callers have to use.

    Args:
        listen: ``unix:PATH`` or ``HOST:PORT``; port 0 picks one.
        mode: the permissions of the socket file.
        certificate: for TLS on a port; a socket file uses none.

    Raises:
        ValueError: `listen` does not have one of these forms.
        CannotListenError: another relay listens there, or this process cannot.
    """
    if listen.startswith(UNIX):
        path = _usable(listen)
        with _lock(path), _socket(server, path, mode):
            yield listen
        return
    host_and_port(listen, "use unix:PATH or HOST:PORT, such as 127.0.0.1:7655")
    yield add_port(server, listen, certificate)


def _usable(listen: str) -> Path:
    path = Path(listen.removeprefix(UNIX))
    if not path.is_absolute():
        raise ValueError(f"{listen!r} is not an absolute path; use one such as unix:/run/relay.sock")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(
            f"the socket's path has {len(os.fsencode(path))} bytes, and at most {_LONGEST_PATH} are allowed: {path}. "
            "Use a shorter one: --listen unix:PATH, and TRACKER_RELAY=unix:PATH for its clients"
        )
    return path


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    beside = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Do not follow a link, and do not wait for the other end of a pipe: another user who can write in this
        # directory may have put one there.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(beside, flags, 0o600)
    except OSError as error:
        raise CannotListenError(f"cannot listen on {path}: {error}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise CannotListenError(
                f"cannot listen on {path}: its lock {beside} is not a file of this user ({os.geteuid()}); "
                "remove it, or listen elsewhere"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotListenError(f"another relay listens on {path}") from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _socket(server: grpc.aio.Server, path: Path, mode: int) -> Iterator[None]:
    """Have the server listen at a path while the context lasts. The caller holds the lock."""
    _clear(path)
    own = path.with_name(f".{secrets.token_hex(3)}")
    if len(os.fsencode(own)) > _LONGEST_PATH:
        own = path.with_name(f"{path.name[:-2]}{secrets.token_hex(1)}")
    before = os.umask(0o777 & ~mode)  # so that other users cannot connect even for a moment
    try:
        add_port(server, f"{UNIX}{own}")
    finally:
        os.umask(before)
    bound = own.lstat()
    try:
        os.link(own, path)
    except OSError as error:
        raise CannotListenError(f"cannot listen on {path}: {error}") from error
    finally:
        own.unlink()
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            now = path.lstat()
            if (now.st_dev, now.st_ino) == (bound.st_dev, bound.st_ino):
                path.unlink()
            else:
                log.warning("the relay's socket was replaced by another, which stays", extra={"path": str(path)})


def _clear(path: Path) -> None:
    """Remove a dead relay's socket.

    Raises:
        CannotListenError: the path has something else.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotListenError(f"cannot listen on {path}: {error}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotListenError(
            f"cannot listen on {path}: a file that is not a socket exists there; remove it, or listen elsewhere"
        )
    if found.st_uid != os.geteuid():
        raise CannotListenError(
            f"cannot listen on {path}: the socket there belongs to user {found.st_uid}, not to this one "
            f"({os.geteuid()}); let that user remove it, or listen elsewhere"
        )
    if _is_alive(path):
        raise CannotListenError(
            f"cannot listen on {path}: another program uses the socket there; stop it, or listen elsewhere"
        )
    path.unlink(missing_ok=True)


def _is_alive(path: Path) -> bool:
    """Return whether a program has the socket at a path: only a refused connection means that none has."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a program that listens but accepts no connections is alive, too
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return _is_bound(path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
    return True


def _is_bound(path: Path) -> bool:
    """Return whether a program of this network namespace has a socket at the path and does not listen yet."""
    try:
        table = Path("/proc/net/unix").read_bytes()
    except OSError:
        return False
    return any(line.split(maxsplit=7)[7:] == [os.fsencode(path)] for line in table.splitlines())


_GRACE_S = 10.0  # seconds that reports under way get when the relay stops


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a relay.

    Raises:
        ValueError: an option is out of range.

    >>> Options(server="tracker.shop:7654", listen="unix:/run/relay.sock").max_delay
    0.005
    """

    server: str  #: the tracker's address, or several joined by ``+``, exactly as its clients use it
    listen: str  #: ``unix:PATH`` or ``HOST:PORT``; port 0 picks one
    socket_mode: int = 0o660  #: the permissions of the socket file
    max_delay: float = 0.005  #: the most seconds that a report waits for others
    max_pending_bytes: int = 256 << 20  #: of requests that are not answered yet, and of one message
    metrics: str = ""  #: HOST:PORT of `/metrics`, `/healthz` and `/readyz`; port 0 picks one; "" serves none
    credentials: Credentials = field(default_factory=Credentials)  #: what it shows to the tracker
    security: Security = field(default_factory=Security)  #: who may call it

    def __post_init__(self) -> None:
        if self.max_delay < 0 or self.max_pending_bytes < 1:
            raise ValueError("the delay must not be negative, and max-pending must be above zero")
        alternatives(self.server)


async def relay(options: Options) -> None:
    """Relay until SIGTERM or SIGINT; print ``listening on ADDRESS`` when ready. The tracker need not run yet.

    With `options.metrics`, a second line has ``metrics on http://HOST:PORT``.

    Raises:
        ValueError: `options.listen` or `options.metrics` has a wrong form, or what protects the relay cannot be used.
        CredentialsError: the relay's own certificate or token cannot be read.
        tracker.wire.addresses.CannotListenError: another program uses the address, or this process cannot listen there.
    """
    options.security.check_exposed(options.listen)
    if options.metrics:
        options.security.check_exposed(options.metrics, "metrics")
    guard, certificate = options.security.guard, options.security.certificate
    upstream = Upstream(options.server, options.credentials)
    upstream.check_token()  # a token that cannot be read ends the start, not each report
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with upstream, AsyncExitStack() as stack:
        budget = Budget(options.max_pending_bytes)
        accepts = False

        def missing() -> str:
            return upstream.missing() if accepts else "the relay is starting or stopping"

        metrics = RelayMetrics(missing, lambda: budget.pending, budget.most)
        handlers = Relay(
            options.server,
            upstream,
            options.max_delay,
            budget,
            metrics,
            guard,
            options.credentials.cert is not None,
        )
        url = ""
        if options.metrics:
            # Loaded for those alone who look.
            from starlette.middleware import Middleware

            from tracker.security.http import HttpGuard, serving
            from tracker.web.listening import application

            guarded = Middleware(HttpGuard, guard=guard, listen=options.metrics)
            site = application(metrics.scrape, missing, middleware=[guarded])
            url = await stack.enter_async_context(serving(site, options.metrics, certificate))
        transport = Transport(SERVICE, handlers, options.max_pending_bytes)
        with bound(transport.server, options.listen, options.socket_mode, certificate) as address:
            await transport.start()
            following = asyncio.create_task(guard.follow())
            place = {"metrics": url} if url else {}
            log.info("relaying", extra={"server": options.server, "listen": address, **place})
            print(f"listening on {address}", flush=True)
            if url:
                print(f"metrics on {url}", flush=True)
            accepts = True
            await stop.wait()
            log.info("stopping")
            accepts = False
            await transport.leave()
            handlers.stop()
            following.cancel()
            await transport.stop(_GRACE_S)
        gatherer = handlers.gatherer
        log.info("stopped", extra={"reports": gatherer.taken, "messages": gatherer.sent})
