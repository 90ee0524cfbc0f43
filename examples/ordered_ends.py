"""Hours of three shops whose ends are in one order over all shops: one shop hangs, and is named.

Start a tracker (`tracker serve`) and run `python examples/ordered_ends.py [HOST:PORT]`.
"""

from __future__ import annotations

import sys
from uuid import uuid4

from tracker.client import Ended, JobSpec, Report, TrackerClient, label

HOURS = 3
SHOPS = ("berlin", "lima", "oslo")
HANGS = ("lima", 1)  #: a shop, and the hour in which one of its orders is not received


def main(address: str = "127.0.0.1:7654") -> None:
    job = f"ordered-{uuid4().hex[:8]}"  # each run of this program has a job of its own
    with TrackerClient(address) as client:
        # The ends rest on what is committed (a firm bound), and come by end time over all shops.
        client.define_job(
            JobSpec(job=job, deployment="d1", segments={"orders": []}, ordering="global", committed_ends=True)
        )
        source = client.open_producer(job, producer="source", run="1")
        sent = source.epoch()
        for hour in range(HOURS):
            for shop in SHOPS:
                sent.sent("orders", shop, f"hour {hour}", label(shop, hour), end_time=hour + 1)
                sent.close(shop, f"hour {hour}", end_time=hour + 1)
        sent.report(commit=True)

        worker = client.open_producer(job, producer="worker", run="1")
        received = worker.epoch()
        for hour in range(HOURS):
            for shop in SHOPS:
                if (shop, hour) != HANGS:
                    receive(received, shop, hour)
        received.report(commit=True)
        print(f"out: {ended(client, job)}")
        waits = client.explain(job, "oslo", "hour 2")
        first = waits.earlier[0]
        print(
            f"oslo's hour 2 is complete. {waits.earlier_count} of all has to end before: {first.scope}'s {first.name}"
        )

        late = worker.epoch()
        receive(late, *HANGS)
        late.report(commit=True)
        print(f"out: {ended(client, job)}")


def receive(report: Report, shop: str, hour: int) -> None:
    report.received("orders", shop, f"hour {hour}", label(shop, hour), end_time=hour + 1)


def ended(client: TrackerClient, job: str) -> str:
    """Return the ends so far, in their order."""
    ends = [event.kind for event in client.list_events(job).events if isinstance(event.kind, Ended)]
    return ", ".join(f"{end.scope} {end.name.removeprefix('hour ')}" for end in ends)


if __name__ == "__main__":
    main(*sys.argv[1:])
