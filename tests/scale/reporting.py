"""A producer in a process of its own, which may be killed.

`python -m tests.scale.reporting SERVERS JOB RUN RESUME LAST`
Each epoch sends its windows' elements and receives those of the epoch before, so that every epoch matters to some end
on every shard. It says on stdout what it is about to do and waits for a line on stdin, if there is one.
"""

from __future__ import annotations

import sys

from tracker.client import JobSpec, Report, ShardedClient, label

WINDOWS = 12  #: that an epoch has, all of its end time: enough for some to be on each shard


def spec(job: str) -> JobSpec:
    return JobSpec(job=job, deployment="d1", segments={"up": []}, fronts=["f"], ordering="global", progress=True)


def say(report: Report, epoch: int, last: int) -> None:
    """Report an epoch, the same whenever it is reported."""
    for window in range(WINDOWS):
        if epoch < last:
            report.sent("up", "s", f"{epoch}/{window}", label(epoch, window), end_time=epoch)
        if epoch > 0:
            report.received("up", "s", f"{epoch - 1}/{window}", label(epoch - 1, window), end_time=epoch - 1)
    report.frontier("f", epoch)
    if epoch == last:
        report.finish("f")


def about_to(do: str) -> None:
    print(do, flush=True)
    sys.stdin.readline()


def main(servers: str, job: str, run: str, resume: int, last: int) -> None:
    with ShardedClient(servers, "global") as client:
        producer = client.open_producer(job, "q", run, resume_epoch=resume)
        for epoch in range(resume, last + 1):
            report = producer.epoch(epoch)
            say(report, epoch, last)
            about_to(f"report {epoch}")
            report.report(["all"])
            about_to(f"commit {epoch}")  # the engine has committed it; the tracker has not heard of it
            producer.commit(epoch)
        producer.close()
        about_to("stop")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
