"""Settings of an operator, and the refusal to listen where they protect nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tracker.wire.addresses import host_and_port, is_local

from .certificates import Certificate
from .guard import Guard


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
            listen: ``HOST:PORT`` or ``unix:PATH``.
            what: what is served there, for the message.

        Raises:
            ValueError: it would.
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
