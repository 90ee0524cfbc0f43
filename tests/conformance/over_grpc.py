"""Carries out the lines of a vector over gRPC, with the contract's own messages: any client's view of the tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from tests.model.lines import NAMING
from tracker.wire import ERROR_DOMAIN
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

Line = dict[str, Any]

NO_END_TIME = 2**63 - 1


class Driver:
    """A driver of one job over gRPC.

    Args:
        stub: of a server; another one may take its place between two lines.
    """

    def __init__(self, stub: TrackerStub, job: str) -> None:
        self.stub = stub
        self._job = job
        self._seq = 0

    def run(self, line: Line) -> tuple[Any, list[Any]]:
        """Carry out one line. Return its answer (`expect`) and the events that it caused (`events`)."""
        try:
            said = getattr(self, f"_{line['do']}")(line)
        except grpc.RpcError as error:
            said = refusal(error)
        return said, self.new_events()

    def _define(self, line: Line) -> Any:
        spec = wire.JobSpec(
            job=self._job,
            deployment=line["deployment"],
            segments=[
                wire.Segment(name=name, feeds=feeds, state=name in line.get("state_segments", ()))
                for name, feeds in line["segments"]
            ],
            fronts=line["fronts"],
            ordering=wire.Ordering.Value(f"ORDERING_{line['ordering']}"),
            progress=line.get("progress", False),
            front_segments=[
                wire.FrontSegments(front=front, segments=segments) for front, segments in line.get("front_segments", [])
            ],
            committed_ends=line.get("committed_ends", False),
        )
        response = self.stub.DefineJob(wire.DefineJobRequest(spec=spec, force=line.get("force", False)))
        return {"created": response.created}

    def _open(self, line: Line) -> Any:
        response = self.stub.OpenProducer(
            wire.OpenProducerRequest(
                job=self._job,
                producer=line["producer"],
                run=line["run"],
                mode=wire.Mode.Value(line["mode"]),
                resume_epoch=line.get("resume_epoch"),
                seals=line.get("seals", False),
            )
        )
        return {"committed_epoch": response.committed_epoch if response.HasField("committed_epoch") else None}

    def _report(self, line: Line) -> Any:
        response = self.stub.Report(report(self._job, line))
        said: dict[str, Any] = {"outcome": wire.ReportResponse.Outcome.Name(response.outcome)}
        if response.outcome == wire.ReportResponse.PARTIAL_DUPLICATE:
            said["duplicate_units"] = list(response.duplicate_units)
        return said

    def _commit(self, line: Line) -> Any:
        self.stub.Commit(
            wire.CommitRequest(
                job=self._job,
                producer=line["producer"],
                run=line["run"],
                epoch=line.get("epoch"),
                units=wire.Units(names=line["units"]) if line.get("units") is not None else None,
                seal=line.get("seal", False),
                promises=[_promise(promise) for promise in line.get("promises", [])],
            )
        )
        return {}

    def _close(self, line: Line) -> Any:
        self.stub.CloseProducer(
            wire.CloseProducerRequest(
                job=self._job, producer=line["producer"], run=line["run"], resume_epoch=line.get("resume_epoch")
            )
        )
        return {}

    def _forget(self, line: Line) -> Any:
        self.stub.ForgetProducer(wire.ForgetProducerRequest(job=self._job, producer=line["producer"]))
        return {}

    def _finish_front(self, line: Line) -> Any:
        self.stub.FinishFront(wire.FinishFrontRequest(job=self._job, front=line["front"]))
        return {}

    def _drain(self, line: Line) -> Any:
        request = wire.DrainRequest(job=self._job, deployment=line["deployment"], drain_id=line["drain_id"])
        if "mode" in line:
            request.mode = wire.DrainMode.Value(f"DRAIN_MODE_{line['mode']}")
        return _state(self.stub.Drain(request))

    def _cancel_drain(self, line: Line) -> Any:
        return _state(
            self.stub.CancelDrain(
                wire.CancelDrainRequest(job=self._job, deployment=line["deployment"], drain_id=line.get("drain_id", ""))
            )
        )

    def _abandon(self, line: Line) -> Any:
        self.stub.Abandon(wire.AbandonRequest(job=self._job, scope=line["scope"], name=line["name"]))
        return {}

    def _explain(self, line: Line) -> Any:
        response = self.stub.Explain(wire.ExplainRequest(job=self._job, scope=line["scope"], name=line["name"]))
        if not response.HasField("substream"):
            return None
        segments = response.substream.segments
        return {
            "ended": sorted(each.segment for each in segments if each.ended),
            "by_drain": sorted(each.segment for each in segments if each.by_drain),
        }

    def _through(self, line: Line) -> Any:
        log_id = self.stub.GetJob(wire.GetJobRequest(job=self._job)).log_id
        scopes = [scope for scope, _ in line["substreams"]]
        response = self.stub.AwaitThrough(
            wire.AwaitThroughRequest(
                job=self._job,
                log_id="another" if line.get("log") == "other" else log_id,
                producer=line["producer"],
                epoch=line["epoch"],
                scopes=scopes,
                names=[name for _, name in line["substreams"]],
                scope_index=range(len(scopes)),
            )
        )
        return {field: list(getattr(response, field)) for field in ("pending", "lost", "forgotten")}

    def _subscribe(self, line: Line) -> Any:
        response = self.stub.Subscribe(
            wire.SubscribeRequest(
                job=self._job,
                name=line["name"],
                segments=line.get("segments"),
                scopes=line.get("scopes"),
                after_seq=line.get("after_seq"),
            )
        )
        return {"acknowledged": response.acknowledged, "created": response.created}

    def _ack(self, line: Line) -> Any:
        response = self.stub.Ack(wire.AckRequest(job=self._job, name=line["name"], seq=line["seq"]))
        return {"acknowledged": response.acknowledged}

    def _unsubscribe(self, line: Line) -> Any:
        self.stub.Unsubscribe(wire.UnsubscribeRequest(job=self._job, name=line["name"]))
        return {}

    def new_events(self) -> list[Any]:
        """Return the events since the last call."""
        try:
            response = self.stub.ListEvents(wire.ListEventsRequest(job=self._job, after_seq=self._seq, limit=10_000))
        except grpc.RpcError as error:
            if refusal(error) != {"code": "NOT_FOUND", "reason": "UNKNOWN_JOB"}:
                raise
            return []  # the job is not defined yet
        assert [event.seq for event in response.events] == list(range(self._seq + 1, response.last_seq + 1))
        self._seq = response.last_seq
        return [_event(event) for event in response.events]


def report(job: str, line: Line) -> wire.ReportRequest:
    entries, promises = line["entries"], line["promises"]
    mentions = [(entry[0], entry[1], entry[2]) for entry in entries]
    mentions += [(said[2], said[3], said[4]) for said in promises if said[0] in NAMING]
    index = {mention: i for i, mention in enumerate(dict.fromkeys(mentions))}
    scopes = list(dict.fromkeys(scope for scope, _, _ in index))
    segments = list(dict.fromkeys(entry[3] for entry in entries))
    return wire.ReportRequest(
        job=job,
        producer=line["producer"],
        run=line["run"],
        epoch=line["epoch"],
        units=line["units"],
        scopes=scopes,
        names=[name for _, name, _ in index],
        scope_index=[scopes.index(scope) for scope, _, _ in index],
        end_times=[NO_END_TIME if end_time is None else end_time for _, _, end_time in index],
        segments=segments,
        substream_index=[index[entry[0], entry[1], entry[2]] for entry in entries],
        segment_index=[segments.index(entry[3]) for entry in entries],
        xor=[entry[4] for entry in entries],
        sent=[entry[5] for entry in entries],
        received=[entry[6] for entry in entries],
        entry_count=len(entries),
        promises=[_promise(promise, index) for promise in promises],
        commit=line["commit"],
    )


def _promise(said: list[Any], index: dict[Any, int] | None = None) -> wire.Promise:
    """Return a promise; without an index, of a commit, in which an expectation names its substream itself."""
    match said:
        case ["frontier", front, scope, time]:
            return wire.Promise(frontier=wire.Frontier(front=front, scope=scope, time=time))
        case ["close", front, scope, name, end_time, *only]:
            place = (index or {}).get((scope, name, end_time), 0)
            close = wire.Close(front=front, substream_index=place, only_without_fronts=bool(only and only[0]))
            return wire.Promise(close=close)
        case ["finish", front]:
            return wire.Promise(finish=front)
        case ["expect", front, scope, name, end_time, segment, elements, *revise]:
            changes, xor = bool(revise and revise[0]), revise[1] if len(revise) > 1 else None
            expect = wire.Expect(front=front, segment=segment, elements=elements, revise=changes, xor=xor)
            if index is None:
                expect.substream.MergeFrom(wire.SubstreamName(scope=scope, name=name, end_time=end_time))
            else:
                expect.substream_index = index[scope, name, end_time]
            return wire.Promise(expect=expect)
        case ["identities", front, scope, name, end_time, segment, xor]:
            place = (index or {})[scope, name, end_time]
            identities = wire.Identities(front=front, segment=segment, substream_index=place, xor=xor)
            return wire.Promise(identities=identities)
    raise ValueError(said)


def _state(status: wire.DrainStatus) -> Any:
    return {"state": wire.DrainState.Name(status.state)}


def _event(event: wire.Event) -> list[Any]:
    kind = event.WhichOneof("kind")
    assert kind is not None
    body: Any = getattr(event, kind)
    expected = body.expected if kind == "ended" and body.HasField("expected") else None
    say: dict[str, Callable[[], list[Any]]] = {
        "ended": lambda: [
            body.segment,
            body.scope,
            body.name,
            body.end_time if body.HasField("end_time") else None,
            body.elements,
            wire.Reason.Name(body.reason),
            body.in_flight,
            *([body.by_drain, expected] if body.by_drain or expected is not None else []),
        ],
        "excess": lambda: [body.segment, body.scope, body.name, body.expected, body.sent],
        "late": lambda: [body.segment, body.scope, body.name, body.producer, body.sent, body.received],
        "advanced": lambda: [body.segment, body.time],
    }
    return [kind.upper(), *say.get(kind, lambda: [body.drain_id, *_mode(body)])()]


def _mode(drain: wire.DrainEvent) -> list[str]:
    return ["HAND_OVER"] if drain.mode == wire.DRAIN_MODE_HAND_OVER else []


def refusal(error: grpc.RpcError) -> dict[str, str]:
    """Return a refusal's code and reason; the reason is in the details and at the beginning of the message."""
    assert isinstance(error, grpc.Call)
    status = rpc_status.from_call(error)
    assert status is not None, f"a refusal without details: {error.code()}: {error.details()}"
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == ERROR_DOMAIN
    assert (error.details() or "").startswith(f"{info.reason}: ")
    return {"code": error.code().name, "reason": info.reason}
