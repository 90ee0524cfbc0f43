"""The tracker's Python client: report what was sent and received, and learn what has ended.

>>> from tracker.client import JobSpec, TrackerClient, label
>>> def count(address):
...     with TrackerClient(address) as client:
...         client.define_job(JobSpec(job="shop", deployment="d1", segments={"orders": []}))
...         till = client.open_producer("shop", "till", run="2026-01-01T06:00")
...         monday = till.epoch()  # the next one, whatever earlier runs have committed
...         for order in range(3):
...             monday.sent("orders", "berlin", "monday", label("orders", order))
...         monday.close("berlin", "monday")
...         monday.report(units=["monday"], commit=True)

This package must never import the server, its journal or its core, which may not be installed. The classes for a job on
several trackers are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracker.client.client import TrackerClient
from tracker.client.credentials import Credentials, CredentialsError
from tracker.client.errors import EpochCommittedError, TrackerError, TrackerUnavailable
from tracker.client.labels import label
from tracker.client.producer import Producer
from tracker.client.report import Report
from tracker.client.waiting import Passed, Token, WrongJobError, wait_for_progress
from tracker.client.watch import Subscription, Watch
from tracker.contract.commands import Expected, Finish, Frontier, JobDefined, Reported
from tracker.contract.events import (
    Advanced,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    EventPage,
    Excess,
    FrontIdle,
    Late,
    Stalled,
)
from tracker.contract.events import (
    Body as Kind,
)
from tracker.contract.spec import JobSpec
from tracker.contract.spec import ModeWord as Mode
from tracker.contract.spec import OrderingWord as Ordering
from tracker.contract.status import (
    DrainStatus,
    Explained,
    FrontStatus,
    JobStatus,
    ProducerStatus,
    SegmentStatus,
    ServerInfo,
    StagedCount,
    StagedStatus,
    SubscriptionStatus,
    SubstreamStatus,
)
from tracker.contract.values import NO_END_TIME, DrainMode, DrainState, Outcome, Reason
from tracker.wire import COMMITTED_ENDS, IDENTITIES

if TYPE_CHECKING:
    from tracker.sharded import Position, ShardedClient, ShardedProducer, ShardedWatch

__all__ = [
    "COMMITTED_ENDS",
    "IDENTITIES",
    "NO_END_TIME",
    "Advanced",
    "Credentials",
    "CredentialsError",
    "DrainCancelled",
    "DrainMode",
    "DrainRequested",
    "DrainState",
    "DrainStatus",
    "DrainTimedOut",
    "Drained",
    "Ended",
    "EpochCommittedError",
    "Event",
    "EventPage",
    "Excess",
    "Expected",
    "Explained",
    "Finish",
    "FrontIdle",
    "FrontStatus",
    "Frontier",
    "JobDefined",
    "JobSpec",
    "JobStatus",
    "Kind",
    "Late",
    "Mode",
    "Ordering",
    "Outcome",
    "Passed",
    "Position",
    "Producer",
    "ProducerStatus",
    "Reason",
    "Report",
    "Reported",
    "SegmentStatus",
    "ServerInfo",
    "ShardedClient",
    "ShardedProducer",
    "ShardedWatch",
    "StagedCount",
    "StagedStatus",
    "Stalled",
    "Subscription",
    "SubscriptionStatus",
    "SubstreamStatus",
    "Token",
    "TrackerClient",
    "TrackerError",
    "TrackerUnavailable",
    "Watch",
    "WrongJobError",
    "label",
    "wait_for_progress",
]

_SHARDED = {"Position", "ShardedClient", "ShardedProducer", "ShardedWatch"}


def __getattr__(name: str) -> Any:
    if name in _SHARDED:
        return getattr(import_module("tracker.sharded"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
