"""A producer of Kafka that reports what it sends: in transactions, or at least once from an outbox on disk."""

from __future__ import annotations

import fcntl
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeVar
from uuid import uuid4

import confluent_kafka as kafka

from tracker.client import Report, Token, TrackerClient, label
from tracker.client.labels import Step
from tracker.kafka.records import Element, decided_epoch, headers_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_RETRY_FOR: Final = 60.0  #: seconds
_PATIENCE: Final = 30.0  #: seconds for one question to Kafka
#: Errors that pass, of calls whose errors do not state so.
_PASSING: Final = {
    kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    kafka.KafkaError.NOT_COORDINATOR,
    kafka.KafkaError.REQUEST_TIMED_OUT,
    kafka.KafkaError._TIMED_OUT,
    kafka.KafkaError._TRANSPORT,
    kafka.KafkaError._WAIT_COORD,
}
_OWN: Final = ("transactional.id", "enable.idempotence", "acks")

Promise = Literal["close", "expect", "frontier", "finish"]


def retried(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call Kafka, and again for a minute as long as it answers that the call may be repeated."""
    until = time.monotonic() + _RETRY_FOR
    while True:
        try:
            return call(*args, **kwargs)
        except kafka.KafkaException as error:
            passing = error.args[0].retriable() or error.args[0].code() in _PASSING
            if not passing or time.monotonic() > until:
                raise
            time.sleep(0.1)


@dataclass
class _Epoch:
    """The messages and promises of an epoch, which a restart sends again as they are.

    Attributes:
        after: by topic the last epoch before this one with messages there, as far as it is known.
    """

    number: int
    after: dict[str, int]
    messages: list[tuple[str, bytes | None, bytes | None, Element]] = field(default_factory=list)
    promises: list[tuple[Promise, list[Any]]] = field(default_factory=list)

    def fill(self, report: Report, segments: Mapping[str, str]) -> Report:
        for topic, _, _, of in self.messages:
            report.sent(segments[topic], of.scope, of.name, of.label, of.end_time)
        for kind, arguments in self.promises:
            getattr(report, kind)(*arguments)
        return report

    def with_headers(self) -> Iterator[tuple[str, bytes | None, bytes | None, Any, int]]:
        by_topic: dict[str, list[Element]] = {}
        for topic, _, _, element in self.messages:
            by_topic.setdefault(topic, []).append(element)
        headers = {topic: iter(headers_of(each, self.after.get(topic))) for topic, each in by_topic.items()}
        for topic, key, value, element in self.messages:
            yield topic, key, value, next(headers[topic]), element.label

    def write(self, path: Path) -> None:
        """Write the epoch so that it appears whole, and on disk."""
        rows = [(topic, _text(key), _text(value), asdict(of)) for topic, key, value, of in self.messages]
        new = path.with_suffix(".new")
        with new.open("w") as file:
            json.dump([self.number, self.after, rows, self.promises], file)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    @classmethod
    def read(cls, path: Path) -> _Epoch:
        number, after, rows, promises = json.loads(path.read_text())
        messages = [(topic, _bytes(key), _bytes(value), Element(**of)) for topic, key, value, of in rows]
        return cls(number, after, messages, promises)


class Producer(AbstractContextManager["Producer"]):
    """A producer of Kafka whose messages are elements of a job; the counterpart of `Consumer`.

    Messages and promises are collected, and `commit` sends them as one epoch. Without `outbox` an epoch is a
    transaction: readers that read what is committed (`Consumer`, a channel of the Spark client) have all of it or
    nothing. A service that is killed goes on under its name, and what it had not committed was never sent; its caller
    sends it again. A second service of this name fences the first one.

    With `outbox` an epoch is written to disk, then reported, then sent until the brokers have acknowledged it. A
    service that is killed sends the epoch of its outbox again; `Consumer` and a Kafka channel drop the copies.

    Use one thread. The producer is called ``tracker.JOB.NAME`` as a transactional id, and as the consumer group whose
    offsets keep the last epoch.

    Args:
        client: of the job's tracker; the job is defined.
        name: of this producer, the same across restarts.
        config: of confluent-kafka's producer, with ``bootstrap.servers``.
        segments: by topic the segment that its messages travel.
        outbox: a file, on a disk that survives the service.

    Raises:
        ValueError: `config` has what this class sets itself.
        ProgressLostError: Kafka and the tracker have not the same epochs of this producer.
        TrackerError: the tracker refuses the run: see `TrackerClient.open_producer`.

    >>> def send(client, orders):
    ...     with Producer(client, "shop", "till", {"bootstrap.servers": "kafka:9092"}, {"orders": "orders"}) as till:
    ...         for order in orders:
    ...             till.send("orders", order.id, order.json, scope="berlin", name="monday", identity=[order.id])
    ...         till.close_substream("berlin", "monday")  # nothing more of it comes
    """

    def __init__(
        self,
        client: TrackerClient,
        job: str,
        name: str,
        config: Mapping[str, Any],
        segments: Mapping[str, str],
        *,
        outbox: str | os.PathLike[str] | None = None,
    ) -> None:
        if taken := [each for each in _OWN if each in config]:
            raise ValueError(f"config has {taken[0]!r}, which the producer sets itself: leave it out")
        self.name = name
        self._job, self._client, self._segments, self._config = job, client, dict(segments), dict(config)
        self._id = f"tracker.{job}.{name}"
        self._outbox = None if outbox is None else Path(outbox)
        self._sizes: dict[str, int] = {}  # of topics, in partitions
        self._reported: Report | None = None  # the epoch in hand, once this process has reported it
        if self._outbox is None:
            self._marks = kafka.Consumer({**config, "group.id": self._id, "enable.auto.commit": False})
        else:
            self._lock = _locked(self._outbox)
        self._start()

    def _start(self) -> None:
        """Take the name over, and decide what is undecided under it.

        The order matters: whoever can still decide an epoch after this has opened a later run, and then the tracker
        refuses this one.
        """
        self._run = self._client.open_producer(self._job, self.name, str(uuid4()))
        left, done = None, self._run.committed_epoch
        if self._outbox is None:
            self._kafka = kafka.Producer({**self._config, "transactional.id": self._id})
            retried(self._kafka.init_transactions)  # after this no transaction of an earlier service is committed
            places = [kafka.TopicPartition(topic, 0) for topic in self._segments]
            mark = max((each.offset - 1 for each in committed(self._marks, places) if each.offset > 0), default=None)
        else:
            self._kafka = kafka.Producer({**self._config, "enable.idempotence": True})
            left = _Epoch.read(self._outbox) if self._outbox.exists() else None
            mark = max(done or 0, 0) if left is None else left.number
        staged = staged_epochs(self._client, self._job, self.name)
        last = decided_epoch(f"producer {self.name!r}", mark, done, staged)
        if mark is None:
            self._kafka.begin_transaction()
            self._mark(last)
            retried(self._kafka.commit_transaction)
        self._run.commit(last)
        self._begin(last + 1, {})
        if left is not None:
            self._epoch, self._decided, self._frozen = left, True, True
            self.commit()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
            self.close()

    @property
    def epoch(self) -> int:
        """Return the number of the epoch that is being collected, from 1: a caller that cuts its input by epochs goes
        on here after a restart."""
        return self._epoch.number

    def send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        *,
        scope: str = "",
        name: str,
        end_time: int | None = None,
        identity: list[Step] | None = None,
    ) -> int:
        """Add a message to the epoch.

        Args:
            scope, name: of the message's substream.
            end_time: of the substream, if it has one, in the job's unit: microseconds since 1970 for windows of Spark.
            identity: names the element for ever, such as an order's number. None: its place in the epoch.

        Returns:
            Its label.

        Raises:
            ValueError: the topic has no segment, or the epoch has an element of this identity.
            RuntimeError: a commit has not come to its end.
        """
        self._check_open()
        if topic not in self._segments:
            raise ValueError(f"topic {topic!r} has no segment: name it in segments=")
        lineage = [self.name, self._epoch.number, len(self._epoch.messages)] if identity is None else identity
        number = label(self._job, self._segments[topic], *lineage) or 1
        if number in self._labels:
            raise ValueError(f"the epoch has an element of identity {identity} already: send each once")
        self._labels.add(number)
        element = Element(scope, name, end_time, number, self.name, self._epoch.number)
        self._epoch.messages.append((topic, _encoded(key), _encoded(value), element))
        return number

    def close_substream(self, scope: str, name: str, end_time: int | None = None, front: str | None = "") -> None:
        """Promise that nothing more of a substream is sent after this epoch: as `Report.close`."""
        self.promise("close", scope, name, end_time, front)

    def promise(self, kind: Promise, *arguments: Any) -> None:
        """Make a promise with the epoch, after its elements.

        Args:
            kind: a method of `tracker.client.Report`.
            arguments: what that method takes, in its order.

        >>> def finish(till):
        ...     till.promise("expect", "tills", "orders", "berlin", "monday", 1204)
        ...     till.promise("finish", "tills")
        """
        self._check_open()
        self._epoch.promises.append((kind, list(arguments)))

    def commit(self) -> Token | None:
        """Send the epoch, and return when Kafka and the tracker have it.

        After an error the epoch stands: call this again, or `abort`. The error of a fenced producer is final.

        Returns:
            A token of what was sent, for `TrackerClient.wait_for`; None: there was nothing, or an earlier process of
            this producer has reported it.

        Raises:
            KafkaException: Kafka refuses the messages, or does not answer for a minute.
            TrackerError: another run has taken over (``FENCED``), or the tracker refuses the report.
            TrackerUnavailable: the tracker does not answer.
        """
        if not (self._frozen or self._epoch.messages or self._epoch.promises):
            return None
        self._frozen = True
        if not self._decided:
            self._reported = self._epoch.fill(self._run.epoch(self._epoch.number), self._segments)
            self._reported.report(units=["0"])  # it counts once the epoch is decided, and is revoked otherwise
            if self._outbox is None:
                self._transact()
            else:
                self._epoch.write(self._outbox)
            self._decided = True
        self._run.commit(self._epoch.number)
        if self._outbox is not None:
            self._produce()
            self._outbox.unlink()
        topics = {topic: self._epoch.number for topic, *_ in self._epoch.messages}
        reported = self._reported
        self._begin(self._epoch.number + 1, {**self._epoch.after, **topics})
        return None if reported is None else reported.token()

    def abort(self) -> None:
        """Forget what was added since the last commit. After a commit that has failed, this starts the producer again.

        Raises:
            RuntimeError: it was sent: only `commit` can bring it to its end.
        """
        if self._decided:
            raise RuntimeError("the epoch was sent, and the commit has not come to its end: call commit() again")
        if self._frozen:
            self._start()
        else:
            self._begin(self._epoch.number, self._epoch.after)

    def close(self) -> None:
        """Close the run; a drain then does not wait for it. An epoch that was not committed is forgotten."""
        if self._outbox is None:
            self._marks.close()
        else:
            os.close(self._lock)
        self._run.close()

    # ---------------------------------------------------------------- epochs

    def _begin(self, number: int, after: dict[str, int]) -> None:
        self._epoch, self._labels = _Epoch(number, after), set[int]()
        self._frozen = False  # it takes no more
        self._reported = None
        self._decided = False  # it will be sent, whatever happens

    def _check_open(self) -> None:
        if self._frozen:
            raise RuntimeError("the epoch is being committed: call commit() again, or abort()")

    def _produce(self) -> None:
        """Hand all messages of the epoch to the brokers; outside a transaction, wait until they have them."""
        failed: list[kafka.KafkaError] = []

        def delivered(error: kafka.KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(error)

        for topic, key, value, headers, number in self._epoch.with_headers():
            place = -1 if key is not None else number % self._partitions(topic)  # copies share a partition
            while True:
                try:
                    self._kafka.produce(topic, value, key, place, delivered, headers=headers)
                    break
                except BufferError:
                    self._kafka.poll(0.1)
        if self._outbox is not None:
            while self._kafka.flush(1.0):
                if failed:
                    break
            if failed:
                raise kafka.KafkaException(failed[0])

    def _transact(self) -> None:
        """Send the epoch in a transaction, with its number."""
        try:
            self._kafka.begin_transaction()
            self._produce()
            self._mark(self._epoch.number)
            retried(self._kafka.commit_transaction)
        except kafka.KafkaException as error:
            if not error.args[0].fatal():
                retried(self._kafka.abort_transaction)
            raise

    def _mark(self, number: int) -> None:
        """Keep the number of an epoch as the offset of a group that nobody is in, within the transaction."""
        place = kafka.TopicPartition(min(self._segments), 0, number + 1)
        retried(self._kafka.send_offsets_to_transaction, [place], self._marks.consumer_group_metadata())

    def _partitions(self, topic: str) -> int:
        if topic not in self._sizes:
            self._sizes[topic] = len(retried(self._kafka.list_topics, topic, 10.0).topics[topic].partitions) or 1
        return self._sizes[topic]


def _locked(outbox: Path) -> int:
    """Lock an outbox until this process ends, however that comes about."""
    file = os.open(outbox.with_suffix(".lock"), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise ValueError(
            f"another process uses the outbox {outbox}: end it, or give this one a name of its own"
        ) from error
    return file


def committed(consumer: kafka.Consumer, places: list[kafka.TopicPartition]) -> list[kafka.TopicPartition]:
    """Return the offsets that a consumer's group has committed; a negative one stands for none.

    Raises:
        KafkaException: Kafka does not know, or does not answer.
    """

    def ask() -> list[kafka.TopicPartition]:
        found: list[kafka.TopicPartition] = consumer.committed(places, _PATIENCE)
        for each in found:
            if each.error is not None:
                raise kafka.KafkaException(each.error)
        return found

    return retried(ask)


def staged_epochs(client: TrackerClient, job: str, producer: str) -> tuple[int, ...]:
    """Return the epochs of a producer that wait at the tracker for a decision."""
    found = [each.staged_epochs for each in client.job(job).producers if each.producer == producer]
    return found[0] if found else ()


def _encoded(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
