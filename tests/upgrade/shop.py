"""A job of release 0.1 in the middle of its work. Run with the code of that release: `python shop.py HOST:PORT`.

It prints what a reader of its events has seen as JSON: the log's id and the number of the last event.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

from tracker.client import JobSpec, TrackerClient, label


def main(address: str) -> None:
    client = TrackerClient(address)
    segments = {"orders": ["mails"], "mails": []}
    client.define_job(
        JobSpec(job="shop", deployment="d1", segments=segments, fronts=("schedule",), retention=timedelta(days=36_500))
    )
    till = client.open_producer("shop", "till", run="r1")
    first = till.epoch(0)
    for number in range(3):
        for day in ("monday", "tuesday", "wednesday"):
            first.sent("orders", "berlin", day, label(day, number), end_time=1 if day == "monday" else None)
    first.close("berlin", "tuesday", front="schedule")
    first.close("berlin", "wednesday", front="schedule")
    first.report(commit=True)
    cook = client.open_producer("shop", "cook", run="r1")
    cooked = cook.epoch(0)
    for number in range(3):
        cooked.received("orders", "berlin", "tuesday", label("tuesday", number))
        cooked.received("orders", "berlin", "monday", label("monday", number), end_time=1)
    cooked.received("orders", "berlin", "wednesday", label("wednesday", 0))
    cooked.report(commit=True)  # tuesday has ended
    staged = cook.epoch(1)
    for number in (1, 2):
        staged.received("orders", "berlin", "wednesday", label("wednesday", number))
    staged.report(units=["a"])  # wednesday would end with its commit
    quick = client.open_producer("shop", "quick", run="r1", mode="immediate")
    quick.epoch(0).report(commit=True)
    promised = quick.epoch(1)
    promised.sent("mails", "lima", "monday", label("lima", 1))
    promised.report(units=["a"])
    page = client.list_events("shop")
    names = [event.kind.name for event in page.events]  # type: ignore[union-attr]
    print(json.dumps({"log_id": page.log_id, "last_seq": page.last_seq, "names": names}))


if __name__ == "__main__":
    main(*sys.argv[1:])
