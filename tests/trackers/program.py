"""A tracker's program: it starts, stands by, recovers, serves, and ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tracker.contract.refusal import Refused
from tracker.core import Prepared
from tracker.journal import (
    FollowableJournal,
    Following,
    Journal,
    JournalError,
    JournalGoneError,
    JournalLockedError,
)
from tracker.server import backups
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.measures import JobLabels, Measures
from tracker.server.notices import Notices
from tracker.server.owning import Leadership, stand_by
from tracker.server.replayable import Followed, ReplayableState, recover
from tracker.server.sequencer import Clock, JournalHealth, Sequencer, Snapshots
from tracker.server.ticking import Ticker
from tracker.wire.codec import Method, read_command

from .judging import JOB, Status, status_of
from .schedule import Process, run_loop
from .stores import LEASE_S, made

if TYPE_CHECKING:
    from .world import World

_DAY = 86_400 * 10**9


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
        answer = self.sequencer.submit(method, payload, Prepared(read_command(method, payload)))
        if isinstance(answer, asyncio.Future):
            answer = await answer
        return answer, self._state.tracker.view(JOB).log_id

    async def look(self, after: int) -> Status | None:
        """Return the job's state; None: there is no such job."""
        await self._leadership.confirm()
        return status_of(self._state.tracker, after)

    async def back_up(self) -> bytes:
        """Return a backup."""
        number, dump = await self.sequencer.copy()
        await self._leadership.confirm()
        return made(backups.draft("simulated", number, dump, self.loop.time()))


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
        """True if the process runs."""
        return not self.ended and not self.process.killed

    @property
    def knows(self) -> int:
        """The newest record that it has read or written; 0: none, or it does not live, or reaches no store."""
        if not self.lives or self.process in self.world.store.cut_off:
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

    def _show_replay(self, journal: Journal) -> None:
        """Let a replay take time, in which its process can end."""
        replaying = journal.replaying

        def shown(number: int) -> None:
            replaying(number)
            if number:
                self.world.replays(self, number)

        journal.replaying = shown  # type: ignore[method-assign]

    def start(self, accept_loss: bool = False, set_aside: frozenset[int] = frozenset()) -> None:
        """Start the program."""
        self.process = Process(self.place)
        self.error, self.ended, self.leads, self._following = None, False, False, None
        process = self.process

        def work() -> None:
            try:
                run_loop(self.world.schedule, lambda: self._serve(process, accept_loss, set_aside))
            except (JournalError, Refused) as error:
                self.error = error
            finally:
                if self.process is process:
                    self.ended = True
                    self.world.serving.pop(self.place, None)
                self.world.schedule.kill(process)

        self.world.schedule.start(process, work)

    def kill(self) -> None:
        """End the tracker where it stands."""
        self.world.serving.pop(self.place, None)
        self.world.schedule.kill(self.process)

    async def _own(self, accept_loss: bool) -> tuple[Journal | None, Followed | None]:
        """Get the journal, as `owning.own` does; None: the program is stopped before."""
        assert self.stop is not None
        until = self.loop.time() + 1.5 * LEASE_S
        while not self.stop.is_set():
            try:
                journal = await asyncio.to_thread(self.world.store.journal)
            except JournalLockedError:
                await asyncio.sleep(0.1)
                continue
            if not isinstance(journal, FollowableJournal):
                return journal, None
            while accept_loss and self.loop.time() < until:
                with suppress(JournalError):
                    if await asyncio.to_thread(journal.try_to_own):
                        return journal, None
                await asyncio.sleep(0.2)
            self._follow(journal)
            followed = await asyncio.to_thread(stand_by, journal, self.stop.is_set, lambda: None)
            if followed is None:
                await asyncio.to_thread(journal.close)
            return (None, None) if followed is None else (journal, followed)
        return None, None

    async def _serve(self, process: Process, accept_loss: bool, set_aside: frozenset[int]) -> None:
        world = self.world
        self.loop = asyncio.get_running_loop()
        self.stop = stop = asyncio.Event()
        recovered = None
        while recovered is None:
            journal, followed = await self._own(accept_loss)
            if journal is None:
                return
            accept_loss = accept_loss and followed is None  # what was decided is of a time before it stood by
            if accept_loss:
                world.decides(set_aside)
            self._show_replay(journal)
            try:
                recovered = await asyncio.to_thread(
                    recover, journal, _DAY, world.wall(), accept_loss, set_aside, followed
                )
            except JournalLockedError:
                await asyncio.to_thread(journal.close)
            except BaseException:
                if not process.killed:
                    await asyncio.to_thread(journal.close)
                raise
        assert journal is not None
        state = recovered.state
        clock = Clock(state.at, world.wall, lambda: int(world.schedule.now * 1e9))
        lanes = Lanes()
        measures = Measures(JobLabels(10, lambda _: True), state.tracker.find)
        health, snapshots = JournalHealth(lambda _: None, measures), Snapshots(journal, measures, world.snapshot_bytes)
        sequencer = Sequencer(recovered, lanes, Limits(), clock, health, snapshots, lambda *_: ticker.look())
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
        ticker = Ticker(state.tracker, sequencer, lanes, clock, Notices(state.tracker, self.loop.time))
        ticking = asyncio.create_task(ticker.run()) if world.sent.rules.any else None
        self.leads = True
        world.serves(state.tracker.view(JOB).log_id if JOB in state.tracker.jobs() else "")
        world.serving[self.place] = Serving(self.loop, process, state, sequencer, leadership)
        world.led += 1
        await stop.wait()
        world.serving.pop(self.place, None)
        if ticking is not None:
            ticking.cancel()
        await sequencer.stop(keep_snapshot=not gone)
        await asyncio.to_thread(journal.close)
        if gone:
            raise gone[0]
