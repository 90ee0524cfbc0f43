"""A queue and two workers, tracked: the tracker announces when a batch is done, whichever worker did what, and when.

Start a tracker (`tracker serve`) and run `python examples/plain_pipeline.py [HOST:PORT]`.
"""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue
from uuid import uuid4

from tracker.client import JobSpec, TrackerClient, label

BATCHES = {"cats": 30, "dogs": 20, "birds": 10}  # how many images each has


def main(address: str = "127.0.0.1:7654") -> None:
    run = str(uuid4())  # each run of this program has batches of its own: it is their scope
    queue: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
    with TrackerClient(address) as client:
        client.define_job(JobSpec(job="thumbnails", deployment="d1", segments={"images": []}))

        def work(name: str) -> None:
            with client.open_producer("thumbnails", producer=f"{name} of {run}", run=run) as worker:
                for (batch, image), report in zip(iter(queue.get, None), worker.epochs(), strict=False):
                    # … make a thumbnail; then say so. (Where images are many, say so once for many.)
                    report.received("images", run, batch, label(run, batch, image))
                    report.report(commit=True)

        workers = [threading.Thread(target=work, args=[name]) for name in ("ann", "bob")]
        for worker in workers:
            worker.start()
        with client.open_producer("thumbnails", producer=f"source of {run}", run=run) as source:
            for (batch, images), report in zip(BATCHES.items(), source.epochs(), strict=False):
                for image in range(images):
                    queue.put((batch, image))
                    report.sent("images", run, batch, label(run, batch, image))
                report.close(run, batch)  # nobody else will add to it
                report.report(commit=True)
        for batch in BATCHES:
            ended = client.wait_for_end("thumbnails", "images", run, batch, timeout=60)
            print(f"{batch}: all {ended.elements} images are done")
        for _ in workers:
            queue.put(None)
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
