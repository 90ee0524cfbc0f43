"""Clients as the server knows them: their names, scopes and quotas, the scope that each call needs, and their file.

Quotas are rates, as token buckets, and numbers. A bucket holds what a rate gives in two seconds, so short bursts pass.
A caller may take more than the bucket holds: then the bucket is in debt, and gives nothing until the debt is paid. So a
large report passes as a whole, and the rate holds on average.

The tokens file has the clients by the hashes of their tokens or the names in their certificates:

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

import asyncio
import fnmatch
import hashlib
import json
import re
import secrets
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tracker.contract.refusal import Refusal, Refused
from tracker.python310 import StrEnum

_BURST_S: Final = 2.0
_HOLD_S: Final = 1.0  # the longest time for which the answer to a client beyond its quota is held back
_MOST_HELD: Final = 20  # answers to one client that are held back at a time


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of a client; None: no bound but the server's limits.

    >>> Quotas(calls_per_second=100).watchers is None
    True
    """

    calls_per_second: float | None = None
    entries_per_second: float | None = None  #: of reports
    names_per_second: float | None = None  #: substreams that its reports name for the first time
    open_substreams: int | None = None  #: of a job, beyond which its reports name no new ones
    watchers: int | None = None  #: watches, waits and streams of reports that it has under way


UNBOUNDED: Final = Quotas()


class Bucket:
    """A token bucket.

    Args:
        rate: what flows in, a second.
        now: the time, in seconds.

    >>> bucket = Bucket(rate=10, now=0)
    >>> bucket.take(25, now=0), bucket.take(1, now=0.25), bucket.take(1, now=0.75)
    (0.0, 0.25, 0.0)
    """

    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._level = rate * _BURST_S
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take an amount, unless the bucket is in debt.

        Args:
            now: the time, in seconds; one before the last changes nothing.

        Returns:
            0 if it was taken; else the seconds until the debt is paid.
        """
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._level = min(self._rate * _BURST_S, self._level + elapsed * self._rate)
        if self._level < 0:
            return -self._level / self._rate
        self._level -= amount
        return 0.0


class Usage:
    """Use of its quotas by one client. A call that takes too much is refused: ``QUOTA``, with the time until a retry.

    Args:
        client: its name, for messages.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, client: str, quotas: Quotas, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self.watchers = 0
        self._held = 0  # refusals that are held back
        self.use(quotas)

    def use(self, quotas: Quotas) -> None:
        """Go on with other quotas: the buckets are new, and what lasts is still counted."""
        self.quotas = quotas
        self._buckets = {
            name: Bucket(rate, self._now())
            for name in ("calls_per_second", "entries_per_second", "names_per_second")
            if (rate := getattr(quotas, name)) is not None
        }

    def take_call(self) -> None:
        """Count a call, or a report of a stream."""
        self._take("calls_per_second", 1)

    def take_entries(self, entries: int) -> None:
        """Count the entries of a report."""
        self._take("entries_per_second", entries)

    def take_names(self, new: int, open_substreams: Callable[[], int]) -> None:
        """Count substreams that a report names for the first time.

        Args:
            open_substreams: returns how many its job has besides.
        """
        if not new:
            return
        most = self.quotas.open_substreams
        if most is not None and (already := open_substreams()) + new > most:
            raise self._exceeded(
                f"open_substreams={most}", f"its job would have {already + new}; end substreams first", 1.0
            )
        self._take("names_per_second", new)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watch, a wait or a stream of reports while the context lasts."""
        most = self.quotas.watchers
        if most is not None and self.watchers >= most:
            raise self._exceeded(
                f"watchers={most}", "it has as many watches, waits and streams under way; end some", 1.0
            )
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    @asynccontextmanager
    async def calling(self, lasts: bool) -> AsyncIterator[None]:
        """Count a call while the context lasts. A refusal by a quota is held back a while: see `hold`.

        Args:
            lasts: whether the call is a watch, a wait or a stream.
        """
        try:
            self.take_call()
            with self.watching() if lasts else nullcontext():
                yield
        except Refused as refused:
            await self.hold(refused)
            raise

    async def hold(self, refused: Refused) -> None:
        """Wait before a client that is beyond a quota is refused.

        A client that floods and does not obey the answer would be answered thousands of times a second, which costs all
        others more than its calls. Only a few answers of a client are held at a time.
        """
        is_bound = refused.reason == Refusal.QUOTA and self.quotas != UNBOUNDED
        if not is_bound or refused.retry_after is None or self._held >= _MOST_HELD:
            return
        self._held += 1
        try:
            pause = min(refused.retry_after, _HOLD_S)
            await asyncio.sleep(pause)
            refused.retry_after -= pause
        finally:
            self._held -= 1

    def _take(self, name: str, amount: float) -> None:
        bucket = self._buckets.get(name)
        if bucket is not None and (wait := bucket.take(amount, self._now())):
            raise self._exceeded(f"{name}={getattr(self.quotas, name):g}", f"retry in {wait:.3g} s, ask for less", wait)

    def _exceeded(self, quota: str, advice: str, wait: float) -> Refused:
        return Refused(
            Refusal.QUOTA,
            f"quota {quota} of client {self._client!r} exceeded: {advice}, or raise the quota in the server's tokens "
            "file",
            retry_after=wait,
        )


class Scope(StrEnum):
    """A part of the contract that a client may be allowed to use."""

    REPORT = "report"  #: what a job does: define itself, open producers, report, commit
    WATCH = "watch"  #: read states and events, with subscriptions
    OPERATE = "operate"  #: interfere: drain, abandon, finish fronts, forget producers; includes watch
    BACKUP = "backup"  #: read the whole state, of all jobs
    ADMIN = "admin"  #: delete jobs, move the leader; includes all others


#: The scope that each call needs; None: any client that is known may make it.
NEEDED: Final[dict[str, Scope | None]] = {
    "GetServerInfo": None,
    "ListJobs": None,  # it lists those jobs that the client's patterns match
    "DefineJob": Scope.REPORT,  # with `force`, which ends what is open, it needs FORCE
    "OpenProducer": Scope.REPORT,
    "CloseProducer": Scope.REPORT,
    "Report": Scope.REPORT,
    "ReportStream": Scope.REPORT,
    "Commit": Scope.REPORT,
    "GetJob": Scope.WATCH,
    "Watch": Scope.WATCH,
    "ListEvents": Scope.WATCH,
    "Await": Scope.WATCH,
    "AwaitThrough": Scope.WATCH,
    "Subscribe": Scope.WATCH,
    "Ack": Scope.WATCH,
    "Unsubscribe": Scope.WATCH,
    "ListSubscriptions": Scope.WATCH,
    "ListSubstreams": Scope.WATCH,
    "Explain": Scope.WATCH,
    "GetDrain": Scope.WATCH,
    "Drain": Scope.OPERATE,
    "CancelDrain": Scope.OPERATE,
    "Abandon": Scope.OPERATE,
    "FinishFront": Scope.OPERATE,
    "ForgetProducer": Scope.OPERATE,
    "DeleteJob": Scope.ADMIN,
    "Backup": Scope.BACKUP,  # with a pattern for all jobs, and so does MoveLeader
    "MoveLeader": Scope.ADMIN,
}
#: Documents that are read by HTTP.
PAGE: Final = "the status page"
METRICS: Final = "the metrics"
HTTP: Final[dict[str, Scope | None]] = {PAGE: Scope.WATCH, METRICS: Scope.WATCH}
#: Scope that DefineJob needs with `force`.
FORCE: Final = Scope.OPERATE

_INCLUDED: Final = {Scope.OPERATE: {Scope.WATCH}, Scope.ADMIN: {*Scope}}


def with_included(scopes: frozenset[Scope]) -> frozenset[Scope]:
    """Return the scopes with those that they include.

    >>> sorted(with_included(frozenset({Scope.OPERATE})))
    [<Scope.OPERATE: 'operate'>, <Scope.WATCH: 'watch'>]
    """
    return scopes.union(*(_INCLUDED.get(scope, ()) for scope in scopes))


@dataclass(frozen=True)
class Identity:
    """A client.

    Args:
        name: as operators call it; logs have it.
        jobs: globs of the jobs' names with which it may do that.

    >>> shop = Identity("shop", frozenset({Scope.REPORT}), ("shop", "shop.*"))
    >>> shop.may_touch("shop.2of3"), shop.may_touch("mail")
    (True, False)
    """

    name: str
    scopes: frozenset[Scope]
    jobs: tuple[str, ...] = ("*",)
    quotas: Quotas = UNBOUNDED
    _allowed: frozenset[Scope] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", with_included(self.scopes))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.jobs)))

    def may_touch(self, job: str) -> bool:
        """Return whether one of its patterns matches a job's name."""
        return self._pattern.match(job) is not None

    @property
    def sees_all(self) -> bool:
        """Return whether one of its patterns matches every name."""
        return "*" in self.jobs

    def check_scope(self, call: str, needed: Scope | None) -> None:
        """Refuse a call that needs a scope that this client does not have."""
        if needed is None or needed in self._allowed:
            return
        scopes = ", ".join(sorted(self.scopes)) or "none"
        raise DeniedError(
            self.name,
            f"client {self.name!r} may not use {call}: it needs the scope {needed}, and has {scopes}; use a "
            f"token with that scope, or add the scope to the client's entry in the server's tokens file",
        )

    def check_job(self, job: str) -> None:
        """Refuse a job that no pattern matches."""
        if not self.may_touch(job):
            patterns = ", ".join(map(repr, self.jobs)) or "none"
            raise DeniedError(
                self.name,
                f"client {self.name!r} has no access to job {job[:100]!r}: its patterns are {patterns}; use another "
                "token, or add a pattern to the client's entry in the server's tokens file",
            )

    def check_all_jobs(self, call: str) -> None:
        """Refuse a call that concerns all jobs to a client that may not touch each of them."""
        if not self.sees_all:
            patterns = ", ".join(map(repr, self.jobs)) or "none"
            raise DeniedError(
                self.name,
                f"client {self.name!r} may not use {call}, which concerns all jobs: its patterns are {patterns}; use "
                "another token, or add the pattern '*' to the client's entry in the server's tokens file",
            )


#: Any caller of a server that asks for no credentials.
ANYBODY = Identity("anybody", frozenset({Scope.ADMIN}))


class DeniedError(Refused):
    """A client that is known, and may not do this: ``PERMISSION_DENIED``.

    Args:
        detail: what it may not do, and what to do about it.
    """

    def __init__(self, client: str, detail: str) -> None:
        super().__init__(Refusal.PERMISSION_DENIED, detail)
        self.client = client


def unauthenticated(detail: str) -> Refused:
    """Return the refusal of a caller that is not known."""
    return Refused(Refusal.UNAUTHENTICATED, detail)


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
