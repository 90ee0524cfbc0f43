from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tracker.client import JobSpec, Report, TrackerClient
from tracker.testing import LocalTracker

pytest_plugins = ["pytester"]

Filler = Callable[[Report], object]


@pytest.fixture
def tracker() -> Iterator[LocalTracker]:
    with LocalTracker() as tracker:
        yield tracker


def define(client: TrackerClient, **rules: object) -> None:
    """Define the job ``shop`` with the segments ``orders`` and ``mails``, unless the rules have others."""
    spec = {"job": "shop", "deployment": "d1", "segments": {"orders": ["mails"], "mails": []}} | rules
    client.define_job(JobSpec(**spec))  # type: ignore[arg-type]


def report(client: TrackerClient, *fill: Filler, commit: bool = True, producer: str = "till") -> None:
    """Report one epoch of a producer with what the fillers add to it."""
    opened = client.open_producer("shop", producer, run="1")
    epoch = opened.epoch()
    for each in fill:
        each(epoch)
    epoch.report(units=() if commit else ["task"], commit=commit)


def sent(name: str, label: int = 1, segment: str = "orders") -> Filler:
    return lambda epoch: epoch.sent(segment, "berlin", name, label)


def received(name: str, label: int = 1, segment: str = "orders") -> Filler:
    return lambda epoch: epoch.received(segment, "berlin", name, label)


def closed(name: str) -> Filler:
    return lambda epoch: epoch.close("berlin", name)
