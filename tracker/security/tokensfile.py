"""The tokens file: clients by the hashes of their tokens or the names in their certificates, and new entries for it.

    [clients.flights-job]
    sha256 = "9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"
    scopes = ["report", "watch"]
    jobs = ["flights", "flights.*"]

    [clients.node-relay]
    certificate = "relay.shop"
    scopes = ["report"]
    jobs = ["*"]

    [clients.flights-job.quotas]
    entries_per_second = 1_000_000

`sha256` may be a list: while a token is replaced, both count. A table `[quotas]` is for the clients that have none.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from .identities import Identity, Quotas, Scope

_KEYS: Final = ("sha256", "certificate", "scopes", "jobs", "quotas")
_QUOTAS: Final = tuple(each.name for each in fields(Quotas))
_WHOLE: Final = ("open_substreams", "watchers")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_SECRETS: Final = ("token", "password", "secret")
_LARGEST: Final = 4 << 20  # bytes
_MOST: Final = 1e15  # of any quota


class TokensFileError(ValueError):
    """The tokens file cannot be read, or something is wrong in it. The message has no hash and no token."""


@dataclass(frozen=True)
class Clients:
    """The clients of a file.

    Args:
        by_hash: by the SHA-256 of each token.
        by_certificate: by the name in their certificates.
    """

    by_hash: Mapping[bytes, Identity] = field(default_factory=dict, repr=False)
    by_certificate: Mapping[str, Identity] = field(default_factory=dict)


def read_clients(path: Path) -> Clients:
    """Read a tokens file.

    Raises:
        TokensFileError: it cannot be read, or something is wrong in it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as failed:
        raise TokensFileError(f"the tokens file {path} cannot be read: {failed.strerror}") from failed
    if len(text) > _LARGEST:
        raise TokensFileError(f"the tokens file {path} has more than {_LARGEST >> 20} MiB")
    try:
        return parse_clients(text.decode())
    except TokensFileError as wrong:
        raise TokensFileError(f"the tokens file {path}: {wrong}") from wrong
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        # The error of the parser may contain a part of the file.
        place = re.search(r"at line \d+, column \d+", str(wrong))
        raise TokensFileError(f"the tokens file {path} is not valid TOML {place[0] if place else ''}".strip()) from None


def parse_clients(text: str) -> Clients:
    """Return the clients of a tokens file's text.

    Raises:
        TokensFileError, tomllib.TOMLDecodeError: something is wrong in it.

    >>> clients = parse_clients('''
    ... [clients.relay]
    ... certificate = "relay.shop"
    ... scopes = ["report"]
    ... jobs = ["*"]
    ... ''')
    >>> clients.by_certificate["relay.shop"].name
    'relay'
    """
    document = tomllib.loads(text)
    _known(document, ("clients", "quotas"), "the file")
    usual = _quotas(document.get("quotas", {}), "[quotas]")
    clients = document.get("clients", {})
    if not isinstance(clients, dict):
        raise TokensFileError("clients must be tables: [clients.NAME]")
    by_hash: dict[bytes, Identity] = {}
    by_certificate: dict[str, Identity] = {}
    for name, values in clients.items():
        identity, hashes, certificate = _client(name, values, usual)
        for each in hashes:
            if each in by_hash:
                raise TokensFileError(f"clients {by_hash[each].name!r} and {name!r} have the same token")
            by_hash[each] = identity
        if certificate:
            if certificate in by_certificate:
                other = by_certificate[certificate].name
                raise TokensFileError(f"clients {other!r} and {name!r} have the same certificate = {certificate!r}")
            by_certificate[certificate] = identity
    return Clients(by_hash, by_certificate)


def _client(name: str, values: Any, usual: Quotas) -> tuple[Identity, list[bytes], str]:
    section = f"[clients.{name}]"
    try:
        check_name(name)
    except ValueError as wrong:
        raise TokensFileError(str(wrong)) from None
    if not isinstance(values, dict):
        raise TokensFileError(f"{section} must be a table")
    _known(values, _KEYS, section)
    hashes = [values["sha256"]] if isinstance(values.get("sha256"), str) else values.get("sha256", [])
    if not isinstance(hashes, list) or not all(isinstance(each, str) and _HASH.fullmatch(each) for each in hashes):
        raise TokensFileError(
            f"{section} sha256 must be the SHA-256 of a token, as 64 small hexadecimal digits, or a list of them; "
            "`tracker token new` prints one"
        )
    certificate = values.get("certificate", "")
    if not isinstance(certificate, str):
        raise TokensFileError(f"{section} certificate must be a name in the client's certificate, as a text")
    if not hashes and not certificate:
        raise TokensFileError(f"{section} needs sha256 or certificate; `tracker token new` prints an entry")
    scopes = _texts(values, "scopes", section)
    if unknown := [scope for scope in scopes if scope not in [*Scope]]:
        raise TokensFileError(f"{section} scopes: {unknown[0]!r} is not one of {', '.join(Scope)}")
    quotas = _quotas(values["quotas"], f"[clients.{name}.quotas]") if "quotas" in values else usual
    identity = Identity(name, frozenset(map(Scope, scopes)), tuple(_texts(values, "jobs", section)), quotas)
    return identity, [bytes.fromhex(each) for each in hashes], certificate


def _quotas(values: Any, section: str) -> Quotas:
    if not isinstance(values, dict):
        raise TokensFileError(f"{section} must be a table")
    _known(values, _QUOTAS, section)
    for key, value in values.items():
        whole = key in _WHOLE
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not 0 < value < _MOST:
            raise TokensFileError(f"{section} {key} must be a {'whole number' if whole else 'number'} above 0")
    return Quotas(**values)


def _texts(values: Mapping[str, Any], key: str, section: str) -> list[str]:
    found = values.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) and each for each in found):
        example = '["report", "watch"]' if key == "scopes" else '["flights*"], or ["*"] for all'
        raise TokensFileError(f"{section} {key} must be a list of texts, such as {key} = {example}")
    return found


def _known(values: Mapping[str, Any], known: tuple[str, ...], section: str) -> None:
    for key in values:
        if key in _SECRETS:
            raise TokensFileError(f"{section} {key} does not belong here: the file has hashes only, as sha256 = …")
        if key not in known:
            raise TokensFileError(f"{section} has {key[:100]!r}, which is not known; known are {', '.join(known)}")


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
        token: its token, of which only the hash is in the entry.
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
        ValueError: the name is longer, or has other characters, than a client's name may.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name[:100]!r} cannot be a client's name: use letters, digits, '.', '_', '@' and '-', at most 63"
        )
