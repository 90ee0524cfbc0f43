"""Requests of every call as bytes: right ones drawn at random, and what is left of them when bytes are changed."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from tracker.contract.spec import DURATIONS
from tracker.wire.gen import tracker_pb2 as wire

JOBS = ("alpha", "beta", "gamma")
PRODUCERS = ("p", "q", "ü\x1b[31m")
RUNS = ("r1", "r2", "r3")
FRONTS = ("f", "g")
SEGMENTS = ("a", "b", "c")
EDGES = (0, 1, 2, 3, 7, 2**31 - 1, 2**32 - 1, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**64 - 1)

UNARY = (
    *("GetServerInfo", "DefineJob", "GetJob", "ListJobs", "DeleteJob", "OpenProducer", "CloseProducer", "Report"),
    *("ForgetProducer", "FinishFront", "Commit", "ListEvents", "ListSubstreams", "Drain", "GetDrain", "CancelDrain"),
    *("Abandon", "Subscribe", "Ack", "Unsubscribe", "ListSubscriptions", "Await", "AwaitThrough"),
)
STREAMS = ("Watch", "ReportStream")  # a Backup would be tens of megabytes, and MoveLeader ends the server
# Reports and commits are what the state is made of; deletions would keep it small.
_OFTEN = ("Report",) * 14 + ("Commit",) * 5 + ("OpenProducer",) * 5 + STREAMS
_SELDOM = ("DeleteJob", "ForgetProducer", "FinishFront", "Drain")


class Requests:
    """Drawn requests, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._epochs: dict[tuple[str, str], int] = {}

    def next(self) -> tuple[str, list[bytes]]:
        """Draw a method and its messages: one, or for a stream several."""
        random = self._random
        method = random.choice(UNARY + STREAMS + _OFTEN)
        if method in _SELDOM and random.random() < 0.8:
            method = "Report"
        count = random.randrange(1, 4) if method == "ReportStream" else 1
        return method, [self._bytes(method) for _ in range(count)]

    def _bytes(self, method: str) -> bytes:
        data = self._message("Report" if method == "ReportStream" else method).SerializeToString()
        if self._random.random() < 0.4:
            data = self._mutated(data)
        return data

    def _mutated(self, data: bytes) -> bytes:
        random = self._random
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 1, 2, 8))):
            at = random.randrange(len(changed) + 1)
            match random.randrange(7):
                case 0 if at < len(changed):
                    changed[at] ^= 1 << random.randrange(8)
                case 1 if at < len(changed):
                    changed[at] = random.randrange(256)
                case 2:
                    del changed[at:]
                case 3:
                    changed[at:at] = random.randbytes(random.randrange(1, 9))
                case 4:  # the longest varint there is, and one that is too long
                    changed[at:at] = b"\xff" * random.choice((9, 10)) + b"\x01"
                case 5:
                    other = self._message(random.choice(UNARY)).SerializeToString()
                    changed[at:at] = other[random.randrange(len(other) + 1) :]
                case 6:  # no UTF-8
                    changed[at:at] = random.choice((b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"))
        return bytes(changed)

    # ---------------------------------------------------------------- right ones

    def _number(self, usual: int, edges: tuple[int, ...] = EDGES) -> int:
        return self._random.choice(edges) if self._random.random() < 0.05 else usual

    def _job(self) -> str:
        return (
            self._random.choice(JOBS)
            if self._random.random() < 0.97
            else self._random.choice(("", "nobody", "x" * 129))
        )

    def _signed(self, usual: int) -> int:
        value = self._number(usual)
        return -value if self._random.random() < 0.3 and value <= 2**63 else min(value, 2**63 - 1)

    def _name(self) -> str:
        return self._random.choice(
            ("w1", "w2", "w3", "w4", "w5", "", "x" * 513, "é\x00\n")[: 5 if self._random.random() < 0.97 else 8]
        )

    def _seconds(self) -> Duration:
        """Draw a duration: never so short that time alone changes anything while the requests are sent."""
        seconds = max(3600, self._number(3600)) if self._random.random() < 0.95 else -1
        return Duration(seconds=min(seconds, 2**63 - 1), nanos=self._random.choice((0, 0, 1, 999)))

    def _promise(self, substreams: int, by_name: bool = True) -> wire.Promise:
        front = self._random.choice((*FRONTS, *FRONTS, "", "nobody"))
        match self._random.randrange(4 if by_name else 2):
            case 0:
                scope = self._random.choice((None, "s", "*"))
                return wire.Promise(
                    frontier=wire.Frontier(front=front, scope=scope, time=self._signed(self._random.randrange(20)))
                )
            case 1:
                return wire.Promise(finish=front) if self._random.random() < 0.05 else wire.Promise()
            case _:
                close = wire.Close(front=front, substream_index=self._random.randrange(substreams + 1))
                close.only_without_fronts = self._random.random() < 0.2
                return wire.Promise(close=close)

    def _message(self, method: str) -> Message:
        random, job = self._random, self._job()
        producer, run = random.choice(PRODUCERS), random.choice(RUNS)
        match method:
            case "DefineJob":
                return self._define(job)
            case "OpenProducer":
                mode = random.choice((0, 1, 1, 2, 9))
                resume = {"resume_epoch": self._number(random.randrange(5))} if random.random() < 0.2 else {}
                return wire.OpenProducerRequest(
                    job=job,
                    producer=producer,
                    run=run,
                    mode=wire.Mode.ValueType(mode),
                    seals=random.random() < 0.2,
                    **resume,
                )
            case "CloseProducer":
                return wire.CloseProducerRequest(job=job, producer=producer, run=run)
            case "ForgetProducer":
                return wire.ForgetProducerRequest(job=job, producer=producer)
            case "FinishFront":
                return wire.FinishFrontRequest(job=job, front=random.choice(FRONTS))
            case "Report":
                return self._report(job, producer, run)
            case "Commit":
                units = (
                    wire.Units(names=random.sample(("u", "v", "w"), random.randrange(3)))
                    if random.random() < 0.3
                    else None
                )
                promises = [self._promise(0, by_name=False) for _ in range(random.choice((0, 0, 1)))]
                epoch = {"epoch": self._epoch(job, producer)} if random.random() < 0.9 else {}
                return wire.CommitRequest(
                    job=job,
                    producer=producer,
                    run=run,
                    units=units,
                    seal=random.random() < 0.2,
                    promises=promises,
                    **epoch,
                )
            case "Drain":
                timeout = self._seconds() if random.random() < 0.3 else None
                return wire.DrainRequest(
                    job=job,
                    deployment=random.choice(("d1", "d2", "d9")),
                    drain_id="x",
                    timeout=timeout,
                    mode=random.choice(
                        (wire.DRAIN_MODE_UNSPECIFIED, wire.DRAIN_MODE_FINISH, wire.DRAIN_MODE_HAND_OVER)
                    ),
                )
            case "CancelDrain":
                return wire.CancelDrainRequest(
                    job=job, deployment=random.choice(("", "d1", "d9")), drain_id=random.choice(("", "x"))
                )
            case "Abandon":
                return wire.AbandonRequest(job=job, scope="s", name=self._name())
            case "Subscribe":
                after: dict[str, Any] = {"after_seq": self._number(0)} if random.random() < 0.3 else {}
                return wire.SubscribeRequest(
                    job=job, name=random.choice(("s1", "s2", "")), scopes=["s"] * random.randrange(2), **after
                )
            case "Ack":
                return wire.AckRequest(job=job, name="s1", seq=self._number(random.randrange(50)))
            case "Unsubscribe":
                return wire.UnsubscribeRequest(job=job, name=random.choice(("s1", "s2")))
        return self._question(method, job)

    def _question(self, method: str, job: str) -> Message:
        random = self._random
        after = self._number(random.randrange(40))
        match method:
            case "GetJob":
                return wire.GetJobRequest(job=job)
            case "DeleteJob":
                return wire.DeleteJobRequest(job=job, force=random.random() < 0.3)
            case "Watch":
                return wire.WatchRequest(
                    job=job, after_seq=after, segments=random.sample(SEGMENTS, random.randrange(3))
                )
            case "ListEvents":
                return wire.ListEventsRequest(job=job, after_seq=after, limit=min(self._number(9), 2**32 - 1))
            case "ListSubstreams":
                token = random.choice(("", "", "3", "9" * 30, "x"))
                return wire.ListSubstreamsRequest(
                    job=job, include_ended=random.random() < 0.5, page_size=5, page_token=token
                )
            case "ListSubscriptions":
                return wire.ListSubscriptionsRequest(job=job)
            case "GetDrain":
                return wire.GetDrainRequest(job=job, deployment=random.choice(("", "d1", "d9")))
            case "Await":
                return wire.AwaitRequest(
                    job=job, segment=random.choice((*SEGMENTS, "nowhere")), scope="s", name=self._name()
                )
            case "AwaitThrough":
                names = [self._name() for _ in range(random.randrange(4))]
                return wire.AwaitThroughRequest(
                    job=job,
                    log_id=random.choice(("", "nowhere")),
                    producer=random.choice(PRODUCERS),
                    epoch=self._number(random.randrange(5)),
                    scopes=["s"],
                    names=names,
                    scope_index=[self._number(0) % 2**32 for _ in names],
                    wait=self._seconds(),
                )
        return wire.ListJobsRequest()

    def _define(self, job: str) -> wire.DefineJobRequest:
        random = self._random
        names = random.sample(SEGMENTS, random.choice((2, 3, 3, 3)))
        segments = [
            wire.Segment(name=name, feeds=random.sample(SEGMENTS, random.randrange(3)), state=random.random() < 0.1)
            for name in names
        ]
        durations: dict[str, Any] = {name: self._seconds() for name in DURATIONS if random.random() < 0.2}
        spec = wire.JobSpec(
            job=job,
            deployment=random.choice(("d1", "d1", "d2")),
            segments=segments if random.random() < 0.5 else [wire.Segment(name=name) for name in SEGMENTS],
            fronts=random.choice((FRONTS, FRONTS, FRONTS[:1], ())),
            ordering=wire.Ordering.ValueType(random.choice((0, 1, 2, 3, 9))),
            progress=random.random() < 0.5,
            expire_expected=random.random() < 0.5,
            deadline_by_event_time=random.random() < 0.5,
            threshold_ppm=random.choice((0, 0, 0, 1, 950_000, 2**32 - 1)),
            **durations,
        )
        return wire.DefineJobRequest(spec=spec, force=random.random() < 0.1)

    def _epoch(self, job: str, producer: str) -> int:
        key = (job, producer)
        if self._random.random() < 0.3:
            self._epochs[key] = self._epochs.get(key, 0) + 1
        return self._number(max(0, self._epochs.get(key, 0) - self._random.choice((0, 0, 0, 1))))

    def _report(self, job: str, producer: str, run: str) -> wire.ReportRequest:
        random = self._random
        names = [self._name() for _ in range(random.randrange(4))]
        entries = random.randrange(4) if names else 0
        columns: dict[str, Any] = {
            "substream_index": [random.randrange(len(names)) for _ in range(entries)],
            "segment_index": [random.randrange(2) for _ in range(entries)],
            "xor": [self._number(random.choice((0, 5))) for _ in range(entries)],
            "sent": [min(self._number(random.randrange(2)), 2**32 - 1) for _ in range(entries)],
            "received": [min(self._number(random.randrange(2)), 2**32 - 1) for _ in range(entries)],
        }
        return wire.ReportRequest(
            job=job,
            producer=producer,
            run=run,
            epoch=self._epoch(job, producer),
            units=random.sample(("u", "v", "w"), random.randrange(3)),
            scopes=["s", "t"],
            names=names,
            scope_index=[random.choice((0, 0, 0, 1)) for _ in names],
            # Mostly the one that the name has for good.
            end_times=[
                int(name[1:]) if name[1:].isdecimal() and random.random() < 0.97 else self._signed(3) for name in names
            ],
            segments=list(random.sample(SEGMENTS, 2)),
            entry_count=min(self._number(entries), 2**32 - 1),
            promises=[self._promise(len(names)) for _ in range(random.choice((0, 0, 1, 2)))],
            commit=random.random() < 0.5,
            want_ids=random.random() < 0.3,
            **columns,
        )
