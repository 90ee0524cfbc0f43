"""The tracking agent: what machines say, put to the tracker's own core, and what it announces, checked.

Every message is made by the client's code, serialised, read by the server's code and applied by the core, one after
the other as they arrive; only the network between is simulated. Bytes are those of the serialised requests and events.
Every end is held against what the dataflow knows: it must come once, completely, and never before the substream was
over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import Message

from experiments.dataflow import F8, HOP_NS, Run, hops
from experiments.reports import NO_PROMISE, Messages, Said
from tracker.contract.commands import Contents, Frontier
from tracker.core import Committed, DefineJob, Ended, OpenProducer, Reason, Reported, Spec, Tracker
from tracker.wire import codec
from tracker.wire.codec import Method, write_report
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

JOB = "rr"
RUN = "r1"


class WrongEndError(Exception):
    """The tracker announced something that was not so, or did not announce what was."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The cost of following a run."""

    messages: int
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
    machines = names_of_machines(run)
    tracker = new_tracker(run, producers=machines)
    ear = Ear(run, tracker)
    segments = [name for name, _ in run.shape.segments()]
    epochs = [0] * len(machines)
    for said, at in zip(messages.said(order), arrival[order].tolist(), strict=True):
        machine = machines[said.machine]
        message = request(said, segments, machine)
        # Each report is its producer's next epoch.
        message.producer, message.epoch, message.commit = machine, epochs[said.machine], True
        epochs[said.machine] += 1
        ear.tell(Method.REPORT, message.SerializeToString(), at)
    return ear.followed(len(messages), len(messages.xor), rng)


def names_of_machines(run: Run) -> list[str]:
    """Return the names of the machines, which are the job's fronts, too."""
    return [f"m{machine}" for machine in range(run.shape.machines)]


def new_tracker(run: Run, producers: Sequence[str]) -> Tracker:
    """Return a tracker that knows the run's graph, its fronts, and who reports."""
    tracker = Tracker("log")
    spec = Spec(JOB, "d1", run.shape.segments(), fronts=tuple(names_of_machines(run)))
    tracker.apply(DefineJob(spec), 0)
    for producer in producers:
        tracker.apply(OpenProducer(JOB, producer, RUN), 0)
    return tracker


def _arrivals(messages: Messages, machines: int, rng: np.random.Generator) -> F8:
    """Return when each message reaches the agent: those of one machine never overtake each other."""
    arrival: F8 = messages.at + hops(rng, len(messages))
    for machine in range(machines):
        own = messages.machine == machine
        arrival[own] = np.maximum.accumulate(arrival[own])
    return arrival


def request(said: Said, segments: Sequence[str], front: str = "") -> columns_pb2.ReportRequest:
    """Return a report as the client makes it, but for who reports it.

    Args:
        said: its content.
        segments: the job's.
        front: whose promise it carries, if any.
    """
    return message(contents(said, segments, front))


def message(contents: Contents) -> columns_pb2.ReportRequest:
    """Return a report as the client makes it, all by name, but for who reports it."""
    made, _ = write_report(contents, "", [None] * len(contents.substreams), want_ids=False)
    made.job, made.run = JOB, RUN
    return made


def contents(said: Said, segments: Sequence[str], front: str = "") -> Contents:
    """Return a report's contents, for `request`."""
    substreams, substream_index = np.unique(said.substream, return_inverse=True)
    spoken, segment_index = np.unique(said.segment, return_inverse=True)
    return Contents(
        substreams=[("", str(substream)) for substream in substreams.tolist()],
        end_times=substreams,
        segments=[segments[segment] for segment in spoken.tolist()],
        substream_index=substream_index.astype(np.uint32),
        segment_index=segment_index.astype(np.uint32),
        xor=said.xor,
        sent=said.sent.astype(np.uint32),
        received=said.received.astype(np.uint32),
        promises=() if said.promise == NO_PROMISE else (Frontier(front, said.promise),),
    )


class Ear:
    """A reporter to a tracker, which counts bytes, and holds what is announced against what was so."""

    def __init__(self, run: Run, tracker: Tracker) -> None:
        self._run = run
        self._tracker = tracker
        self._numbers = {name: number for number, (name, _) in enumerate(run.shape.segments())}
        self._heard = np.zeros(run.out.shape, np.bool_)
        self._heard_at = np.zeros(run.shape.substreams)  # of the end on the last segment
        self._last_seq = self._bytes = self._answer_bytes = self._end_bytes = self._ending = 0

    def tell(self, method: Method, data: bytes, at: float) -> None:
        """Hand over a request.

        Args:
            method: what it asks for: a report or a commit.
            data: it, serialised.
            at: when it arrives, in hops.
        """
        self._bytes += len(data)
        answer = self._tracker.apply(codec.read_command(method, data), int(at * HOP_NS))
        assert isinstance(answer, Reported | Committed)
        self._answer_bytes += _answer(answer).ByteSize()
        if answer.last_seq == self._last_seq:
            return
        events, self._last_seq = self._tracker.view(JOB).events(self._last_seq, limit=answer.last_seq - self._last_seq)
        for event in events:
            self._hear(event.kind, at)
            self._end_bytes += codec.write_event(event).ByteSize()
        self._ending += 1

    def _hear(self, body: object, at: float) -> None:
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
        self._heard_at[substream] = at

    def followed(self, messages: int, entries: int, rng: np.random.Generator) -> Followed:
        """Return the costs, once every report is applied.

        Raises:
            WrongEndError: an end did not come.
        """
        if not self._heard.all():
            raise WrongEndError(f"{(~self._heard).sum()} ends did not come")
        status = self._tracker.view(JOB).status()
        if status.open_substreams or status.in_flight or status.late_reports:
            raise WrongEndError(f"at the end, {status.open_substreams} are open, {status.in_flight} elements in flight")
        return Followed(
            messages=messages,
            entries=entries,
            bytes=self._bytes,
            answer_bytes=self._answer_bytes,
            ends=int(self._heard.sum()),
            end_bytes=self._end_bytes,
            ending_messages=self._ending,
            delay=self._heard_at - self._run.over + hops(rng, self._run.shape.substreams),
        )


def _answer(answer: Reported | Committed) -> Message:
    if isinstance(answer, Committed):
        return wire.CommitResponse(last_seq=answer.last_seq)
    return codec.write_reported(answer)
