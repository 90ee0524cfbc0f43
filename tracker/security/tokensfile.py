"""The tokens file: which clients a server knows, by the hashes of their tokens or the names in their certificates.

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

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from .identities import Identity
from .minting import check_name
from .quotas import Quotas
from .scopes import Scope

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
