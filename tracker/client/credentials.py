"""Credentials of a client and what it expects of a tracker: certificates and a token, named by their files.

A value holds names of files and of a variable, never a secret. So it may be printed, logged and pickled: where it is
used, the files are read there.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import grpc

from tracker.client.errors import TrackerError
from tracker.wire.addresses import is_local

#: The environment variables that take the place of options.
VARIABLES: Final = {
    "ca": "TRACKER_TLS_CA",
    "cert": "TRACKER_TLS_CERT",
    "key": "TRACKER_TLS_KEY",
    "token_file": "TRACKER_TOKEN_FILE",
}
#: The variable with the token itself, for programs whose secrets are in their environment.
TOKEN_VARIABLE: Final = "TRACKER_TOKEN"
#: In place of a file of authorities: those that the system trusts.
SYSTEM: Final = "system"
_UNIX: Final = ("unix:", "unix-abstract:")


class CredentialsError(TrackerError):
    """A client's own credentials cannot be used; nothing was sent. Its reason is ``CREDENTIALS``."""

    def __init__(self, message: str) -> None:
        super().__init__("UNAUTHENTICATED", "CREDENTIALS", f"CREDENTIALS: {message}")
        self._message = message

    def __reduce__(self) -> tuple[type[CredentialsError], tuple[str]]:
        return CredentialsError, (self._message,)


@dataclass(frozen=True)
class Credentials:
    """Credentials of a tracker's client. Without any value it uses no TLS and no token.

    With `ca` or `cert` the client uses TLS. It never sends a token without TLS to another machine. The files are read
    where the client runs: on an executor, the executor's files. A token file is read again when it changes, so a token
    can be replaced while programs run.

    Args:
        ca: a file (PEM) of the authorities that may have signed the tracker's certificate, or ``system`` for those that
            the system trusts.
        cert: a file (PEM) of the client's own certificate, if the tracker asks for one.
        key: a file (PEM) of its key.
        token_file: a file that has the token, and nothing else.
        token_variable: the environment variable that has the token, if there is no file.

    Raises:
        ValueError: `cert` and `key` are not given together.

    >>> Credentials(ca="/etc/tracker/ca.pem", token_file="/run/secrets/token")
    Credentials(ca='/etc/tracker/ca.pem', token_file='/run/secrets/token')
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    token_variable: str | None = None

    def __post_init__(self) -> None:
        for name in VARIABLES:
            value = getattr(self, name)
            if value and value != SYSTEM:
                # A program may change its directory, and another one may get this value.
                object.__setattr__(self, name, str(Path(value).expanduser().absolute()))
        if bool(self.cert) != bool(self.key):
            raise ValueError("a client's certificate and its key belong together: give cert and key, or neither")

    def __repr__(self) -> str:
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return f"Credentials({', '.join(f'{name}={value!r}' for name, value in given if value)})"

    @classmethod
    def from_environment(cls) -> Credentials:
        """Return the credentials that the environment names: ``TRACKER_TLS_CA``, ``TRACKER_TLS_CERT``,
        ``TRACKER_TLS_KEY``, and ``TRACKER_TOKEN_FILE`` or else ``TRACKER_TOKEN``."""
        named = {name: os.environ.get(variable) or None for name, variable in VARIABLES.items()}
        return cls(**named, token_variable=None if named["token_file"] else TOKEN_VARIABLE)

    @property
    def uses_tls(self) -> bool:
        """Return whether connections to other machines use TLS."""
        return bool(self.ca or self.cert)

    def transport(self, address: str) -> grpc.ChannelCredentials | None:
        """Return the credentials of a channel; None: no TLS. The files are read now.

        Args:
            address: the server's. A socket file needs no TLS.

        Raises:
            CredentialsError: a file cannot be read.
        """
        if not self.uses_tls or address.startswith(_UNIX):
            return None
        ca = _read(_system_authorities() if self.ca in (SYSTEM, None) else str(self.ca), "authorities")
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(ca)
        return grpc.ssl_channel_credentials(ca, _read(self.key, "key"), _read(self.cert, "certificate"))

    def stamp(self) -> tuple[tuple[int, int] | None, ...]:
        """Return what changes when one of the certificates' files does."""
        return tuple(file_stamp(name) if name else None for name in (self.ca, self.cert, self.key))


class Bearer:
    """The token of a client's calls to an address, read again when its file changes."""

    def __init__(self, credentials: Credentials, address: str) -> None:
        self._credentials = credentials
        self._safe = credentials.uses_tls or is_local(address)
        self._address = address
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._metadata: tuple[tuple[str, str], ...] = ()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that carries the token; empty if there is none.

        Raises:
            CredentialsError: the token cannot be read, or TLS is missing to send it.
        """
        file, variable = self._credentials.token_file, self._credentials.token_variable
        if file is None:
            token = os.environ.get(variable, "") if variable else ""
            return self._of(token, f"the variable {variable}") if token else ()
        stamp = file_stamp(file)
        with self._lock:
            if stamp is None or stamp != self._stamp:
                text = _read(file, "token").decode(errors="replace")
                self._metadata, self._stamp = self._of(text, f"the token file {file}"), stamp
            return self._metadata

    def _of(self, text: str, place: str) -> tuple[tuple[str, str], ...]:
        token = text.strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise CredentialsError(f"{place} has to hold a token and nothing else; `tracker token new` makes one")
        if not self._safe:
            raise CredentialsError(
                f"the token would go to {self._address} in plain text: name the authorities of the tracker's "
                f"certificate, with --tls-ca FILE or {VARIABLES['ca']}, or Credentials(ca=…)"
            )
        return (("authorization", f"Bearer {token}"),)


def _read(file: str, what: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as failed:
        raise CredentialsError(f"the {what} file {file} cannot be read: {failed.strerror}") from failed


def file_stamp(file: str | Path) -> tuple[int, int] | None:
    """Return what differs when a file was replaced; None: it is not there."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _system_authorities() -> str:
    import ssl  # only this needs it, and every client would load it

    found = ssl.get_default_verify_paths().cafile
    if found is None:
        raise CredentialsError("this system has no file of trusted authorities; name one: --tls-ca FILE")
    return found
