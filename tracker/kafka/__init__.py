"""Kafka before and after a pipeline: Python services that produce or consume events, labelled and counted.

`Producer` and `Consumer` wrap those of confluent-kafka (extra ``kafka``). Their messages and those of a Kafka channel
of the Spark client have the same headers, so either side of a topic may be either.

>>> from tracker.client import TrackerClient
>>> from tracker.kafka import Consumer, Producer
>>> def send(client, servers):
...     with Producer(client, "shop", "till", servers, {"orders": "orders"}) as till:
...         till.send("orders", b"4711", b"coffee", scope="berlin", name="monday")
...         till.close_substream("berlin", "monday")
>>> def receive(client, servers):
...     with Consumer(client, "shop", {**servers, "group.id": "mailer"}, {"done": "done"}) as mailer:
...         for received in mailer:
...             print(received.message.value(), received.element)
...             mailer.commit()
"""

from tracker.kafka.consumer import Consumer, Received
from tracker.kafka.producer import Producer
from tracker.kafka.records import Element, ProgressLostError

__all__ = ["Consumer", "Element", "Producer", "ProgressLostError", "Received"]
