"""Trackers on one journal, clients that retry, an operator, and what must hold whatever is killed, lost or restored.

Judged is only what clients were answered: within one log (one `log_id`) nothing that was acknowledged is ever missing,
no event is another one under the same number, and no tracker serves without the job. A start may be refused only if the
store has lost something, and only the operator's decision lets a tracker start without what was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tracker.contract.answers import Opened
from tracker.contract.refusal import Refused
from tracker.journal import (
    FollowableJournal,
    Following,
    Journal,
    JournalError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
)
from tracker.server.clock import Clock
from tracker.server.joblabels import JobLabels
from tracker.server.lanes import Lanes
from tracker.server.leading import Leadership
from tracker.server.limits import Limits
from tracker.server.measures import Measures
from tracker.server.replayable import Followed, ReplayableState, recover, stand_by
from tracker.server.sequencer import Sequencer
from tracker.wire.codec import Method, read_command
from tracker.wire.gen import tracker_pb2 as wire

from .schedule import Process, Schedule, run_loop
from .stores import LEASE_S, Store, Weather

JOB = "job"
PLACES = ("one", "two")
_SETTLED_S = 0.2  # seconds since the last damage, which could have taken a note away
_DAY = 86_400 * 10**9


class FoundOut(AssertionError):  # noqa: N818 - what happens to a tracker
    """A tracker has broken a promise."""


class Lost(Exception):  # noqa: N818 - what happens to a call
    """A call has had no answer: it may have been carried out."""


@dataclass
class Log:
    """What clients know of one log."""

    events: dict[int, str] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The newest event that was seen."""
        return max(self.events, default=0)


@dataclass
class Status:
    """An answer to a look-up."""

    log_id: str
    last: int
    committed: dict[str, int]
    events: dict[int, str]


class Serving:
    """A tracker that answers."""

    def __init__(self, loop: Any, process: Process, state: ReplayableState, sequencer: Sequencer, lead: Leadership):
        self.loop = loop
        self.process = process
        self._state = state
        self.sequencer = sequencer
        self._leadership = lead

    @property
    def number(self) -> int:
        """The newest record that was carried out."""
        return self.sequencer._carried_out

    async def command(self, method: Method, request: Any) -> tuple[Any, str]:
        """Carry a command out, and return the answer with the id of the job's log."""
        payload = request.SerializeToString()
        answer = self.sequencer.submit(method, payload, read_command(method, payload))
        if isinstance(answer, asyncio.Future):
            answer = await answer
        return answer, self._state.tracker.log_id(JOB)

    async def look(self, after: int) -> Status | None:
        """Return the job's state; None: there is no such job."""
        await self._leadership.confirm()
        tracker = self._state.tracker
        if JOB not in tracker.jobs():
            return None
        last = tracker.last_seq(JOB) or 0
        events, _ = tracker.events(JOB, min(after, last))
        producers = {each.producer: each.committed_epoch for each in tracker.job_status(JOB).producers}
        return Status(
            tracker.log_id(JOB),
            last,
            {name: -1 if epoch is None else epoch for name, epoch in producers.items()},
            {event.seq: str(event.body) for event in events},
        )


class Tracker:
    """A tracker's program at one place: it starts, stands by, serves, and ends."""

    def __init__(self, world: World, place: str) -> None:
        self.world = world
        self.place = place
        self.process = Process(place)
        self.error: Exception | None = None
        self.ended = True
        self.stop: asyncio.Event | None = None
        self.loop: Any = None
        self.leads = False
        self._following: Following | None = None

    @property
    def lives(self) -> bool:
        """Whether its process runs."""
        return not self.ended and not self.process.killed

    @property
    def knows(self) -> int:
        """The newest record that it has read or written; 0: none, or it does not live."""
        if not self.lives:
            return 0
        serving = self.world.serving.get(self.place)
        followed = 0 if self._following is None else self._following.place.number
        return max(followed, 0 if serving is None else serving.number)

    def _follow(self, journal: FollowableJournal) -> None:
        """Let a journal show how far it is read."""
        follow = journal.follow

        def shown() -> tuple[Any, Following]:
            state, self._following = follow()
            return state, self._following

        journal.follow = shown  # type: ignore[method-assign]

    def start(self, accept_loss: bool = False) -> None:
        """Start the program."""
        self.process = Process(self.place)
        self.error, self.ended, self.leads, self._following = None, False, False, None
        process = self.process

        def work() -> None:
            try:
                run_loop(self.world.schedule, lambda: self._serve(process, accept_loss))
            except (JournalError, Refused) as error:
                self.error = error
            finally:
                if self.process is process:
                    self.ended = True
                    self.world.serving.pop(self.place, None)
                self.world.schedule.kill(process)

        self.world.schedule.start(process, work)

    def kill(self) -> None:
        """End it where it stands."""
        self.world.serving.pop(self.place, None)
        self.world.schedule.kill(self.process)

    async def _own(self, accept_loss: bool) -> tuple[Journal | None, Followed | None]:
        """Get the journal, as `owning.own` does; None: the program is stopped before."""
        assert self.stop is not None
        while not self.stop.is_set():
            try:
                journal = await asyncio.to_thread(self.world.store.journal)
            except JournalLockedError:
                await asyncio.sleep(0.1)
                continue
            if not isinstance(journal, FollowableJournal):
                return journal, None
            if not accept_loss:
                self._follow(journal)
                followed = await asyncio.to_thread(stand_by, journal, self.stop.is_set, lambda: None)
                if followed is None:
                    await asyncio.to_thread(journal.close)
                return (None, None) if followed is None else (journal, followed)
            while not await asyncio.to_thread(journal.try_to_own):
                await asyncio.sleep(0.2)
            return journal, None
        return None, None

    async def _serve(self, process: Process, accept_loss: bool) -> None:
        world = self.world
        self.loop = asyncio.get_running_loop()
        self.stop = stop = asyncio.Event()
        state = None
        while state is None:
            journal, followed = await self._own(accept_loss)
            if journal is None:
                return
            try:
                state, number = await asyncio.to_thread(
                    recover, journal, _DAY, world.wall(), accept_loss, frozenset(), followed
                )
            except JournalLockedError:
                await asyncio.to_thread(journal.close)
            except BaseException:
                if not process.killed:
                    await asyncio.to_thread(journal.close)
                raise
        clock = Clock(state.at, world.wall, lambda: int(world.schedule.now * 1e9))
        lanes = Lanes()
        measures = Measures(JobLabels(10, lambda _: True), state.tracker.tally)
        sequencer = Sequencer(
            state, lanes, journal, number, Limits(), clock, lambda *_: None, lambda _: None, 30_000, measures
        )
        leadership = Leadership(journal, lambda: None)
        gone: list[Exception] = []

        def leave(error: Exception) -> None:
            gone.append(error)
            sequencer.leave()
            stop.set()

        def gone_from(error: JournalGoneError) -> None:
            world.must_be_noted(error)
            self.loop.call_soon_threadsafe(leave, error)

        journal.when_gone(gone_from)
        sequencer.start()
        self.leads = True
        world.serving[self.place] = Serving(self.loop, process, state, sequencer, leadership)
        world.led += 1
        await stop.wait()
        world.serving.pop(self.place, None)
        await sequencer.stop(keep_snapshot=not gone)
        await asyncio.to_thread(journal.close)
        if gone:
            raise gone[0]


class Producer:
    """A client that commits epoch after epoch, each with an element and a promise, and repeats what has no answer."""

    def __init__(self, world: World, name: str, epochs: int) -> None:
        self._world = world
        self._name = name
        self._epochs = epochs
        self._runs = 0
        self.done = False

    def run(self) -> None:
        """Live until all epochs are committed."""
        while not self.done:
            try:
                self._live()
            except Refused as refused:  # fenced, or of a tracker that knows no such job: begin again
                if refused.code not in ("FAILED_PRECONDITION", "NOT_FOUND", "ABORTED", "OUT_OF_RANGE"):
                    raise FoundOut(f"{self._name} was refused: {refused.reason}: {refused}") from refused
                self._world.schedule.pause(0.5)

    def _live(self) -> None:
        world = self._world
        self._runs += 1
        run = f"{self._name}.{self._runs}"
        segments = [wire.Segment(name="a", feeds=["b"]), wire.Segment(name="b")]
        spec = wire.JobSpec(job=JOB, deployment="d", segments=segments, fronts=["p", "q"])
        world.insist(Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec))
        world.defined = True
        opened, log_id = world.insist(
            Method.OPEN_PRODUCER, wire.OpenProducerRequest(job=JOB, producer=self._name, run=run)
        )
        assert isinstance(opened, Opened)
        committed = -1 if opened.committed_epoch is None else opened.committed_epoch
        known = world.logs.setdefault(log_id, Log()).committed.get(self._name, -1)
        if committed < known:
            raise FoundOut(f"{self._name} had epoch {known} committed in log {log_id}, and its newest is {committed}")
        for epoch in range(committed + 1, self._epochs):
            _, log_id = world.insist(Method.REPORT, self._report(run, epoch))
            found = world.logs.setdefault(log_id, Log()).committed
            found[self._name] = max(epoch, found.get(self._name, -1))
            world.schedule.pause(world.schedule.random.choice((0.05, 0.2, 1.0)))
        self.done = True

    def _report(self, run: str, epoch: int) -> wire.ReportRequest:
        return wire.ReportRequest(
            job=JOB, producer=self._name, run=run, epoch=epoch, scopes=["s"], names=[f"w{epoch}"], scope_index=[0],
            end_times=[epoch], segments=["a"], substream_index=[0], segment_index=[0], xor=[0], sent=[1], received=[1],
            entry_count=1, commit=True,
            promises=[wire.Promise(frontier=wire.Frontier(front=self._name, time=epoch))],
        )  # fmt: skip


class World:
    """Everything.

    Args:
        seed: of all that is drawn.
        store: made with the schedule and the weather.
        epochs: that each of the two producers commits.
        faults: the share of the store's requests that fail.
        losses: whether the store may lose what it had.
    """

    def __init__(
        self,
        seed: int,
        store: Callable[[Schedule, Weather], Store],
        epochs: int = 12,
        faults: float = 0.03,
        losses: bool = True,
    ) -> None:
        self.schedule = Schedule(Random(seed))
        self.weather = Weather(self.schedule, faults)
        self.store = store(self.schedule, self.weather)
        self.logs: dict[str, Log] = {}
        self.serving: dict[str, Serving] = {}
        self.trackers = [Tracker(self, place) for place in PLACES]
        self.defined = False
        self.damaged = False
        self.accepted = False
        self._damaged_at = 0.0
        self._top = 0  # the newest record of which a client knows, or whose loss somebody may know
        self._unsettled = False  # whether the store has lost something, and that is not decided yet
        self.losses = losses
        self.led = 0
        self.story: list[str] = []
        self._epochs = epochs
        self._calm = False

    def wall(self) -> int:
        """The machines' clock, in ns."""
        return 1_700_000_000_000_000_000 + int(self.schedule.now * 1e9)

    def note(self, what: str) -> None:
        """Add a line to the run's story."""
        self.story.append(f"{self.schedule.now:9.3f}  {what}")

    # ---------------------------------------------------------------- calls

    def call(self, ask: Callable[[Serving], Awaitable[Any]]) -> Any:
        """Send a call to a tracker that listens, and return its answer.

        Raises:
            Lost: there was none.
        """
        random = self.schedule.random
        self.schedule.pause(random.choice((0, 0.001, 0.02)))
        serving = self.serving.get(random.choice(PLACES))
        if serving is None or (not self._calm and random.random() < 0.03):
            raise Lost
        box: list[tuple[Any, BaseException | None]] = []

        async def answer() -> None:
            try:
                box.append((await ask(serving), None))
            except Exception as error:
                box.append((None, error))

        try:
            serving.loop.call_soon_threadsafe(lambda: serving.loop.create_task(answer()))
        except RuntimeError as ended:
            raise Lost from ended
        self.schedule.pause(8.0, lambda: bool(box) or serving.process.killed)
        if not box or (not self._calm and random.random() < 0.03):
            raise Lost
        self._top = max(self._top, serving.number)
        value, failure = box[0]
        if isinstance(failure, Refused) and failure.code != "UNAVAILABLE":
            raise failure
        if failure is not None:
            raise Lost from failure
        return value

    def insist(self, method: Method, request: Any) -> Any:
        """Repeat a command until it is answered."""
        while True:
            try:
                return self.call(lambda serving: serving.command(method, request))
            except Lost:
                self.schedule.pause(0.1)

    def watch(self) -> None:
        """Look again and again at what the trackers answer, and hold it against all that was known before."""
        while True:
            self.schedule.pause(self.schedule.random.choice((0.05, 0.3, 1.0)))
            known = {log_id: (log.last, dict(log.committed)) for log_id, log in self.logs.items()}
            # Who starts on an emptied store knows of nothing until a tracker that knows has had time to look.
            may_know = not self._unsettled or self.schedule.now - self._damaged_at > 2 * LEASE_S
            had = self.defined and not self.accepted and may_know
            after = self.schedule.random.choice((0, max((last for last, _ in known.values()), default=0)))
            try:
                status: Status | None = self.call(partial(Serving.look, after=after))
            except Lost:
                continue
            except Refused as refused:
                raise FoundOut(f"a look-up was refused: {refused}") from refused
            if status is None:
                if had:
                    raise FoundOut("a tracker serves without the job, and nobody has accepted a loss")
                continue
            self._judge(status, *known.get(status.log_id, (0, {})))

    def _judge(self, status: Status, last: int, committed: dict[str, int]) -> None:
        if status.last < last:
            raise FoundOut(f"log {status.log_id} ends with event {status.last}, and event {last} had been seen")
        for producer, epoch in committed.items():
            if status.committed.get(producer, -1) < epoch:
                raise FoundOut(f"epoch {epoch} of {producer} was acknowledged in log {status.log_id}, and is not there")
        log = self.logs.setdefault(status.log_id, Log())
        for seq, body in status.events.items():
            if log.events.setdefault(seq, body) != body:
                raise FoundOut(f"event {seq} of log {status.log_id} was {log.events[seq]}, and is {body}")

    # ---------------------------------------------------------------- what goes wrong

    def supervise(self) -> None:
        """Start trackers that have ended; decide about losses."""
        while True:
            self.schedule.pause(0.2)
            for tracker in self.trackers:
                if tracker.process.killed:
                    tracker.ended = True
                if not tracker.ended:
                    continue
                accept = False
                if isinstance(tracker.error, JournalLossError):
                    if not self.damaged:
                        raise FoundOut(f"a start was refused, and nothing was lost: {tracker.error}")
                    accept = self._calm or self.schedule.random.random() < 0.3
                    if accept:
                        self._settled()
                self._forgive()
                self.note(f"start {tracker.place}{' and accept the loss' if accept else ''} ({tracker.error})")
                tracker.start(accept)

    def torment(self, faults: int) -> None:
        """Do harm, so many times; then let everything come to rest."""
        random = self.schedule.random
        copies = [self.store.copy()]
        for _ in range(faults):
            self.schedule.pause(random.choice((0.0, 0.1, 0.5, 2.0)) + random.random())
            kinds = ["kill leader"] * 3 + ["kill any"] * 3 + ["stop", "away", "kill all"]
            if self.losses:
                kinds += ["older", "empty", "partly"]
            kind = random.choice(kinds)
            self.note(kind)
            leaders = [tracker for tracker in self.trackers if tracker.leads and not tracker.process.killed]
            if kind == "kill leader":
                for tracker in leaders:
                    tracker.kill()
            elif kind == "kill any":
                random.choice(self.trackers).kill()
            elif kind == "kill all":
                for tracker in self.trackers:
                    tracker.kill()
            elif kind == "stop" and leaders:
                tracker = random.choice(leaders)
                if tracker.stop is not None and not tracker.ended:
                    tracker.loop.call_soon_threadsafe(tracker.stop.set)
            elif kind == "away":
                self.weather.away_until = self.schedule.now + random.choice((0.5, 3.0, 7.0))
            elif kind in ("older", "empty", "partly"):
                self._damage(kind, copies, leaders)
            self._forgive()
            copies.append(self.store.copy())
        self.weather.faults = 0.0
        self.weather.away_until = 0.0
        self._calm = True

    def _damage(self, kind: str, copies: list[Any], leaders: list[Tracker]) -> None:
        """Let the store lose something, half of the times together with the leader."""
        if self.store.alone or self.schedule.random.random() < 0.5:
            for tracker in self.trackers if self.store.alone else leaders:
                tracker.kill()
        self.damaged, self._unsettled, self._damaged_at = True, True, self.schedule.now
        if kind == "older":
            self.store.put_back(self.schedule.random.choice(copies))
        elif kind == "empty":
            self.store.put_back({})
        else:
            self.note(f"lost {self.store.lose(self.schedule.random)}")

    def _settled(self) -> None:
        """An operator has decided, or nobody could."""
        self.accepted, self._unsettled, self._top = True, False, 0

    def must_be_noted(self, error: JournalGoneError) -> None:
        """A tracker has found that the store has lost records, and ends: has it written that down?"""
        found = "has lost" in str(error) and "cannot be noted" not in str(error)
        if found and self.schedule.now - self._damaged_at > _SETTLED_S and not self.store.has_note():
            raise FoundOut(f"a tracker ends, and has written nothing down: {error}")

    def _forgive(self) -> None:
        """Forget what was lost, if nobody is left who could know of the loss."""
        if self._unsettled and not self.store.has_note() and max(each.knows for each in self.trackers) < self._top:
            self.note("nobody knows")
            self._settled()
            self.logs.clear()

    # ---------------------------------------------------------------- a run

    def run(self, faults: int = 8) -> None:
        """Play it.

        Raises:
            FoundOut: a promise was broken.
            StuckError: it does not come to an end.
        """
        outside = Process("outside")
        producers = [Producer(self, name, self._epochs) for name in ("p", "q")]
        for work in (*(each.run for each in producers), self.watch, self.watch, self.supervise):
            self.schedule.start(outside, work)
        self.schedule.start(outside, lambda: self.torment(faults))
        try:
            self.schedule.run(lambda: self._calm and all(producer.done for producer in producers))
        finally:
            for process in (outside, *(tracker.process for tracker in self.trackers)):
                self.schedule.kill(process)
            self.schedule.end()
