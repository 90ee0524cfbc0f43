"""Messages as they travel, and what a restart has to know: headers, copies, and the last epoch. Without any I/O.

The first two headers of a message are those of a Kafka channel of the Spark client: its substream and label, and what
the sender's epoch consists of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

ELEMENT_HEADER: Final = "tracker"
EPOCH_HEADER: Final = "tracker-epoch"
_TOPMOST: Final = 1 << 63
_LONGEST_NAME: Final = 512  #: bytes, at the tracker
_LATEST: Final = 1 << 61  #: end time, at the tracker
_LONGEST_MARK: Final = 4096  #: bytes, Kafka's `offset.metadata.max.bytes`

Headers: TypeAlias = Sequence[tuple[str, bytes | str | None]]


class ProgressLostError(Exception):
    """Kafka and the tracker do not have the same epochs of a service, so going on could bring a false end."""


@dataclass(frozen=True)
class Element:
    """A message as the tracker knows it.

    Attributes:
        end_time: of the substream, in microseconds since 1970 for a window of the Spark client; None: it has none.
        label: 0 to 2**64 - 1.
        sender: the producer that sent the message, or the query.
        epoch: the number of the sender's epoch that the message is in.
    """

    scope: str
    name: str
    end_time: int | None
    label: int
    sender: str
    epoch: int


def signed(label: int) -> int:
    """Return 64 bits as Spark's `bigint` has them.

    >>> signed(2**64 - 1), signed(7)
    (-1, 7)
    """
    return (label ^ _TOPMOST) - _TOPMOST


def headers_of(elements: Sequence[Element], after: int | None) -> list[list[tuple[str, bytes]]]:
    """Return the headers of the messages that an epoch sends into one topic.

    Args:
        elements: all of them, of one sender and epoch.
        after: the sender's last epoch before that had messages in this topic; None: not known.
    """
    xor = 0
    for each in elements:
        xor ^= each.label
    first = elements[0]
    sending = {"sender": first.sender, "epoch": first.epoch, "after": after, "rows": len(elements), "xor": signed(xor)}
    epoch = (EPOCH_HEADER, json.dumps(sending, separators=(",", ":")).encode())
    found = []
    for each in elements:
        element = {"scope": each.scope, "name": each.name, "end": each.end_time, "label": signed(each.label)}
        found.append([(ELEMENT_HEADER, json.dumps(element, separators=(",", ":")).encode()), epoch])
    return found


def read_element(key: bytes | None, headers: Headers | None, window: timedelta | None = None) -> Element | None:
    """Return the element that a message is; None: its headers are not ours.

    Args:
        key: the message's, which is the label if a Spark query has sent the message.
        window: the length of the windows, if the message names its window by the end alone.

    >>> headers = [("tracker", b'{"scope":"a","end":3600000000}'), ("tracker-epoch", b'{"sender":"q","epoch":3}')]
    >>> read_element(b"7", headers, timedelta(hours=1)).name
    '1970-01-01T00:00:00Z/1970-01-01T01:00:00Z'
    """
    try:
        (first, element), (second, epoch) = (headers or ())[:2]
        if (first, second) != (ELEMENT_HEADER, EPOCH_HEADER):
            return None
        of, sending = json.loads(element or b""), json.loads(epoch or b"")
        end, name, label = of.get("end"), of.get("name"), of.get("label")
        if name is None and window is not None:
            name = f"{_iso(end - window // timedelta(microseconds=1))}/{_iso(end)}"
        found = Element(
            of["scope"],
            name,
            None if end is None else int(end),
            int(key or b"" if label is None else label) % 2**64,
            sending["sender"],
            int(sending["epoch"]),
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None
    return found if _can_be(found) else None


def _can_be(element: Element) -> bool:
    """Return whether the tracker takes an element: a message that anybody has written must not hold up a partition."""
    texts = element.scope, element.name, element.sender
    if not all(isinstance(each, str) for each in texts) or element.name == "" or element.scope == "*":
        return False
    try:
        return max(len(each.encode()) for each in texts) <= _LONGEST_NAME and abs(element.end_time or 0) <= _LATEST
    except UnicodeEncodeError:
        return False


def _iso(micros: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(microseconds=micros)).isoformat() + "Z"


class Copies:
    """Elements of one partition that have come before.

    A sender brings each epoch to its end before it begins the next, and copies of an element share a partition. So an
    element of an epoch before its sender's newest one here is a copy, and so is one of the newest epoch with a label
    that this epoch has had. The labels are in memory only: `since` is where to read the partition from again to
    learn them.

    Args:
        senders: by sender its newest epoch and the offset of this epoch's first message.

    >>> copies, one = Copies(), Element("", "a", None, 7, "q", 3)
    >>> copies.first(one, 10), copies.first(one, 11)
    (True, False)
    """

    def __init__(self, senders: Mapping[str, Sequence[int]] | None = None) -> None:
        self.senders = {sender: (epoch, offset) for sender, (epoch, offset) in (senders or {}).items()}
        self._labels: dict[str, set[int]] = {}

    def first(self, element: Element, offset: int) -> bool:
        """Return whether an element comes for the first time, and remember it."""
        newest, _ = self.senders.get(element.sender, (-1, 0))
        if element.epoch < newest:
            return False
        if element.epoch > newest:
            self.senders[element.sender] = element.epoch, offset
            self._labels[element.sender] = set()
        labels = self._labels.setdefault(element.sender, set())
        known = element.label in labels
        labels.add(element.label)
        return not known

    def since(self, offset: int) -> int:
        """Return where to read from to go on at an offset."""
        return min([offset, *(first for _, first in self.senders.values())])


@dataclass(frozen=True)
class Mark:
    """Metadata of an offset in Kafka: the epoch that its commit has decided, and the newest epochs of senders."""

    epoch: int | None
    senders: Mapping[str, Sequence[int]]

    def write(self) -> str:
        """Return the metadata.

        Raises:
            ProgressLostError: they are longer than Kafka takes.
        """
        text = json.dumps({"epoch": self.epoch, "senders": self.senders}, separators=(",", ":"))
        if len(text) > _LONGEST_MARK:
            raise ProgressLostError(
                f"{len(self.senders)} senders have written into one partition, more than the metadata of an offset "
                "has room for: give senders names that they keep, and go on with a new topic"
            )
        return text

    @staticmethod
    def read(text: str | None) -> Mark | None:
        """Return the mark that metadata are; None: another program has written them."""
        try:
            mark: Any = json.loads(text or "")
            return Mark(int(mark["epoch"]), mark["senders"])
        except (KeyError, TypeError, ValueError):
            return None


def decided_epoch(what: str, marked: int | None, committed: int | None, staged: Iterable[int]) -> int:
    """Return the last epoch that is decided: the tracker commits it and revokes later ones.

    Args:
        what: names the service, for messages.
        marked: the last epoch that Kafka has committed, or that is in the outbox; None: there is no mark.
        committed: the last epoch that the tracker has committed.
        staged: epochs that wait there for a decision.

    Raises:
        ProgressLostError: one side has lost what the other has.

    >>> decided_epoch("till", 4, 3, [4]), decided_epoch("till", 3, 3, [4]), decided_epoch("till", None, None, [])
    (4, 3, 0)
    """
    done, waiting = -1 if committed is None else committed, set(staged)
    if marked is None and not waiting:
        return max(done, 0)
    if marked is None or marked < done:
        raise ProgressLostError(
            f"{what} has lost its progress: its last epoch in Kafka or in its outbox is {marked}, and the tracker has "
            f"committed {committed} and staged {sorted(waiting)}. Offsets of a group that is away expire "
            "(offsets.retention.minutes). Give it a new name, and abandon the substreams that were open"
        )
    if marked > max(done, 0) and marked not in waiting:
        raise ProgressLostError(
            f"the tracker has lost epochs of {what}: it has those up to {committed}, and epoch {marked} was sent. "
            "Start the job again"
        )
    return marked
