"""A job whose messages go from a producer to consumers through one topic, and what became of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from examples.services.kafka import Kafka
from tracker.client import Ended, JobSpec, Late, TrackerClient
from tracker.kafka import Consumer, Producer, Received

SEGMENT = "orders"
_PATIENCE = 60.0


class Shop:
    """The job, and makers of its services.

    Args:
        topic: of the segment.
    """

    def __init__(self, client: TrackerClient, job: str, servers: str, topic: str, **spec: Any) -> None:
        self.client, self.job, self.servers, self.topic = client, job, servers, topic
        self.client.define_job(JobSpec(job=job, deployment="d1", segments={SEGMENT: []}, committed_ends=True, **spec))

    def producer(self, name: str = "till", outbox: Path | None = None, **config: Any) -> Producer:
        given = {"bootstrap.servers": self.servers, **config}
        return Producer(self.client, self.job, name, given, {self.topic: SEGMENT}, outbox=outbox)

    def consumer(self, group: str = "mailer", **config: Any) -> Consumer:
        given = {"bootstrap.servers": self.servers, "group.id": f"{self.job}-{group}", **config}
        return Consumer(
            self.client,
            self.job,
            {"heartbeat.interval.ms": 300, "session.timeout.ms": 6000, **given},
            {self.topic: SEGMENT},
        )

    def ended(self) -> dict[str, int]:
        """Return the elements of the substreams that have ended."""
        events = [each.kind for each in self.client.list_events(self.job).events]
        assert not [each for each in events if isinstance(each, Late)]
        return {each.name: each.elements for each in events if isinstance(each, Ended)}

    def plain(self) -> kafka.Producer:
        """Return a producer of messages that nobody tracks."""
        return kafka.Producer({"bootstrap.servers": self.servers})


def create(broker: Kafka, topic: str) -> None:
    """Make a topic with two partitions."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()


def receive(consumer: Consumer, number: int) -> list[Received]:
    """Poll until so many messages were handed out."""
    found: list[Received] = []
    until = time.monotonic() + _PATIENCE
    while len(found) < number:
        assert time.monotonic() < until, f"{len(found)} of {number} messages came"
        received = consumer.poll(0.2)
        if received is not None:
            found.append(received)
    return found


def nothing_comes(consumer: Consumer) -> bool:
    """Return whether polling a few times hands out nothing."""
    return not [each for _ in range(5) if (each := consumer.poll(0.2)) is not None]
