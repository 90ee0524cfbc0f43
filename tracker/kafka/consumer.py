"""A consumer of Kafka that reports what it receives, when its offsets are committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import confluent_kafka as kafka

from tracker.client import TrackerClient, TrackerError, TrackerUnavailable
from tracker.kafka.producer import committed, retried, staged_epochs
from tracker.kafka.records import Copies, Element, Mark, ProgressLostError, decided_epoch, read_element

_OWN: Final = ("enable.auto.commit", "isolation.level", "auto.offset.reset")
_STORED: Final[int] = kafka.OFFSET_STORED  #: stands for what the group has committed
#: Errors of a member that has to poll before it knows again what it has.
_REBALANCING: Final = {
    kafka.KafkaError.ILLEGAL_GENERATION,
    kafka.KafkaError.REBALANCE_IN_PROGRESS,
    kafka.KafkaError.STALE_MEMBER_EPOCH,
    kafka.KafkaError.UNKNOWN_MEMBER_ID,
    kafka.KafkaError._ASSIGNMENT_LOST,
}


@dataclass(frozen=True)
class Received:
    """A message, and what it is to the job.

    Attributes:
        message: as confluent-kafka's consumer gave it, headers included.
        element: None: the message has no headers of a tracked sender, so nothing is reported of it.
    """

    message: kafka.Message
    element: Element | None


class _Partition:
    """A partition that this consumer has: a producer of the tracker, whose epochs are commits of its offset.

    The consumer that gets the partition opens a run of this producer, which fences the one before. The offset's
    metadata have the last epoch, so the next owner knows which of the epochs that were staged is committed.

    Attributes:
        read_from: where to begin, to learn again which labels have come.
        offset: the next message to hand out.
    """

    def __init__(self, service: Consumer, place: kafka.TopicPartition) -> None:
        self._segment = service.segments[place.topic]
        self._window = service.window
        self._place = place
        name = f"{service.group}/{place.topic}/{place.partition}"
        run = service.client.open_producer(service.job, name, str(uuid4()))
        (found,) = committed(service.kafka, [place])
        mark = Mark.read(found.metadata) or Mark(None, {})
        staged = staged_epochs(service.client, service.job, name)
        if found.offset < 0 and run.committed_epoch is not None:
            raise ProgressLostError(
                f"the offset of {name!r} is gone, and the tracker has its epochs up to {run.committed_epoch}: offsets "
                "of a group that is away expire (offsets.retention.minutes). Give the consumer a new group and a new "
                "job"
            )
        self.epoch = decided_epoch(name, mark.epoch, run.committed_epoch, staged)
        self.copies = Copies(mark.senders)
        first: int = found.offset
        if first < 0:
            first, _ = retried(service.kafka.get_watermark_offsets, place, 30.0)
        self.offset = first
        self.read_from = self.copies.since(self.offset)
        # Only the owner of the partition can commit its offset, and only the newest run can decide.
        service.commit_offsets([self.mark()])
        run.commit(self.epoch)
        self.run = run
        self._begin(self.offset)

    def _begin(self, offset: int) -> None:
        self._report, self._counted = self.run.epoch(self.epoch + 1), False
        self._known, self.offset, self._committed = offset, offset, offset

    @property
    def moved(self) -> bool:
        """Return whether the consumer has handed out or skipped messages since the last commit."""
        return self.offset != self._committed

    def take(self, message: kafka.Message) -> Received | None:
        """Return a message, unless it is a copy, or was handed out before."""
        offset = message.offset() or 0
        headers = message.headers()
        known = headers if isinstance(headers, list) else None
        element = read_element(message.key(), known, self._window)
        new = element is None or self.copies.first(element, offset)
        if offset < self._known:
            return None
        self.offset = offset + 1
        if not new:
            return None
        if element is not None:
            self._report.received(self._segment, element.scope, element.name, element.label, element.end_time)
            self._counted = True
        return Received(message, element)

    def stage(self) -> None:
        """Report what was received since the last commit: it counts when the offset is committed."""
        if self._counted:
            self._report.report(units=["0"])
            self.epoch += 1

    def mark(self) -> kafka.TopicPartition:
        """Return the offset to commit, with the last epoch that this decides."""
        metadata = Mark(self.epoch, self.copies.senders).write()
        return kafka.TopicPartition(self._place.topic, self._place.partition, self.offset, metadata)

    def decide(self) -> None:
        """Let the tracker know that the offset is committed."""
        if self._counted:
            self.run.commit(self.epoch)
        self._begin(self.offset)


class Consumer(AbstractContextManager["Consumer"]):
    """A consumer of Kafka that reports the messages it has handed out when their offsets are committed.

    Messages of `Producer`, and of a Kafka channel of the Spark client, are elements of the job; `commit` reports them
    and commits their offsets, so that a kill between the two loses and doubles nothing. Messages that were handed out
    and not committed come again, here or to another member of the group. Copies, which a sender that works at least
    once makes when it is restarted, are skipped; aborted transactions are not seen. Messages without our headers are
    handed out with `element` None.

    Use one thread. The first start of a group begins with the oldest messages. Each partition is a producer at the
    tracker, ``GROUP/TOPIC/PARTITION``.

    Args:
        client: of the job's tracker; the job is defined.
        config: of confluent-kafka's consumer, with ``bootstrap.servers`` and ``group.id``.
        segments: by topic the segment that its messages travel; the consumer subscribes to these topics.
        window: the length of the job's windows, if the sender is a Spark query with windows of a fixed length.

    Raises:
        ValueError: `config` has no group, or what this class sets itself.

    >>> def receive(client, send_mail):
    ...     config = {"bootstrap.servers": "kafka:9092", "group.id": "mailer"}
    ...     with Consumer(client, "shop", config, {"done": "done"}) as mailer:
    ...         for received in mailer:
    ...             send_mail(received.message.value())
    ...             mailer.commit()
    """

    def __init__(
        self,
        client: TrackerClient,
        job: str,
        config: Mapping[str, Any],
        segments: Mapping[str, str],
        *,
        window: timedelta | None = None,
    ) -> None:
        if "group.id" not in config:
            raise ValueError("config has no group.id: the group's offsets keep how far it has come")
        if taken := [each for each in _OWN if each in config]:
            raise ValueError(f"config has {taken[0]!r}, which the consumer sets itself: leave it out")
        self.client, self.job, self.group = client, job, str(config["group.id"])
        self.segments, self.window = dict(segments), window
        self._incremental = "cooperative" in str(config.get("partition.assignment.strategy")) or (
            config.get("group.protocol") == "consumer"
        )
        own = {"enable.auto.commit": False, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self.kafka = kafka.Consumer({**config, **own})
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._dropped: set[tuple[str, int]] = set()  # after a failed commit: they are ours, and are opened again
        self.kafka.subscribe([*segments], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Received]:
        while True:
            received = self.poll(1.0)
            if received is not None:
                yield received

    def poll(self, timeout: float) -> Received | None:
        """Return the next message, or None if none came, or the one that came was a copy.

        Args:
            timeout: seconds to wait for a message; 0: only one that is there.

        Raises:
            KafkaException: Kafka reports an error.
            ProgressLostError: Kafka and the tracker have not the same epochs of a partition.
        """
        message = self.kafka.poll(timeout)  # which may assign partitions, and take them away
        dropped = sorted(self._dropped)
        for each in dropped:
            self._reopen(*each)
        if message is None:
            return None
        if (error := message.error()) is not None:
            raise kafka.KafkaException(error)
        place = str(message.topic()), message.partition() or 0
        return None if place in dropped else self._partitions[place].take(message)

    def commit(self) -> None:
        """Report what was handed out, and commit its offsets.

        After an error, what was handed out since the last commit comes again, unless the error came after the commit.

        Raises:
            KafkaException: the group has given a partition to another member, or Kafka does not answer.
            TrackerError: another owner has fenced this one (``FENCED``), or the tracker refuses the report.
            TrackerUnavailable: the tracker does not answer.
        """
        moved = {place: each for place, each in self._partitions.items() if each.moved}
        try:
            for each in moved.values():
                each.stage()
            if moved:
                self.commit_offsets([each.mark() for each in moved.values()])
            for each in moved.values():
                each.decide()
        except BaseException:
            self._dropped.update(moved)
            raise

    def close(self) -> None:
        """Leave the group. Messages that were not committed come again."""
        self._revoke(self.kafka, [kafka.TopicPartition(*place) for place in self._partitions])
        self.kafka.close()

    def commit_offsets(self, offsets: list[kafka.TopicPartition]) -> None:
        """Commit offsets; the group refuses them of a member that is no longer theirs.

        Raises:
            KafkaException: the group has refused an offset, since its partition is another member's.
        """

        def commit() -> None:
            for each in self.kafka.commit(offsets=offsets, asynchronous=False) or ():
                if each.error is not None:
                    raise kafka.KafkaException(each.error)

        retried(commit)

    def _assign(self, consumer: kafka.Consumer, places: list[kafka.TopicPartition]) -> None:
        for place in places:
            place.offset = self._try(place.topic, place.partition)
        (consumer.incremental_assign if self._incremental else consumer.assign)(places)

    def _reopen(self, topic: str, number: int) -> None:
        offset = self._try(topic, number)
        if (topic, number) not in self._dropped:
            self.kafka.seek(kafka.TopicPartition(topic, number, offset))

    def _try(self, topic: str, number: int) -> int:
        """Open a partition, and return where to read from; while the group rebalances, it is tried again later."""
        try:
            partition = _Partition(self, kafka.TopicPartition(topic, number))
        except kafka.KafkaException as error:
            if error.args[0].code() not in _REBALANCING:
                raise
            self._dropped.add((topic, number))
            return _STORED
        self._partitions[topic, number] = partition
        self._dropped.discard((topic, number))
        return partition.read_from

    def _revoke(self, _: kafka.Consumer, places: list[kafka.TopicPartition]) -> None:
        for place in places:
            self._dropped.discard((place.topic, place.partition))
            partition = self._partitions.pop((place.topic, place.partition), None)
            if partition is not None:
                with suppress(TrackerError, TrackerUnavailable):  # its next owner has opened a run, or will do so
                    partition.run.close()
