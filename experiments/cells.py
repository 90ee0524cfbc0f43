"""One configuration of the experiment: one run, followed by every protocol.

A message is what tracking alone sends from one process to another, one way. Reports all go over the network,
since the agent is on none of the machines. Messages between processes of one machine are counted apart. Answers to
reports are not counted, as the papers' one-way messages have none. To be notified of ends, every machine gets one
message whenever a report made the agent announce some.

Machines that report once an interval do so at moments of their own (`reports.Phases.RANDOM`). Batching is also measured
with machines in step, which is its best case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from experiments import agent, punctuations, relayed, reports
from experiments.dataflow import F8, HOP_NS, SECOND, Kind, Run, Shape, simulate
from experiments.reports import Messages, Phases

NODE_INTERVAL = 0.015 * SECOND  #: hops; the papers' most, 66 messages a second of each machine
BATCH_INTERVAL = 1.0 * SECOND  #: hops


class Protocol(StrEnum):
    PUNCTUATIONS = "punctuations"
    GATHERED = "punctuations, batched"
    ACTION = "agent, each action"
    STEP = "agent, each step"
    NODE = "agent, node aggregation"
    BATCH = "agent, batching"
    IN_STEP = "agent, batching in step"
    RELAY = "agent, epochs through relays"


COMPARED = tuple(protocol for protocol in Protocol if protocol is not Protocol.RELAY)  #: in every configuration


@dataclass(frozen=True, slots=True)
class Delay:
    """Hops from when a substream was over to when a machine knows."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, delays: F8) -> Delay:
        p50, p99 = np.percentile(delays, [50, 99])
        return cls(float(delays.mean()), float(p50), float(p99))


@dataclass(frozen=True, slots=True)
class Result:
    """The cost of a protocol on a run."""

    protocol: str
    interval_ms: float | None
    messages: int  #: reports or punctuations, over the network
    local_messages: int  #: within a machine: punctuations, or reports to the relay
    bytes: int  #: of `messages`, serialised, without what the transport adds
    entries: int | None  #: rows in reports; None: counted for a part only
    notices: int  #: times that ends were announced; each machine gets a message of it
    notice_bytes: int  #: of all those messages
    answer_bytes: int  #: of the answers to reports
    followed: int  #: of how many substreams ends were checked and delays taken; if not all, bytes are extrapolated
    delay: Delay
    total: int  #: messages, and notices to every machine


@dataclass(frozen=True, slots=True)
class Cell:
    shape: Shape
    results: tuple[Result, ...]

    def of(self, protocol: Protocol) -> Result | None:
        """Return a protocol's result; None if it is not possible here."""
        return next((result for result in self.results if result.protocol == protocol), None)


def measure(shape: Shape, follow: int | None, relays: bool = False) -> Cell:
    """Run a configuration under every protocol.

    Args:
        shape: the configuration.
        follow: put about so many messages of each protocol to the tracker: all, if a run has no more, else those of
            the run's first elements. None: all. Messages are counted over the whole run all the same.
        relays: also with relays.

    Raises:
        agent.WrongEndError: the tracker made a mistake.
    """
    run = simulate(shape)
    results = []
    if shape.kind is not Kind.LOOP:
        results += [_punctuations(run), _punctuations(run, BATCH_INTERVAL)]
    results += [
        _agent(run, Protocol.ACTION, reports.each_action, reports.count_each_action(run), follow),
        _agent(run, Protocol.STEP, reports.each_step, reports.count_each_step(run), follow),
        gathered(run, Protocol.NODE, NODE_INTERVAL, follow),
        gathered(run, Protocol.BATCH, BATCH_INTERVAL, follow),
        gathered(run, Protocol.IN_STEP, BATCH_INTERVAL, follow, Phases.IN_STEP),
    ]
    if relays:
        followed, local = relayed.follow(run, BATCH_INTERVAL)
        messages, entries = followed.messages, followed.entries
        over_relays = _result(run, Protocol.RELAY, BATCH_INTERVAL, messages, entries, run, followed)
        results.append(replace(over_relays, local_messages=local))
    return Cell(shape, tuple(results))


def intervals(shape: Shape, milliseconds: list[float], follow: int | None) -> Iterator[Result]:
    """Play node aggregation with one interval after the other."""
    run = simulate(shape)
    for each in milliseconds:
        yield gathered(run, Protocol.NODE, each / 1000 * SECOND, follow)


def gathered(
    run: Run, protocol: Protocol, interval: float, follow: int | None, phases: Phases = Phases.RANDOM
) -> Result:
    """Return the cost if machines report once an interval (hops)."""
    messages = reports.each_interval(run, interval, phases)
    if follow is None or len(messages) <= follow:
        followed = agent.follow(run, messages)
        return _result(run, protocol, interval, len(messages), len(messages.xor), run, followed)
    part = _part(run, follow, len(messages))
    followed = agent.follow(part, reports.each_interval(part, interval, phases))
    return _result(run, protocol, interval, len(messages), len(messages.xor), part, followed)


def _agent(run: Run, protocol: Protocol, way: Callable[[Run], Messages], count: int, follow: int | None) -> Result:
    part = run if follow is None or count <= follow else _part(run, follow, count)
    messages = way(part)
    entries = len(messages.xor) if part is run else None
    return _result(run, protocol, None, count, entries, part, agent.follow(part, messages))


def _part(run: Run, follow: int, count: int) -> Run:
    """Return the first elements of a run: whole substreams, and about as many as make so many of its messages."""
    substreams = max(2, round(run.shape.substreams * follow / count))
    return run.start(substreams * run.shape.per_substream)


def _result(
    run: Run,
    protocol: Protocol,
    interval: float | None,
    messages: int,
    entries: int | None,
    part: Run,
    followed: agent.Followed,
) -> Result:
    machines, substreams = run.shape.machines, run.shape.substreams
    scale = substreams / part.shape.substreams
    notices = round(followed.ending_messages * scale)
    return Result(
        protocol=protocol,
        interval_ms=None if interval is None else interval * HOP_NS / 1e6,
        messages=messages,
        local_messages=0,
        bytes=round(followed.bytes / followed.messages * messages),
        entries=entries,
        notices=notices,
        notice_bytes=round(followed.end_bytes * scale * machines),
        answer_bytes=round(followed.answer_bytes / followed.messages * messages),
        followed=part.shape.substreams,
        total=messages + notices * machines,
        delay=Delay.of(followed.delay),
    )


def _punctuations(run: Run, interval: float | None = None) -> Result:
    """Return the cost of punctuations, sent at once or gathered for an interval (hops)."""
    gathering = None
    if interval is not None:
        phase = Phases.RANDOM.of(run.shape.machines, interval, run.shape.seed)
        gathering = punctuations.Gathering(interval, phase)
    done = punctuations.follow(run, most=20_000_000, gathering=gathering)
    return Result(
        protocol=Protocol.PUNCTUATIONS if interval is None else Protocol.GATHERED,
        interval_ms=None if interval is None else interval * HOP_NS / 1e6,
        messages=done.messages,
        local_messages=done.local_messages,
        bytes=done.bytes,
        entries=None,
        notices=0,  # the last vertex knows by itself
        notice_bytes=0,
        answer_bytes=0,
        followed=len(done.delay),
        total=done.messages,
        delay=Delay.of(done.delay),
    )
