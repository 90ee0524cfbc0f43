"""The drill of docs/howto/runbook.md: the journal is lost, and after a restore everything is exact again."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.client.processes import TRACKER, Server
from tests.journal.redis_server import RedisServer, needs_redis
from tracker.client import Ended, JobSpec, TrackerClient, TrackerError, label

_LAST = 60  # epochs that each reporter commits in all
_REPORTERS = ("p", "q")
_JOB = "flights"


class Reporter:
    """A program whose source can be read again: it commits epoch after epoch, and follows the runbook.

    Attributes:
        done: the next epoch.
        restarts: for which reasons it had to open another run, and from which epoch on it repeated.
    """

    def __init__(self, server: str, name: str) -> None:
        self.name = name
        self.done = 0
        self.restarts: list[tuple[str, int]] = []
        self._server = server
        self._go_on = threading.Event()
        self._until = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def report_until(self, epoch: int) -> None:
        self._until = epoch
        self._go_on.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        with TrackerClient(self._server, retry_for=300) as client:
            producer = client.open_producer(_JOB, self.name, "run-0")
            while self.done < _LAST:
                while self.done >= self._until:
                    self._go_on.wait()
                    self._go_on.clear()
                try:
                    epoch = producer.epoch(self.done)
                    for count in range(1 + self.done % 3):
                        element = label(f"{self.name}-{self.done}-{count}")
                        epoch.sent("raw", self.name, str(self.done), element)
                        epoch.received("raw", self.name, str(self.done), element)
                    epoch.close(self.name, str(self.done))
                    epoch.report(commit=True)
                except TrackerError as refused:
                    producer = client.open_producer(_JOB, self.name, f"run-{1 + len(self.restarts)}")
                    self.restarts.append((refused.reason, producer.next_epoch()))
                    self.done = producer.next_epoch()
                else:
                    self.done += 1


def wait_for(reporters: list[Reporter], epoch: int) -> None:
    for reporter in reporters:
        while reporter.done < epoch:
            time.sleep(0.02)


def tracker(*arguments: str) -> dict[str, object]:
    ran = subprocess.run([*TRACKER, *arguments, "--json"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, object] = json.loads(ran.stdout)
    return answer


@needs_redis
@pytest.mark.slow
def test_a_lost_journal_is_restored_into_another_kind_and_all_is_exact(tmp_path: Path) -> None:
    backups = f"{tmp_path / 'backups'}/"
    server = Server(tmp_path)
    with TrackerClient(server.address, retry_for=300) as client:
        client.define_job(JobSpec(job=_JOB, deployment="d1", segments={"raw": []}))
        reporters = [Reporter(server.address, name) for name in _REPORTERS]
        for reporter in reporters:
            reporter.report_until(40)
        wait_for(reporters, 10)
        tracker("backup", backups, "--server", server.address)  # they go on meanwhile
        wait_for(reporters, 40)
        with client.watch(_JOB) as watch:
            while watch.last_seq < client.job(_JOB).last_seq:
                next(watch)
            old_log, old_seq = watch.log_id, watch.last_seq

        server.kill()
        for file in tmp_path.glob("tracker.db*"):
            file.unlink()
        redis = RedisServer(tmp_path / "redis")
        server.journal = redis.address()
        restored = tracker("restore", backups, "--journal", server.journal)
        assert restored["ended_runs"] == len(_REPORTERS)
        server.start()

        with client.watch(_JOB, after_seq=old_seq, log_id=old_log) as watch:
            with pytest.raises(TrackerError) as refused:
                next(watch)
            assert refused.value.reason == "LOG_CHANGED"
        for reporter in reporters:
            reporter.report_until(_LAST)
        for reporter in reporters:
            reporter.join()
            [(reason, repeated_from)] = reporter.restarts
            assert reason == "FENCED"
            assert 10 <= repeated_from <= 40
        ended: Counter[tuple[str, str]] = Counter()
        elements: dict[tuple[str, str], int] = {}
        with client.watch(_JOB) as watch:
            while watch.last_seq < client.job(_JOB).last_seq:
                kind = next(watch).kind
                assert isinstance(kind, Ended)
                ended[kind.scope, kind.name] += 1
                elements[kind.scope, kind.name] = kind.elements
        assert elements == {(name, str(epoch)): 1 + epoch % 3 for name in _REPORTERS for epoch in range(_LAST)}
        assert set(ended.values()) == {1}
        assert client.job(_JOB).in_flight == 0
    server.kill()
    redis.kill()
