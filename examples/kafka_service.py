"""A service that sends into a topic of Kafka, and one that receives from it: the tracker knows when a day is over.

Start a tracker (`tracker serve`) and a broker with the topic `orders`, and run
`python examples/kafka_service.py [HOST:PORT] [BROKER:PORT]`.
"""

from __future__ import annotations

import sys
from uuid import uuid4

from tracker.client import JobSpec, TrackerClient
from tracker.kafka import Consumer, Producer

DAYS = {"monday": 30, "tuesday": 20}  # how many orders each has
SEGMENTS = {"orders": "orders"}  # by topic


def main(address: str = "127.0.0.1:7654", servers: str = "127.0.0.1:9092") -> None:
    job = f"shop-{uuid4()}"  # each run of this program has a job of its own
    kafka = {"bootstrap.servers": servers}
    with TrackerClient(address) as client:
        client.define_job(JobSpec(job=job, deployment="d1", segments={"orders": []}, committed_ends=True))
        with Producer(client, job, "till", kafka, SEGMENTS) as till:
            for day, orders in DAYS.items():
                for order in range(orders):
                    till.send("orders", f"{day} {order}", "coffee", name=day, identity=[job, day, order])
                till.close_substream("", day)  # nothing more of it comes
                till.commit()
        with Consumer(client, job, {**kafka, "group.id": job}, SEGMENTS) as mailer:
            received = 0
            while received < sum(DAYS.values()):
                message = mailer.poll(1.0)
                if message is not None and message.element is not None:
                    received += 1  # … write the mail, then
                mailer.commit()
        for day in DAYS:
            print(f"{day}: all {client.wait_for_end(job, 'orders', '', day, timeout=60).elements} orders have arrived")


if __name__ == "__main__":
    main(*sys.argv[1:])
