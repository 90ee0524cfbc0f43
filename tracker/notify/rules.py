"""The file of rules: which events of which job lead to what.

A rule has a name, which is also that of its subscription at the tracker, a job, a filter, and what is done::

    [[rule]]
    name = "day-is-complete"
    job = "flights"
    segments = ["clean"]
    scopes = ["JFK"]
    webhook = { url = "https://hooks.example.org/days", secret-file = "hook.secret" }

    [[rule]]
    name = "success"
    job = "flights"
    marker = "s3://lake/flights/{scope}/{name}/_SUCCESS"

    [[rule]]
    name = "table"
    job = "flights"
    delta = { table = "s3://lake/flights", property = "complete.{scope}", value = "{name}" }

An event becomes a CloudEvent in JSON (source: the CloudEvents specification 1.0), the place of a marker, or a property
of a Delta table.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import quote, urlsplit

import tomllib

from tracker.client.waiting import AcceptedEnds
from tracker.contract.events import Body, Ended, Event

KINDS: Final[dict[str, type[Body]]] = {kind.__name__: kind for kind in get_args(Body)}
#: Fields of every event that texts in braces may name, beside those that all kinds of the rule have.
FIELDS: Final = frozenset({"job", "deployment", "kind", "seq"})
_COMPLETE: Final = AcceptedEnds()
_KEYS: Final = frozenset(
    {"name", "job", "kinds", "reasons", "by-drain", "segments", "scopes", "webhook", "marker", "delta"}
)
_ACTIONS: Final = ("webhook", "marker", "delta")
_WEBHOOK_KEYS: Final = frozenset({"url", "secret-file", "timeout"})
_DELTA_KEYS: Final = frozenset({"table", "property", "value"})
_RESERVED: Final = "delta."  #: properties that begin so are Delta's own
_TIMEOUT_S: Final = 10.0
_LONGEST_NAME: Final = 512  # bytes: the longest name of a subscription


class RulesError(ValueError):
    """The file of rules cannot be used; the message has the rule and what to do."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of requests by HTTP."""

    url: str
    secret_file: Path | None = None  #: what it holds signs the requests; None: they are not signed
    timeout: float = _TIMEOUT_S  #: seconds that a request may take


@dataclass(frozen=True, slots=True)
class Marker:
    """A file or object for each event."""

    place: str  #: an absolute path, or an address
    name: str  #: below the place; it names fields of the event in braces


@dataclass(frozen=True, slots=True)
class DeltaProperty:
    """A property of a Delta table."""

    table: str  #: an absolute path, or an address
    name: str  #: may name fields of the event in braces
    value: str = "{name}"  #: likewise


@dataclass(frozen=True, slots=True)
class Rule:
    """Action when events happen."""

    name: str
    job: str
    kinds: tuple[str, ...] = ("Ended",)
    ends: AcceptedEnds = _COMPLETE  #: of the events that are ends, only these
    segments: tuple[str, ...] = ()  #: empty: all
    scopes: tuple[str, ...] = ()  #: empty: all
    webhook: Webhook | None = None
    marker: Marker | None = None
    delta: DeltaProperty | None = None

    def concerns(self, event: Event) -> bool:
        """Tell whether this rule is about an event of its subscription, which has filtered by segment and scope."""
        kind = event.kind
        if type(kind).__name__ not in self.kinds:
            return False
        if not isinstance(kind, Ended):
            return True
        return self.ends.accepts(kind)


def read_rules(file: Path) -> tuple[Rule, ...]:
    """Read and check a file of rules. Files that it names are relative to it.

    Raises:
        RulesError: something in it is wrong, or it cannot be read.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RulesError(f"{file}: {error}") from error
    if unknown := sorted(document.keys() - {"rule"}):
        raise RulesError(f"{file}: {unknown[0]!r} is unknown; a file of rules has tables [[rule]]")
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise RulesError(f"{file}: it has no rules; write each below a line [[rule]]")
    rules: dict[str, Rule] = {}
    for number, table in enumerate(tables, 1):
        try:
            rule = _rule(table, file.parent)
        except RulesError as wrong:
            raise RulesError(f"{file}: rule {table.get('name') or number}: {wrong}") from wrong
        if rule.name in rules:
            raise RulesError(f"{file}: two rules have the name {rule.name!r}; each needs a name of its own")
        rules[rule.name] = rule
    return tuple(rules.values())


def _rule(table: Mapping[str, Any], directory: Path) -> Rule:
    _check_keys(table, _KEYS)
    name, job = _text(table, "name"), _text(table, "job")
    if len(name.encode()) > _LONGEST_NAME:
        raise RulesError(f"name has more than {_LONGEST_NAME} bytes")
    kinds = _texts(table, "kinds") or ("Ended",)
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise RulesError(f"kinds: {wrong[0]!r} is none of {', '.join(sorted(KINDS))}")
    by_drain = table.get("by-drain", False)
    if not isinstance(by_drain, bool):
        raise RulesError(f"by-drain is {by_drain!r}; give true or false")
    try:
        ends = AcceptedEnds(_texts(table, "reasons") or AcceptedEnds().reasons, by_drain)
    except ValueError as wrong_reason:
        raise RulesError(str(wrong_reason)) from None
    if sum(action in table for action in _ACTIONS) != 1:
        raise RulesError(f"give one of {', '.join(_ACTIONS)}; for several, write a rule for each")
    marker = _marker(_text(table, "marker"), kinds) if "marker" in table else None
    webhook = _webhook(table["webhook"], directory) if "webhook" in table else None
    delta = _delta(table["delta"], kinds) if "delta" in table else None
    segments, scopes = _texts(table, "segments"), _texts(table, "scopes")
    return Rule(name, job, kinds, ends, segments, scopes, webhook, marker, delta)


def _webhook(table: Any, directory: Path) -> Webhook:
    if not isinstance(table, dict):
        raise RulesError('webhook: write it as { url = "https://…" }')
    _check_keys(table, _WEBHOOK_KEYS, "webhook: ")
    url = _text(table, "url")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018
    except ValueError as error:
        raise RulesError(f"webhook: {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RulesError(f"webhook: {url!r} is no address such as https://hooks.example.org/days")
    if parts.username or parts.password:
        raise RulesError("webhook: a user or password in an address would be logged; sign requests with secret-file")
    timeout = table.get("timeout", _TIMEOUT_S)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
        raise RulesError(f"webhook: timeout is {timeout!r}; give seconds above 0, and 3600 at most")
    secret = directory / _text(table, "secret-file") if "secret-file" in table else None
    return Webhook(url, secret, float(timeout))


def _delta(table: Any, kinds: tuple[str, ...]) -> DeltaProperty:
    if not isinstance(table, dict):
        raise RulesError('delta: write it as { table = "s3://…", property = "complete.{scope}" }')
    _check_keys(table, _DELTA_KEYS, "delta: ")
    to = DeltaProperty(*(_text(table, key) for key in ("table", "property")), **_given(table, "value"))
    _check_place("delta: table", to.table)
    if to.name.startswith(_RESERVED):
        raise RulesError(f"delta: {to.name!r}: properties that begin with {_RESERVED!r} are Delta's own; take another")
    _fields_in("delta: property", to.name, kinds)
    if _RESERVED.startswith(to.name.partition("{")[0]):
        raise RulesError(
            f"delta: property {to.name!r}: what is reported could make it one of Delta's own; begin it with a text "
            "that does not, such as complete.{scope}"
        )
    _fields_in("delta: value", to.value, kinds)
    return to


def _given(table: Mapping[str, Any], key: str) -> dict[str, str]:
    return {key: _text(table, key)} if key in table else {}


def _marker(marker: str, kinds: tuple[str, ...]) -> Marker:
    named = _fields_in("marker", marker, kinds)
    _check_place("marker", marker)
    if not named:
        raise RulesError(
            "marker: it is the same for all events; name what tells them apart, such as {scope} and {name}"
        )
    first = re.search(r"(?<!\{)(?:\{\{)*\{(?!\{)", marker)
    assert first is not None, "it names a field"
    place, _, begun = marker[: first.start()].rpartition("/")
    if "://" in marker and not re.match(r"file://|[^:]+://[^/]", place):
        raise RulesError(f"marker: {marker!r}: the bucket is the same for all events; put {{…}} behind it")
    return Marker(place.replace("{{", "{").replace("}}", "}"), begun + marker[first.start() :])


def _check_place(where: str, place: str) -> None:
    if "://" not in place and not place.startswith("/"):
        raise RulesError(f"{where}: {place!r} is neither an absolute path nor an address such as s3://bucket/path")


def _fields_in(where: str, text: str, kinds: tuple[str, ...]) -> list[str]:
    """Return the fields of an event that a text names in braces."""
    known = FIELDS | set.intersection(*({each.name for each in fields(KINDS[kind])} for kind in kinds))
    try:
        named = [(field, how, form) for _, field, form, how in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise RulesError(f"{where}: {text!r}: {error}; a brace itself is written twice") from error
    for field, how, form in named:
        if field not in known or how or form:
            raise RulesError(
                f"{where}: {{{field}}} is unknown for {', '.join(kinds)}; there are {', '.join(sorted(known))}"
            )
    return [field for field, _, _ in named]


def _check_keys(table: Mapping[str, Any], known: frozenset[str], where: str = "") -> None:
    if unknown := sorted(table.keys() - known):
        raise RulesError(f"{where}{unknown[0]!r} is unknown; there are {', '.join(sorted(known))}")


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise RulesError(f"{key} is missing" if value is None else f"{key} is {value!r}; give a text")
    return value


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = table.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RulesError(f'{key} is {values!r}; give a list of texts, such as ["clean"]')
    return tuple(values)


_LONGEST_PART = 200  # bytes: with a suffix it fits the names of files


def event_id(rule: Rule, log_id: str, event: Event) -> str:
    """Return the id of a message. A message that is delivered again has the same one.

    It names the job's log, since numbers begin anew in another log.
    """
    return f"{rule.job}/{log_id}/{event.seq}"


def cloud_event(rule: Rule, log_id: str, event: Event) -> bytes:
    """Return the message about an event, as a CloudEvent in JSON.

    Its type is `substream.tracker.` and the event's kind, its source `/jobs/` and the job's name. The data are the
    event's fields under the names that `tracker events --json` has.
    """
    kind = type(event.kind).__name__
    fields = _fields(event)
    named = [str(fields[key]) for key in ("segment", "scope", "name") if key in fields]
    message = {
        "specversion": "1.0",
        "id": event_id(rule, log_id, event),
        "source": f"/jobs/{quote(rule.job, safe='')}",
        "type": f"substream.tracker.{kind}",
        "time": event.at.isoformat(),
        "datacontenttype": "application/json",
        **({"subject": "/".join(quote(part, safe="") for part in named)} if named else {}),
        "data": {"seq": event.seq, "deployment": event.deployment, "kind": kind, **fields},
    }
    return json.dumps(message, ensure_ascii=False).encode()


def marker_place(rule: Rule, event: Event) -> tuple[str, str]:
    """Return the place of a rule's markers, and the name of the one for an event below it.

    Values come from reporters, so each is one part of the name: none leads to another directory, and different ones
    have different parts.
    """
    assert rule.marker is not None
    parts = {key: _as_part(value) for key, value in _texts_of(rule, event).items()}
    return rule.marker.place, rule.marker.name.format(**parts)


def delta_property(rule: Rule, event: Event) -> tuple[str, str]:
    """Return the name and the value of the property that a rule sets for an event."""
    assert rule.delta is not None
    texts = _texts_of(rule, event)
    return rule.delta.name.format(**texts), rule.delta.value.format(**texts)


def _texts_of(rule: Rule, event: Event) -> dict[str, str]:
    """Return what texts of a rule may name of an event."""
    fields = {"job": rule.job, "deployment": event.deployment, "kind": type(event.kind).__name__, "seq": event.seq}
    return {key: str(value) for key, value in (fields | _fields(event)).items()}


def _as_part(name: str) -> str:
    """Return a name as one part of a path, which no other name has.

    An empty one is ``%``, one of dots alone would lead to another directory, and a long one keeps its beginning.
    """
    encoded = quote(name, safe=" :+=@,") if name.strip(".") else name.replace(".", "%2E")
    if len(encoded) > _LONGEST_PART:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return f"{encoded[: _LONGEST_PART - len(digest) - 2]}%%{digest}"
    return encoded or "%"


def _fields(event: Event) -> dict[str, Any]:
    return {key: value.name if isinstance(value, Enum) else value for key, value in asdict(event.kind).items()}
