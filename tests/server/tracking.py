"""Commands to a server, in few words."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.conformance.over_grpc import refusal
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub


def define(stub: TrackerStub, job: str = "job", **spec: Any) -> wire.DefineJobResponse:
    """Define a job of two segments and one front, with one producer that has opened its run."""
    defaults: dict[str, Any] = {
        "deployment": "d1",
        "segments": [wire.Segment(name="a", feeds=["b"]), wire.Segment(name="b")],
        "fronts": ["f"],
    }
    response = stub.DefineJob(wire.DefineJobRequest(spec=wire.JobSpec(job=job, **{**defaults, **spec})))
    stub.OpenProducer(wire.OpenProducerRequest(job=job, producer="p", run="r"))
    return response


def report(epoch: int, job: str = "job", **more: Any) -> wire.ReportRequest:
    """Return an epoch of its own: one element sent and received on `a`, of the substream ``w<epoch>``."""
    defaults: dict[str, Any] = {
        "producer": "p",
        "run": "r",
        "scopes": ["tenant"],
        "names": [f"w{epoch}"],
        "scope_index": [0],
        "end_times": [epoch],
        "segments": ["a"],
        "substream_index": [0],
        "segment_index": [0],
        "xor": [0],
        "sent": [1],
        "received": [1],
        "entry_count": 1,
        "commit": True,
    }
    return wire.ReportRequest(job=job, epoch=epoch, **{**defaults, **more})


def ends(epoch: int, job: str = "job", **more: Any) -> wire.ReportRequest:
    """Return such a report with a frontier that ends its substream: two events."""
    frontier = wire.Promise(frontier=wire.Frontier(front="f", time=epoch))
    return report(epoch, job, promises=[frontier], **more)


def many_ends(count: int) -> wire.ReportRequest:
    """Return epoch 0: so many substreams of long names, which all end: two events each."""
    return report(
        0,
        names=[f"{'x' * 400}{number}" for number in range(count)],
        scope_index=[0] * count,
        end_times=list(range(count)),
        substream_index=list(range(count)),
        segment_index=[0] * count,
        xor=[0] * count,
        sent=[1] * count,
        received=[1] * count,
        entry_count=count,
        promises=[wire.Promise(frontier=wire.Frontier(front="f", time=count))],
    )


def refused(call: Any, *arguments: Any, **options: Any) -> tuple[str, str, str]:
    """Return the code, reason and message with which a call is refused."""
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **options)
    said = refusal(error.value)
    return said["code"], said["reason"], error.value.details() or ""
