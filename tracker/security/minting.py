"""New tokens, and the entries of the tokens file for them. The file has only hashes: a copy of it opens nothing."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from typing import Final

_PREFIX: Final = "trk_"  # by which scanners of repositories and logs recognise a token
_BYTES: Final = 32
#: The form of a client's name. It gets into logs, and into the names of quotas.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def new_token() -> str:
    """Return a token that nobody can guess.

    >>> len(new_token()), new_token() == new_token()
    (47, False)
    """
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def hash_of(token: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal digits.

    A plain hash is enough: it cannot be inverted for a token with 256 random bits, as it could for a password.

    >>> hash_of("trk_example")[:16]
    'c871e3438173aafb'
    """
    return hashlib.sha256(token.encode()).hexdigest()


def entry(name: str, token: str, scopes: Sequence[str], jobs: Sequence[str]) -> str:
    """Return the lines of the tokens file for a client.

    Args:
        name: the client's.
        token: its token, of which only the hash is in the entry.
        scopes: what it may do.
        jobs: globs of the jobs' names.

    Raises:
        ValueError: the name has another form than `NAME`.

    >>> print(entry("shop", "trk_example", ["report"], ["shop*"]))
    [clients.shop]
    sha256 = "c871e3438173aafbee3005b6553d5ba8917dc5fae4fbfc36b0b18c815741bda4"
    scopes = ["report"]
    jobs = ["shop*"]
    """
    check_name(name)
    key = name if _BARE.fullmatch(name) else json.dumps(name)
    values = {"sha256": hash_of(token), "scopes": [*scopes], "jobs": [*jobs]}
    # A JSON text or list is one of TOML, too, except for these two characters.
    lines = (f"{name} = {json.dumps(value, ensure_ascii=True)}" for name, value in values.items())
    return "\n".join([f"[clients.{key}]", *lines])


def check_name(name: str) -> None:
    """Refuse a client's name of another form.

    Raises:
        ValueError: it has.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name[:100]!r} cannot be a client's name: use letters, digits, '.', '_', '@' and '-', at most 63"
        )
