"""Identification of a caller, and checks of what the caller may do, from a call's first message to its last.

The tokens file is read again when it changes (`Guard.follow`). A call that lasts, such as a watch, is checked again
before each message once the file has changed: a client that was removed gets nothing more.

`Security` has what an operator asks for, and refuses to listen where that protects nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from tracker.wire.addresses import host_and_port, is_local

from .identities import (
    ANYBODY,
    HTTP,
    NEEDED,
    UNBOUNDED,
    Clients,
    DeniedError,
    Identity,
    Scope,
    TokensFileError,
    Usage,
    read_clients,
    unauthenticated,
)
from .transport import Certificate

log = logging.getLogger("tracker.security")

_LOOK_S: Final = 1.0  # between two looks at the tokens file
_PREFIX: Final = 4  # bytes of a hash by which it is looked up
_SCOPES: Final = NEEDED | HTTP
_NO_TOKEN: Final = (
    "the call carries no token; name the file that holds it: --token-file FILE or TRACKER_TOKEN_FILE for the command "
    "line, Credentials(token_file=…) for a client"
)


class Guard:
    """Registry of a server's clients.

    Args:
        tokens: the tokens file; None: there is none.
        certificates: whether every client has shown a certificate of a trusted authority.
        now: a monotonic clock, in seconds, for quotas.

    Raises:
        TokensFileError: the file cannot be read, or something is wrong in it.
    """

    def __init__(
        self, tokens: Path | None = None, certificates: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = tokens
        self._certificates = certificates
        self._now = now
        self._usages: dict[str, Usage] = {}  # by client
        self._unbounded = Usage("", UNBOUNDED, now)  # of every client without a quota
        self.generation = 0  #: grows when the clients change
        self._stamp = _stamp(tokens) if tokens else None
        self._clients = read_clients(tokens) if tokens else Clients()
        self._by_prefix = _by_prefix(self._clients)

    @property
    def is_open(self) -> bool:
        """Return whether the guard lets anybody do anything."""
        return self._path is None and not self._certificates

    # ---------------------------------------------------------------- callers

    def caller(
        self,
        call: str,
        metadata: Iterable[tuple[str, str | bytes]] | None,
        transport: Callable[[], Mapping[str, Iterable[bytes]]],
        peer: Callable[[], str] = str,
    ) -> Caller:
        """Return who makes a call.

        Args:
            call: the call's name, such as ``Report``, or one of `HTTP`.
            transport: returns gRPC's `auth_context` of the call, which takes a while.
            peer: returns the address from which it comes.

        Raises:
            Refused: ``UNAUTHENTICATED``: the caller is not known. ``PERMISSION_DENIED``: it may not make this call.
        """
        if self.is_open:
            return Caller(self, call, ANYBODY, None, (), peer)
        token = _bearer(metadata or ()) if self._path else None
        names = () if token is not None or not self._certificates else _names(transport())
        digest = None if token is None else hashlib.sha256(token).digest()
        return Caller(self, call, self.identify(digest, names), digest, names, peer)

    def identify(self, digest: bytes | None, names: tuple[str, ...]) -> Identity:
        """Return the client with a token of this hash, or else with a certificate of these names."""
        if digest is not None:
            # The hashes are compared in constant time, though even a whole hash would not help to find its token.
            for known, identity in self._by_prefix.get(digest[:_PREFIX], ()):
                if hmac.compare_digest(known, digest):
                    return identity
            raise unauthenticated(
                "the server does not know this token; `tracker token new` makes one and prints the entry for the "
                "server's tokens file. If it was replaced, write the new one to the client's token file"
            )
        if not self._certificates or not names:
            raise unauthenticated(_NO_TOKEN)
        if self._path is None:
            return Identity(names[0], ANYBODY.scopes)
        for name in names:
            if (found := self._clients.by_certificate.get(name)) is not None:
                return found
        raise DeniedError(
            names[0],
            f"no client of the server's tokens file has a certificate of the name {names[0][:100]!r}; add an entry "
            'with certificate = "…", or give the client a token',
        )

    def usage(self, identity: Identity) -> Usage:
        """Return what a client has taken of its quotas."""
        if identity.quotas == UNBOUNDED:
            return self._unbounded
        usage = self._usages.get(identity.name)
        if usage is None:
            usage = self._usages[identity.name] = Usage(identity.name, identity.quotas, self._now)
        elif usage.quotas != identity.quotas:
            usage.use(identity.quotas)
        return usage

    # ---------------------------------------------------------------- the file

    async def follow(self) -> None:
        """Read the file again when it changes, until cancelled. A file with a mistake changes nothing, but a log line.

        Its modification time, size and inode number count, so a file may be replaced as a whole, as Kubernetes does.
        """
        while self._path is not None:
            try:
                await asyncio.to_thread(self.reread)
            except Exception:  # a file that is not followed any more would let removed clients in
                log.exception("the tokens file could not be read; it is tried again")
            await asyncio.sleep(_LOOK_S)

    def reread(self) -> None:
        """Read the file again if it has changed."""
        assert self._path is not None
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            clients = read_clients(self._path)
            if not (clients.by_hash or clients.by_certificate):
                _refuse_blank(self._path)
        except TokensFileError as wrong:
            log.error("the clients stay as they were", extra={"error": str(wrong)})
            return
        self._clients, self._by_prefix = clients, _by_prefix(clients)
        known = {each.name for each in (*clients.by_hash.values(), *clients.by_certificate.values())}
        self._usages = {name: usage for name, usage in self._usages.items() if name in known}
        self.generation += 1
        log.info("the clients were read again", extra={"tokens": len(clients.by_hash)})


class Caller:
    """Caller, and what the caller may do."""

    __slots__ = ("_call", "_digest", "_generation", "_guard", "_job", "_names", "identity", "peer", "usage")

    def __init__(
        self,
        guard: Guard,
        call: str,
        identity: Identity,
        digest: bytes | None,
        names: tuple[str, ...],
        peer: Callable[[], str],
    ) -> None:
        self._guard = guard
        self._call = call
        self._digest = digest
        self._names = names
        self._generation = guard.generation
        self._job: str | None = None  # the last job that was allowed
        self.identity = identity
        self.peer = peer
        self.usage = guard.usage(identity)
        identity.check_scope(call, _SCOPES[call])

    def authorize(self, job: str, more: Scope | None = None) -> None:
        """Refuse the call for a job with which this client may not do it, or may no longer.

        Args:
            more: a scope that the call needs besides.
        """
        if self._generation != self._guard.generation:
            self.renew()
        if job != self._job:
            self.identity.check_job(job)
            self._job = job
        if more is not None:
            self.identity.check_scope(self._call, more)

    def authorize_all(self) -> None:
        """Refuse a call that concerns all jobs to a client that may not, or may no longer, touch each of them."""
        if self._generation != self._guard.generation:
            self.renew()
        self.identity.check_all_jobs(self._call)

    def renew(self) -> None:
        """Take the client from the file as it is now."""
        self._generation, self._job = self._guard.generation, None
        if not self._guard.is_open:
            self.identity = self._guard.identify(self._digest, self._names)
            self.usage = self._guard.usage(self.identity)
        self.identity.check_scope(self._call, _SCOPES[self._call])


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Return the token of a call; None if it has none.

    Raises:
        Refused: ``UNAUTHENTICATED``: it has something else in its place.
    """
    values = [value for key, value in metadata if key == "authorization"]
    if not values:
        return None
    value = values[0].encode() if isinstance(values[0], str) else values[0]
    scheme, _, token = value.partition(b" ")
    if len(values) > 1 or scheme.lower() != b"bearer" or not token.strip():
        raise unauthenticated("the call needs one header `authorization: Bearer TOKEN`, and has another form of it")
    return token.strip()


def _names(transport: Mapping[str, Iterable[bytes]]) -> tuple[str, ...]:
    """Return the names in the certificate that a caller has shown: the common name, then the alternative ones."""
    found = [*transport.get("x509_common_name", ()), *transport.get("x509_subject_alternative_name", ())]
    return tuple(dict.fromkeys(name.decode(errors="replace") for name in found if name))


def _by_prefix(clients: Clients) -> dict[bytes, list[tuple[bytes, Identity]]]:
    found: dict[bytes, list[tuple[bytes, Identity]]] = {}
    for digest, identity in clients.by_hash.items():
        found.setdefault(digest[:_PREFIX], []).append((digest, identity))
    return found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _refuse_blank(path: Path) -> None:
    """Refuse a file of nothing: it is being written, and to let nobody in needs a file that has at least a comment."""
    try:
        blank = not path.read_bytes().strip()
    except OSError as failed:
        raise TokensFileError(f"the tokens file {path} cannot be read: {failed.strerror}") from failed
    if blank:
        raise TokensFileError(f"the tokens file {path} is empty; to remove all clients, leave a comment in it")


@dataclass(frozen=True)
class Security:
    """Protection of a server or a relay. Without any, it serves anybody who can connect.

    Args:
        tls_cert: the file of its certificate (PEM); "": no TLS.
        tls_key: the file of the key.
        tls_client_ca: the authorities of the clients' certificates, which every client has to show; "": none has to.
        tokens: the tokens file; "": none.
        insecure: listen beyond this machine without TLS, or without knowing the clients.
        prefix: what the options' names begin with, for messages.

    Raises:
        ValueError: an option lacks the one that it belongs to.

    >>> Security(tls_cert="server.pem")
    Traceback (most recent call last):
    ValueError: --tls-cert and --tls-key belong together: give both, or neither
    """

    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tokens: str = ""
    insecure: bool = False
    prefix: str = "--"

    def __post_init__(self) -> None:
        cert, key, client_ca = (f"{self.prefix}{name}" for name in ("tls-cert", "tls-key", "tls-client-ca"))
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError(f"{cert} and {key} belong together: give both, or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError(f"{client_ca} needs {cert} and {key}: clients show certificates in TLS only")

    def check_exposed(self, listen: str, what: str = "calls") -> None:
        """Refuse to listen beyond this machine without protection.

        Args:
            listen: the address as configured, ``HOST:PORT`` or ``unix:PATH``.
            what: what is served there, for the message.

        Raises:
            ValueError: other machines reach the address, and TLS or the clients that may call are missing.
        """
        if self.insecure or is_local(listen):
            return
        try:
            host_and_port(listen)
        except ValueError:
            return  # who binds it refuses the form
        own = self.prefix
        missing = [] if self.tls_cert else [f"TLS ({own}tls-cert FILE {own}tls-key FILE)"]
        if not self.tokens and not self.tls_client_ca:
            missing.append(f"clients ({own}tokens FILE, or {own}tls-client-ca FILE)")
        if missing:
            raise ValueError(
                f"{listen} is beyond this machine, and to serve {what} there needs {' and '.join(missing)}; "
                "docs/howto/security.md has the five commands. If the network protects it, allow it with --insecure"
            )

    @cached_property
    def guard(self) -> Guard:
        """Return who may call.

        Raises:
            ValueError: the tokens file cannot be used.
        """
        return Guard(Path(self.tokens) if self.tokens else None, bool(self.tls_client_ca))

    @cached_property
    def certificate(self) -> Certificate | None:
        """The certificate; None without TLS.

        Raises:
            ValueError: it cannot be used.
        """
        if not self.tls_cert:
            return None
        return Certificate(
            Path(self.tls_cert), Path(self.tls_key), Path(self.tls_client_ca) if self.tls_client_ca else None
        )
