"""Events as others get them: a CloudEvent in JSON, the place of a marker, a property of a Delta table.

Source: the CloudEvents specification 1.0, JSON format.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from enum import Enum
from typing import Any
from urllib.parse import quote

from tracker.contract.events import Event

from .rules import Rule

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
    parts = {key: _as_part(value) for key, value in _texts(rule, event).items()}
    return rule.marker.place, rule.marker.name.format(**parts)


def delta_property(rule: Rule, event: Event) -> tuple[str, str]:
    """Return the name and the value of the property that a rule sets for an event."""
    assert rule.delta is not None
    texts = _texts(rule, event)
    return rule.delta.name.format(**texts), rule.delta.value.format(**texts)


def _texts(rule: Rule, event: Event) -> dict[str, str]:
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
