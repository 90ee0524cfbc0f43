"""One rule at work: it reads its subscription, delivers what concerns it, and acknowledges what was delivered.

A webhook gets a request by HTTP for each event, signed, so that the receiver can check who has sent it. Source of the
signature: the specification of Standard Webhooks 1.0 (scheme v1, HMAC-SHA256).

The receiver is not trusted: its answer is bounded in bytes and in time (`Exchanger`). The deadline is for all of it,
from the look-up of the host's name to the answer's last byte. The answer is counted as it comes over the wire and
thrown away; nothing is decompressed. A larger one than is read counts by its status.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import h11

from tracker.client import Subscription, TrackerClient, TrackerError, TrackerUnavailable
from tracker.contract.events import Event
from tracker.store import StoreError, open_store

from .rules import Rule, Webhook, cloud_event, delta_property, event_id, marker_place

_LARGEST: Final = 64 << 10  # bytes of an answer: its status counts, and nobody reads the rest
_CHUNK: Final = 16 << 10


class ExchangeError(Exception):
    """There was no whole answer."""


class Answer(NamedTuple):
    """The head of an answer.

    Args:
        reason: the text beside it.
        headers: by names in small letters; the last one of a name.
    """

    status: int
    reason: str
    headers: Mapping[str, str]


class Exchanger:
    """Sender of requests to one address, one after the other, over one connection where the receiver keeps it open.

    Args:
        url: an address of ``http:`` or ``https:``.
        timeout: seconds for each exchange as a whole.
    """

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._authority = parts.netloc.rpartition("@")[2]
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter, h11.Connection] | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request, and return the head of its answer once that is here as a whole, or too large.

        Raises:
            ExchangeError: there is none in time, or it is none of HTTP.
        """
        try:
            return self._loop.run_until_complete(self._in_time(body, headers))
        except TimeoutError as error:
            raise ExchangeError(f"no whole answer in {self._timeout:g} s") from error
        except (OSError, h11.ProtocolError, UnicodeError) as error:
            raise ExchangeError(str(error) or type(error).__name__) from error

    def close(self) -> None:
        self._drop()
        self._loop.run_until_complete(asyncio.sleep(0))  # the transport closes itself in the loop
        self._loop.close()

    async def _in_time(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            async with asyncio.timeout(self._timeout):
                if self._kept is not None:
                    with suppress(OSError, h11.ProtocolError):  # the receiver has closed it meanwhile
                        return await self._exchange(body, headers)
                    self._drop()
                return await self._exchange(body, headers)
        except BaseException:
            self._drop()
            raise

    async def _exchange(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._kept is None:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_CHUNK)
            self._kept = reader, writer, h11.Connection(h11.CLIENT)
        reader, writer, http = self._kept
        given = [("host", self._authority), ("content-length", str(len(body))), *headers.items()]
        request = h11.Request(method="POST", target=self._target, headers=given)
        for part in (request, h11.Data(body), h11.EndOfMessage()):
            writer.write(http.send(part) or b"")
        await writer.drain()
        head: h11.Response | None = None
        left = _LARGEST
        while left >= 0:
            event = http.next_event()
            if event is h11.NEED_DATA:
                received = await reader.read(_CHUNK)
                left -= len(received)
                http.receive_data(received)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.EndOfMessage):
                break
            elif not isinstance(event, h11.Data | h11.InformationalResponse):
                raise ConnectionResetError("the connection was closed without an answer")
        if head is None:
            raise ExchangeError(f"the answer has no status within {_LARGEST >> 10} KiB")
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            http.start_next_cycle()
        else:
            self._drop()
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        return Answer(head.status_code, bytes(head.reason).decode("latin-1"), fields)

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept[1].transport.abort()
            self._kept = None


_PREFIX = "whsec_"  # of a secret, in the form in which its makers show it


class DeliveryError(Exception):
    """An event was not delivered; it is to be tried again.

    Args:
        pause: seconds that the receiver has asked for; 0: none.
    """

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class WebhookSender:
    """Sender of messages to one receiver."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        # A redirect would take the message and its signature to another receiver, so it counts as a failure.
        self._exchanger = Exchanger(webhook.url, webhook.timeout)

    def send(self, identity: str, message: bytes) -> None:
        """Send one message; the receiver has it when this returns.

        Args:
            identity: the same for each attempt, so that the receiver can drop a second copy.
            message: a CloudEvent in JSON.

        Raises:
            DeliveryError: no answer with a status of 200 to 299, or the secret cannot be read.
        """
        now = int(time.time())
        headers = {
            "content-type": "application/cloudevents+json",
            "user-agent": "substream-tracker",
            "webhook-id": identity,
            "webhook-timestamp": str(now),
        }
        if self._webhook.secret_file is not None:
            # Read each time: a secret that was replaced counts from the next attempt on.
            headers["webhook-signature"] = signature(secret_in(self._webhook.secret_file), identity, now, message)
        try:
            answer = self._exchanger.post(message, headers)
        except ExchangeError as error:
            raise DeliveryError(f"{self._webhook.url}: {error}") from error
        if not 200 <= answer.status < 300:
            pause = answer.headers.get("retry-after", "")
            raise DeliveryError(
                f"{self._webhook.url} answered {answer.status} {answer.reason}".rstrip(),
                float(pause) if pause.isdecimal() else 0.0,
            )

    def close(self) -> None:
        self._exchanger.close()


def signature(secret: bytes, identity: str, at: int, message: bytes) -> str:
    """Return the signature of a message.

    Args:
        at: when it is sent, in seconds since 1970.

    >>> signature(b"secret", "msg_1", 1614265330, b"{}")
    'v1,3/iD+UC/cFPl3PtRMPUcvEULlwun6jyVUEMvdX3yW5g='
    """
    signed = b".".join((identity.encode(), str(at).encode(), message))
    return f"v1,{base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()}"


def secret_in(file: Path) -> bytes:
    """Read a secret: base64, with the prefix ``whsec_`` or without.

    Raises:
        DeliveryError: it cannot be read.
    """
    try:
        text = file.read_text(encoding="ascii").strip().removeprefix(_PREFIX)
        secret = base64.b64decode(text, validate=True)
    except (OSError, UnicodeDecodeError, binascii.Error) as error:
        raise DeliveryError(f"the secret in {file} cannot be used: {error}") from error
    if not secret:
        raise DeliveryError(f"the secret in {file} is empty; `openssl rand -base64 32` makes one")
    return secret


log = logging.getLogger("tracker.notify")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 300.0
_PASSED_EVERY_S = 60.0  #: events that do not concern the rule are acknowledged together
_ACK_S = 1.0


def subscription_of(rule: str) -> str:
    """Return the name of a rule's subscription at the tracker.

    >>> subscription_of("success")
    'notify/success'
    """
    return f"notify/{rule}"


class Delivery:
    """Runner of one rule in a thread of its own until it is stopped.

    Args:
        delivered: called after each delivery.
        failing: called with what is wrong, or with "" when it works again.
    """

    def __init__(
        self, rule: Rule, client: TrackerClient, delivered: Callable[[], object], failing: Callable[[str], object]
    ) -> None:
        self.rule = rule
        self._client = client
        self._delivered = delivered
        self._failing = failing
        self._sender = None if rule.webhook is None else WebhookSender(rule.webhook)
        self._stopped = threading.Event()
        self._reading: Subscription | None = None
        self._passed = 0  # the last event with which nothing has to be done any more
        self._passed_at = time.monotonic()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"notify-{rule.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the delivery under way end, and begin no other; `join` waits for that."""
        self._stopped.set()
        with self._lock:
            if self._reading is not None:
                self._reading.close()

    def join(self, timeout: float) -> None:
        """Wait until it has ended, for so many seconds at most."""
        self._thread.join(timeout)

    def _run(self) -> None:
        attempt = 0
        while not self._stopped.is_set():
            try:
                with self._subscribed() as events:
                    self._failing("")
                    attempt = 0
                    for event in events:
                        self._take(event, events)
                continue
            except (TrackerError, TrackerUnavailable) as error:
                problem = str(error)
                log.warning("cannot read events", extra={"rule": self.rule.name, "error": problem})
            except Exception as error:  # a fault of ours: it is shown as failing, and does not end the rule for good
                problem = f"{type(error).__name__}: {error}"
                log.exception("the rule has failed", extra={"rule": self.rule.name})
            self._failing(problem)
            self._pause(attempt)
            attempt += 1
        if self._sender is not None:
            self._sender.close()

    def _subscribed(self) -> Subscription:
        rule = self.rule
        events = self._client.subscribe(rule.job, subscription_of(rule.name), rule.segments, rule.scopes)
        with self._lock:
            self._reading, self._passed = events, events.acknowledged
        if self._stopped.is_set():
            events.close()
        return events

    def acknowledge_passed(self) -> None:
        """Acknowledge the events that did not concern the rule, once a minute: else the subscription would expire.

        To be called now and then, from any thread.
        """
        now, events, passed = time.monotonic(), self._reading, self._passed
        if events is None or passed <= events.acknowledged or now < self._passed_at + _PASSED_EVERY_S:
            return
        self._passed_at = now
        with suppress(TrackerError, TrackerUnavailable):  # the thread that reads finds out what is wrong
            events.ack(passed, timeout=_ACK_S)

    def _take(self, event: Event, events: Subscription) -> None:
        if self.rule.concerns(event):
            if not self._delivers(event, events.log_id):
                return
            events.ack(event)
        self._passed = event.seq

    def _delivers(self, event: Event, log_id: str) -> bool:
        """Deliver an event, however long that takes, and return whether it did: False if it was stopped before."""
        attempt = 0
        while not self._stopped.is_set():
            try:
                self._deliver(event, log_id)
            except DeliveryError as error:
                self._failing(str(error))
                log.warning(
                    "not delivered",
                    extra={"rule": self.rule.name, "event": event.seq, "attempt": attempt + 1, "error": str(error)},
                )
                self._pause(attempt, error.pause)
                attempt += 1
            else:
                if attempt:
                    self._failing("")
                self._delivered()
                log.debug("delivered", extra={"rule": self.rule.name, "event": event.seq})
                return True
        return False

    def _deliver(self, event: Event, log_id: str) -> None:
        message = cloud_event(self.rule, log_id, event)
        if self._sender is not None:
            self._sender.send(event_id(self.rule, log_id, event), message)
        elif self.rule.delta is not None:
            set_property(self.rule.delta.table, *delta_property(self.rule, event))
        else:
            write_marker(*marker_place(self.rule, event), message)

    def _pause(self, attempt: int, at_least: float = 0.0) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 20))
        # Drawn, so that rules that have failed together do not come back together.
        self._stopped.wait(max(min(at_least, _LONGEST_PAUSE_S), longest * random.uniform(0.5, 1)))


def write_marker(place: str, name: str, content: bytes) -> None:
    """Write a marker, and replace one that is there. It outlives the machine, since the event is acknowledged next.

    Args:
        place: an absolute path, or an address, such as ``s3://bucket/path``.
        name: the marker's, below the place; it is taken as it is, also in an object's key.

    Raises:
        DeliveryError: it cannot be written.
    """
    try:
        open_store(place if "://" not in place else f"{place}/").put(name, content)
    except (StoreError, ValueError) as error:
        raise DeliveryError(f"{place}/{name} cannot be written: {error}") from error


def set_property(table: str, name: str, value: str) -> None:
    """Set a property of a Delta table, as one commit to its log; none if it has that value already.

    Args:
        table: an absolute path, or an address such as ``s3://bucket/table``.

    Raises:
        DeliveryError: there is no such table, or it cannot be written.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError as missing:
        raise DeliveryError(f"a rule with delta needs {missing.name}: pip install 'deltalake>=1,<2'") from missing
    try:
        opened = DeltaTable(table)
        if opened.metadata().configuration.get(name) != value:
            # A commit in between makes this fail, and it is tried again: a property never replaces data.
            opened.alter.set_table_properties({name: value}, raise_if_not_exists=False)
    except (DeltaError, OSError, ValueError) as error:
        raise DeliveryError(f"{table}: {name} cannot be set: {str(error).partition(chr(10))[0]}") from error
