"""A server's certificate, read again when its files change, without a restart and without ending a connection."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import threading
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc

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
