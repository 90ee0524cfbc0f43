"""Lives of a service: each is a process of its own, which kills itself (SIGKILL) at a point of its work.

A program: the first process forks each life, so that a life begins at once, and nothing of the one before is left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import tracker.kafka.consumer
import tracker.kafka.producer
from tests.services.shop import Shop
from tracker.client import TrackerClient
from tracker.client.producer import Producer as Run
from tracker.kafka import Consumer

#: Steps of a life; it can end before and after each.
_STEPS: tuple[tuple[Any, str], ...] = (
    (TrackerClient, "open_producer"),
    (Run, "deliver"),
    (Run, "commit"),
    (Consumer, "commit_offsets"),
    (tracker.kafka.producer, "retried"),  # each request to Kafka, with init_transactions and commit_transaction
    (tracker.kafka.producer._Epoch, "write"),
    (Path, "unlink"),
)


@dataclass
class Task:
    """Task of a program of lives.

    Attributes:
        kills: at which step each life ends; one more life comes to its end.
        orders: by substream; they are sent in this order.
        seen: a file for what was handed out.
    """

    service: str
    address: str
    servers: str
    job: str
    topic: str
    kills: list[int]
    outbox: str | None
    seed: int
    seen: str

    @property
    def orders(self) -> list[tuple[str, str]]:
        drawn = random.Random(self.seed)
        return [(f"day {drawn.randrange(number // 10, number // 10 + 3)}", str(number)) for number in range(60)]

    @property
    def truth(self) -> dict[str, int]:
        days = [day for day, _ in self.orders]
        return {day: days.count(day) for day in days}

    def epochs(self) -> list[list[tuple[str, str]]]:
        drawn, rest, cut = random.Random(self.seed + 1), self.orders, []
        while rest:
            size = drawn.randrange(1, 9)
            cut.append(rest[:size])
            rest = rest[size:]
        return cut


def end_at(step: int) -> None:
    """Let this process kill itself when it comes to a step."""
    left = [step]

    def point() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def counting(*args: Any, **kwargs: Any) -> Any:
            point()
            answer = call(*args, **kwargs)
            point()
            return answer

        return counting

    for owner, name in _STEPS:
        setattr(owner, name, counted(getattr(owner, name)))
    tracker.kafka.consumer.retried = tracker.kafka.producer.retried  # type: ignore[attr-defined]
    produced = tracker.kafka.producer._Epoch.with_headers

    def each(self: Any) -> Iterator[Any]:
        for message in produced(self):
            yield message
            point()

    tracker.kafka.producer._Epoch.with_headers = each  # type: ignore[method-assign]


def produce(shop: Shop, task: Task) -> None:
    """Send all orders, and close each day with its last one."""
    last = dict(task.orders)  # the last one of each day
    epochs = task.epochs()
    with shop.producer(outbox=task.outbox and Path(task.outbox)) as till:  # type: ignore[arg-type]
        while till.epoch <= len(epochs):
            for day, number in epochs[till.epoch - 1]:
                till.send(shop.topic, number, number, name=day, identity=[number])
                if last[day] == number:
                    till.close_substream("", day)
            till.commit()


def consume(shop: Shop, task: Task) -> None:
    """Receive until all days have ended."""
    number = 0
    with shop.consumer(**{"group.instance.id": "mailer-1"}) as mailer, Path(task.seen).open("ab", 0) as seen:
        while shop.client.job(task.job).ended_substreams < len(task.truth):
            received = mailer.poll(0.1)
            if received is not None:
                seen.write((received.message.value() or b"") + b"\n")
                number += 1
            if received is None or number % 5 == 0:
                mailer.commit()


def main(task: Task) -> None:
    for kill in [*task.kills, 0]:
        life = os.fork()
        if life == 0:
            end_at(kill)
            with TrackerClient(task.address) as client:
                {"produce": produce, "consume": consume}[task.service](
                    Shop(client, task.job, task.servers, task.topic), task
                )
            os._exit(0)
        _, status = os.waitpid(life, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))
        print(f"{task.service} has ended at step {kill}", flush=True)


def command(task: Task) -> list[str]:
    return [sys.executable, "-m", "tests.services.lives", json.dumps(asdict(task))]


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
