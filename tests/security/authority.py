"""A certificate authority of the tests' own, made by the command that docs/howto/security.md uses."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """Signs certificates, in a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self.ca = directory / f"{name}.pem"
        self._key = directory / f"{name}.key"
        _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", "-days", "2", "-keyout", self._key, "-out", self.ca)

    def sign(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
        """Sign a certificate and its key. A second one of the same name replaces both."""
        cert, key, request = (self._directory / f"{name}.{end}" for end in ("crt", "key", "csr"))
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", key,
                 "-out", request)  # fmt: skip
        _openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-copy_extensions", "copy",
                 "-days", "2", "-out", cert)  # fmt: skip
        return cert, key


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
