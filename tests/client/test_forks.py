"""A process that forks while it uses the client: the parent goes on, and the child can use the same objects."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections.abc import Callable

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import Producer, TrackerClient, label


def fork(child: Callable[[], None]) -> int:
    """Run `child` in a child process. Return its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def count(client: TrackerClient, job: str, producer: str) -> None:
    """Report ten elements in a run."""
    with client.open_producer(job, producer, "r1") as opened:
        for epoch in range(10):
            report = opened.epoch(epoch)
            report.sent("raw", "s", "n", label(producer, epoch))
            report.report(units=["a"], commit=True)


def test_a_child_uses_a_client_that_its_parent_has_used(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    count(client, job, "parent")
    assert fork(lambda: count(client, job, "child")) == 0
    assert fork(lambda: count(client, job, "second child")) == 0
    count(client, job, "parent again")
    [substream] = client.substreams(job)
    assert substream.segments[0].sent == 40


def test_a_child_reports_in_an_event_loop_as_its_parent_did(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))

    async def one(producer: Producer) -> None:
        report = producer.epoch()
        report.sent("raw", "s", "n", label(report.epoch))
        await report.await_report(commit=True)

    with client.open_producer(job, "source", "r1") as producer:
        for _ in range(10):  # each thread of the pool is there, and none in the child
            asyncio.run(one(producer))
        assert fork(lambda: asyncio.run(one(producer))) == 0
    assert next(iter(client.substreams(job))).segments[0].sent == 11


def test_a_fork_amid_calls_and_watches_disturbs_neither_parent_nor_child(shared_server: Server, job: str) -> None:
    client = TrackerClient(shared_server.address)
    client.define_job(spec(job))
    done = threading.Event()
    ended: list[int] = []
    events = client.watch(job)
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    def watch() -> None:
        ended.extend(event.seq for event in events)

    def wait() -> None:
        client.wait_for_end(job, "raw", "s", "last", timeout=300)

    def report() -> None:
        producer = client.open_producer(job, "parent", "r1")
        epoch = 0
        while not done.is_set():
            closing = producer.epoch(epoch)
            closing.close("s", str(epoch))
            closing.report(units=["a"], commit=True)
            epoch += 1
        closing = producer.epoch(epoch)
        closing.close("s", "last")
        closing.report(units=["a"], commit=True)

    threads = [threading.Thread(target=guarded, args=[work]) for work in (watch, wait, report)]
    for thread in threads:
        thread.start()

    def child() -> None:
        count(client, job, f"child {os.getpid()}")
        assert next(events).seq > 0  # the parent's watch goes on from where the parent was

    statuses = []
    for _ in range(10):
        statuses.append(fork(child))
        seen = events.last_seq
        while events.last_seq < seen + 3 and not failures:
            time.sleep(0.01)
    done.set()
    for thread in threads[1:]:
        thread.join()
    last = client.job(job).last_seq
    while events.last_seq < last and not failures:
        time.sleep(0.01)
    events.close()
    threads[0].join()
    assert failures == []
    assert statuses == [0] * 10
    assert ended == list(range(1, last + 1))
    substreams = {substream.name: substream for substream in client.substreams(job)}
    assert substreams["n"].segments[0].sent == 100
