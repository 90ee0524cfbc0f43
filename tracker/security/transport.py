"""A gRPC server: the address on which it listens, its standard services, and its certificate.

The certificate is read again when its files change, without a restart and without ending a connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tracker.wire.addresses import UNIX, CannotListenError, host_and_port

log = logging.getLogger("tracker.security")

_LOOK_S: Final = 1.0  # between two looks at the files, for HTTPS
_Stamps: TypeAlias = tuple[tuple[int, int, int], ...]


class CertificateError(ValueError):
    """A certificate or its key cannot be used; the message names the files."""


class Certificate:
    """A server's certificate and key, and the authorities of its clients.

    New connections get what is in the files. Files that cannot be used, such as a new certificate whose key is not
    there yet, change nothing: they are read again with the next connection.

    Args:
        cert: the file of the certificate, with its chain (PEM).
        key: the file of its key (PEM).
        client_ca: the file of the authorities whose certificates clients have to show; None: clients show none.

    Raises:
        CertificateError: a file cannot be read, or the key is not the certificate's.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._files = [cert, key, *([client_ca] if client_ca else [])]
        self._mutual = client_ca is not None
        self._lock = threading.Lock()
        self._stamps = self._current()
        self._first = self._read()
        self._failed = False

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(self._first, self._changed, self._mutual)

    def context(self) -> ssl.SSLContext:
        """Return the context of an HTTPS server. It asks for no certificates: browsers and probes have none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._files[0], self._files[1], password=_no_password)
        return context

    async def follow(self, context: ssl.SSLContext) -> None:
        """Have a context use the content of the files when they change, until cancelled."""
        stamps = self._current()
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                new = self._current()
                if new != stamps:
                    self._read()  # a certificate without its key would leave the context with half of it
                    context.load_cert_chain(self._files[0], self._files[1], password=_no_password)
                    stamps = new
            except (OSError, CertificateError):
                continue  # gRPC's side logs it

    def _changed(self) -> Any:
        """Return the new content of the files; None if it is the old one. gRPC's threads call it."""
        with self._lock:
            try:
                stamps = self._current()
                if stamps == self._stamps:
                    return None
                configuration = self._read()
            except CertificateError as wrong:
                if not self._failed:  # once, and not with each connection
                    log.error("the certificate stays as it was", extra={"error": str(wrong)})
                self._failed = True
                return None
            self._stamps, self._failed = stamps, False
            log.info("the certificate was read again", extra={"file": str(self._files[0])})
            return configuration

    def _read(self) -> Any:
        """Return gRPC's configuration, for which it has no type."""
        cert, key, *client_ca = self._files
        check = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            check.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ValueError) as wrong:
            raise CertificateError(
                f"the certificate {cert} and its key {key} cannot be used: {_text(wrong)}; both must be PEM files, the "
                "key without a password, and of this certificate"
            ) from wrong
        try:
            if client_ca:
                check.load_verify_locations(client_ca[0])
        except (OSError, ValueError) as wrong:
            raise CertificateError(
                f"the authorities {client_ca[0]} cannot be used: {_text(wrong)}; give a PEM file"
            ) from wrong
        content = [file.read_bytes() for file in self._files]
        return grpc.ssl_server_certificate_configuration([(content[1], content[0])], *content[2:])

    def _current(self) -> _Stamps:
        try:
            found = [os.stat(file) for file in self._files]
        except OSError as failed:
            raise CertificateError(f"{failed.filename} cannot be read: {failed.strerror}") from failed
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def _no_password() -> str:
    raise ValueError("the key has a password")


def _text(wrong: Exception) -> str:
    if isinstance(wrong, ssl.SSLError):
        return wrong.reason or "it is not in PEM form"
    return (wrong.strerror if isinstance(wrong, OSError) else None) or str(wrong)


_OPTIONS = (
    ("grpc.so_reuseport", 0),  # with it, two servers on one port would each get a part of the callers
    ("grpc.max_send_message_length", -1),
    # Watchers may ping often, to find out whether a silent server is still there.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    # The server closes the connection of a watcher whose machine is gone.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)


class Transport:
    """Server of gRPC calls.

    Args:
        largest: bytes of one message, at most: a larger one fails without a reason.
        options: of gRPC, besides those that every server has.

    Attributes:
        server: the server of gRPC, to which handlers and ports are added.
    """

    def __init__(
        self, service: str, handlers: grpc.GenericRpcHandler, largest: int, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._service = service
        self.server = grpc.aio.server(options=[*_OPTIONS, ("grpc.max_receive_message_length", largest), *options])
        self._health = health.aio.HealthServicer()
        self.server.add_generic_rpc_handlers((handlers,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)

    def reflect(self) -> None:
        """Serve gRPC reflection, which lists services and messages."""
        services = (self._service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, self.server)

    async def start(self) -> None:
        """Accept calls, and announce that they are."""
        await self.server.start()
        await self.set_health(True)

    async def set_health(self, works: bool) -> None:
        """Announce whether the server does its work."""
        status = health_pb2.HealthCheckResponse.SERVING if works else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", self._service):
            await self._health.set(name, status)

    async def leave(self) -> None:
        """Announce that the server is about to stop."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, and give those under way so many seconds."""
        await self.server.stop(grace_s)


def add_port(server: grpc.aio.Server, address: str, certificate: Certificate | None = None) -> str:
    """Have a server listen on an address, and return the address that callers have to use.

    Args:
        address: ``HOST:PORT``, where port 0 picks one; or ``unix:PATH``, whose file is replaced.
        certificate: the server's; None: callers are not encrypted.

    Raises:
        CannotListenError: another program uses the address, or this machine does not have it.
    """
    try:
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificate.credentials())
    except RuntimeError as error:
        raise cannot_listen(address) from error
    return address if address.startswith(UNIX) else f"{host_and_port(address)[0]}:{port}"


def cannot_listen(address: str) -> CannotListenError:
    """Return the error that an address cannot be had."""
    return CannotListenError(
        f"cannot listen on {address}; check that no other server uses it and that the host is this machine"
    )
