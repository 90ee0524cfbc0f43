"""The tracking agent: what machines say, put to the tracker's own core, and what it announces, checked.

Every message is made by the client's code, serialised, read by the server's code and applied by the core, one after
the other as they arrive; only the network between is simulated. Bytes are those of the serialised requests and events.
Every end is held against what the dataflow knows: it must come once, completely, and never before the substream was
over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.dataflow import F8, HOP_NS, Run, hops
from experiments.reports import NO_PROMISE, Messages, Said
from tracker.client.messages import report_message
from tracker.client.report import Contents, Frontier
from tracker.core import DefineJob, Ended, OpenProducer, Reason, Reported, Spec, Tracker
from tracker.server import translation
from tracker.server.translation import Method

_JOB = "rr"
_RUN = "r1"


class WrongEndError(Exception):
    """The tracker announced something that was not so, or did not announce what was."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What it took to follow a run."""

    messages: int
    only_promises: int  #: of them: those that spoke of no element
    entries: int
    bytes: int  #: of the requests
    answer_bytes: int  #: of the answers, one to each message
    ends: int  #: Ended events
    end_bytes: int  #: of them, once
    ending_messages: int  #: messages that made the tracker announce any
    delay: F8  #: for each substream, hops from when it was over to when a watcher of its last segment has heard it


def follow(run: Run, messages: Messages) -> Followed:
    """Let the tracker follow a run.

    Raises:
        WrongEndError: an end came early, twice, incomplete or not at all.
    """
    rng = np.random.default_rng(run.shape.seed + 1)
    arrival = _arrivals(messages, run.shape.machines, rng)
    order = np.argsort(arrival, kind="stable")
    witness = _Witness(run)
    tracker = Tracker("log")
    machines = [f"m{machine}" for machine in range(run.shape.machines)]
    segments = run.shape.segments()
    tracker.apply(DefineJob(Spec(_JOB, "d1", segments, fronts=tuple(machines))), 0)
    for machine in machines:
        tracker.apply(OpenProducer(_JOB, machine, _RUN), 0)
    names = [name for name, _ in segments]
    epochs = [0] * len(machines)
    sent_bytes = answer_bytes = end_bytes = ends = ending = last_seq = 0
    for said, at in zip(messages.said(order), arrival[order].tolist(), strict=True):
        data = _request(said, machines[said.machine], epochs[said.machine], names)
        epochs[said.machine] += 1
        sent_bytes += len(data)
        answer = tracker.apply(translation.command(Method.REPORT, data), int(at * HOP_NS))
        assert isinstance(answer, Reported)
        answer_bytes += translation.reported(answer).ByteSize()
        if answer.last_seq > last_seq:
            events, last_seq = tracker.events(_JOB, last_seq, limit=answer.last_seq - last_seq)
            for event in events:
                witness.hear(event.body, at)
                end_bytes += translation.event(event).ByteSize()
            ends += len(events)
            ending += 1
    witness.conclude(tracker)
    return Followed(
        messages=len(messages),
        only_promises=messages.only_promises,
        entries=len(messages.xor),
        bytes=sent_bytes,
        answer_bytes=answer_bytes,
        ends=ends,
        end_bytes=end_bytes,
        ending_messages=ending,
        delay=witness.heard - run.over + hops(rng, run.shape.substreams),
    )


def _arrivals(messages: Messages, machines: int, rng: np.random.Generator) -> F8:
    """When each message reaches the agent: those of one machine never overtake each other."""
    arrival: F8 = messages.at + hops(rng, len(messages))
    for machine in range(machines):
        own = messages.machine == machine
        arrival[own] = np.maximum.accumulate(arrival[own])
    return arrival


def _request(said: Said, machine: str, epoch: int, segments: list[str]) -> bytes:
    """The bytes of a report, made as the client makes them; each report is its producer's next epoch."""
    substreams, substream_index = np.unique(said.substream, return_inverse=True)
    spoken, segment_index = np.unique(said.segment, return_inverse=True)
    promises = () if said.promise == NO_PROMISE else (Frontier(machine, said.promise),)
    contents = Contents(
        substreams=[("", str(substream)) for substream in substreams.tolist()],
        end_times=substreams,
        segments=[segments[segment] for segment in spoken.tolist()],
        substream_index=substream_index.astype(np.uint32),
        segment_index=segment_index.astype(np.uint32),
        xor=said.xor,
        sent=said.sent.astype(np.uint32),
        received=said.received.astype(np.uint32),
        promises=promises,
    )
    request, _ = report_message(contents, "", [None] * len(substreams), want_ids=False)
    request.job, request.producer, request.run, request.epoch, request.commit = _JOB, machine, _RUN, epoch, True
    return request.SerializeToString()


class _Witness:
    """Knows when each substream was over, and hears what the tracker says of it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._numbers = {name: number for number, (name, _) in enumerate(run.shape.segments())}
        self._heard = np.zeros(run.out.shape, np.bool_)
        self.heard = np.zeros(run.shape.substreams)  #: when its end on the last segment was announced

    def hear(self, body: object, at: float) -> None:
        if not isinstance(body, Ended) or body.reason is not Reason.COMPLETE or body.in_flight:
            raise WrongEndError(f"{body} was announced, where nothing but complete ends are to be")
        substream, segment = int(body.name), self._numbers[body.segment]
        if self._heard[substream, segment]:
            raise WrongEndError(f"{body} was announced before")
        self._heard[substream, segment] = True
        over = max(self._run.out[substream, segment], self._run.closed[substream])
        if at < over:
            raise WrongEndError(f"{body} was announced at {at}, but it was over only at {over}")
        if body.elements != self._run.travelled[substream, segment]:
            raise WrongEndError(f"{body} counts elements that are not {self._run.travelled[substream, segment]}")
        self.heard[substream] = at

    def conclude(self, tracker: Tracker) -> None:
        if not self._heard.all():
            raise WrongEndError(f"{(~self._heard).sum()} ends did not come")
        status = tracker.job_status(_JOB)
        if status.open_substreams or status.in_flight or status.late_reports:
            raise WrongEndError(f"at the end there are {status.open_substreams} open, {status.in_flight} in flight")
