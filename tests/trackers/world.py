"""Trackers on one journal, clients that retry, an operator, and what must hold whatever is killed, lost or restored.

Judged is only what clients were answered: within one log (one `log_id`) nothing that was acknowledged is ever missing,
no event is another one under the same number, and no tracker serves without the job. A start may be refused only if the
store has lost something, and only the operator's decision lets a tracker start without what was lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

from tracker.contract.refusal import Refused
from tracker.journal import JournalGoneError, JournalLossError, RestoreUnfinishedError
from tracker.wire.codec import Method

from .clients import Producer, hand_over
from .judging import PRODUCERS, FoundOut, Log, Lost, Status
from .operating import Operator
from .program import Serving, Tracker
from .rules import Rules, Sent
from .schedule import Process, Schedule
from .stores import LEASE_S, Redis, Store, Weather

PLACES = ("one", "two")
_MORE = 4  # faults at most, to end with those that let a number come again
_SETTLED_S = 0.2  # seconds since the last damage, which could have taken a note away


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
        self.sent = Sent(Rules.drawn(Random(f"rules {seed}")))
        self.over = False  #: whether all substreams were seen to have ended
        self.serving: dict[str, Serving] = {}
        self.operator = Operator(self)
        self.trackers = [Tracker(self, place) for place in PLACES]
        self.running: set[str] = set()  #: reporters that have opened a run in the log that is served
        self._served = ""
        self._log_id = ""  # of the log that was served last
        self._decided = False  # whether the log may have a new id: somebody has accepted a loss, or restored a backup
        self._doomed = 0  # how many more records are replayed until a process ends in that
        self._doomed_at = 0  # the number of a record at whose replay a process ends
        self._vanished: list[Process] = []  # those that led when all of their log was lost
        self.defined = False
        self.damaged = False
        self.accepted = False
        self._damaged_at = 0.0
        self._newest = 0  # the record that was carried out last
        self._top = 0  # the newest record of which a client knows, or whose loss somebody may know
        self._unsettled = False  # whether the store has lost something, and that is not decided yet
        self._leave_out = False  # whether an operator is about to leave records out
        self._alone: Tracker | None = None  # that is to leave records out, and for which the others wait
        self._has_left_out = False  # whether one has ever done so
        #: Faults to come, by which the number of a record that was left out comes again, and is read again.
        self._again = ["leave out"] if losses and self.schedule.random.random() < 0.3 else []
        self._left_out = 0  # the newest record that was left out
        self._led_before = 0  # how many had led when the store was damaged last
        self.losses = losses
        self.snapshot_bytes = self.schedule.random.choice((30_000, 300_000))  # that are journaled between two
        self.led = 0
        self.story: list[str] = []
        self._epochs = epochs
        self.calm = False

    def wall(self) -> int:
        """Return the machines' clock, in ns."""
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
        serving, vanished = self.serving.get(random.choice(PLACES)), self._vanished
        if serving is None or (not self.calm and random.random() < 0.03):
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
        if not box or (not self.calm and random.random() < 0.03):
            raise Lost
        self._newest = serving.number
        self._top = max(self._top, serving.number)
        value, failure = box[0]
        if failure is None and vanished is self._vanished and serving.process in vanished:
            raise FoundOut("a leader answers though its log has vanished")
        if isinstance(failure, Refused) and failure.code != "UNAVAILABLE":
            raise failure
        if failure is not None:
            raise Lost from failure
        return value

    def serves(self, log_id: str) -> None:
        """Note that a tracker serves a log."""
        self._forgive()
        if log_id and log_id != self._log_id:
            if self._log_id and not (self._decided or self._unsettled):
                if not self._has_left_out:
                    raise FoundOut(f"log {self._log_id} goes on as {log_id}, and nobody has decided about a loss")
                # An id may change once more than it has to after a loss behind a record that was left out.
                self.logs[log_id] = deepcopy(self.logs.get(self._log_id, Log()))
                self.logs[log_id].runs.clear()
            self._log_id, self._decided = log_id, False
        if log_id != self._served:
            self._served, self._top = log_id, 1
            self.running.clear()

    def runs(self, producer: str, log_id: str) -> None:
        """Note that a reporter has opened a run in a log."""
        self._served = self._served or log_id  # of a job that was defined since
        if log_id == self._served:
            self.running.add(producer)

    def replays(self, tracker: Tracker, number: int) -> None:
        """Let time pass for a tracker that replays a record, or end its process."""
        self._newest = number
        self._doomed -= 1
        machines = self.store.machines
        if self._doomed == 0 or number in (self._doomed_at, machines.slept_over):
            self._doomed_at = machines.slept_over = 0
            tracker.kill()
        self.schedule.pause(self.schedule.random.choice((0, 0, 0.01)))

    def _doom(self) -> None:
        """Draw at which record a replay ends its process: at one of the first, or of the newest."""
        random = self.schedule.random
        self._doomed = random.choice((0, random.randint(1, 8)))
        self._doomed_at = 0 if self._doomed else self._top + random.randint(-3, 2)

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
            known = {log_id: (log.last, dict(log.committed), dict(log.runs)) for log_id, log in self.logs.items()}
            # A tracker that starts on an emptied store knows of nothing until one that knows has had time to look.
            may_know = not self._unsettled or self.schedule.now - self._damaged_at > 2 * LEASE_S
            had = self.defined and not self.accepted and may_know
            after = self.schedule.random.choice((0, max((last for last, _, _ in known.values()), default=0)))
            try:
                status: Status | None = self.call(partial(Serving.look, after=after))
            except Lost:
                continue
            except Refused as refused:
                raise FoundOut(f"a look-up was refused: {refused}") from refused
            if status is None:
                if had and not self.accepted:
                    raise FoundOut("a tracker serves without the job, and nobody has accepted a loss")
                continue
            self._judge(status, *known.get(status.log_id, (0, {}, {})))

    def _judge(self, status: Status, last: int, committed: dict[str, int], runs: dict[str, int]) -> None:
        if status.last < last:
            raise FoundOut(f"log {status.log_id} ends with event {status.last}, and event {last} had been seen")
        for producer, run in runs.items():
            if status.runs.get(producer, 0) < run:
                raise FoundOut(f"run {run} of {producer} was opened in log {status.log_id}, and is not there")
        for producer, epoch in committed.items():
            if status.committed.get(producer, -1) < epoch:
                raise FoundOut(f"epoch {epoch} of {producer} was acknowledged in log {status.log_id}, and is not there")
        log = self.logs.setdefault(status.log_id, Log())
        for seq, event in status.events.items():
            if log.events.setdefault(seq, event) != event:
                raise FoundOut(f"event {seq} of log {status.log_id} was {log.events[seq]}, and is {event}")
        self.sent.check([*status.events.values()], log)
        windows = [window for window in range(self._epochs - self.sent.rules.lag) if self.sent.is_exact(window)]
        self.over = all((segment, f"w{window}") in log.ends for window in windows for segment in "ab")

    # ---------------------------------------------------------------- what goes wrong

    def supervise(self) -> None:
        """Start trackers that have ended; decide about losses."""
        while True:
            self.schedule.pause(0.2)
            if self.operator.holds:
                continue
            for tracker in self.trackers:
                if tracker.process.killed:
                    tracker.ended = True
                if self._alone is tracker and tracker.leads:
                    self._alone, self._leave_out = None, False
                if not tracker.ended or self._alone not in (None, tracker):
                    continue
                if "database is locked" in str(tracker.error):
                    raise FoundOut(f"a start has the journal to itself, and another one has its file: {tracker.error}")
                accept, aside = False, frozenset[int]()
                if isinstance(tracker.error, JournalLossError):
                    if not self.damaged:
                        raise FoundOut(f"a start was refused, and nothing was lost: {tracker.error}")
                    accept = self.calm or self.schedule.random.random() < 0.3
                if accept or self._leave_out:
                    if self._leave_out or (not self.calm and self.schedule.random.random() < 0.6):
                        random = self.schedule.random
                        newest = random.choice((self._newest, self._top))
                        aside = frozenset(max(1, newest - random.randint(0, 4)) for _ in range(3))
                        self._alone = tracker if self._leave_out else None
                        self._left_out = max(aside)
                    accept = self.damaged = True
                    self._settled()
                if isinstance(tracker.error, RestoreUnfinishedError):
                    self.operator.restore()
                self._forgive()
                how = f" and accept the loss, without {[*aside]}" if accept else ""
                self.note(f"start {tracker.place}{how} ({tracker.error})")
                tracker.start(accept, aside)

    def torment(self, faults: int) -> None:
        """Do harm, so many times; then let everything come to rest."""
        random = self.schedule.random
        copies = [self.store.copy()]
        for number in range(faults + _MORE):
            if number >= faults and not self._again:
                break
            self.schedule.pause(random.choice((0.0, 0.1, 0.5, 2.0)) + random.random())
            kind = self._draw()
            self.note(kind)
            leaders = [tracker for tracker in self.trackers if tracker.leads and not tracker.process.killed]
            if kind == "kill leader":
                for tracker in leaders:
                    tracker.kill()
            elif kind == "kill any":
                random.choice(self.trackers).kill()
            elif kind in ("kill all", "kill twice", "power", "leave out"):
                self._leave_out = self._leave_out or kind == "leave out"
                if kind not in ("kill all", "leave out"):
                    self._doom()
                for tracker in self.trackers:
                    tracker.kill()
                if kind == "leave out":
                    self.schedule.pause(4 * LEASE_S, lambda: not self._leave_out and self._alone is None)
                    self._again = ["end", random.choice(("kill all", "kill leader"))]
                if kind == "power":
                    self.operator.kill()
                    self.store.machines.lose_power()
            elif kind == "sleep":
                seconds = random.uniform(LEASE_S, 4 * LEASE_S)
                if random.random() < 0.5:
                    self.store.machines.doze_s = seconds
                else:
                    for tracker in leaders:
                        tracker.process.sleeps_until = self.schedule.now + seconds
                self._doom()
                self.schedule.pause(random.choice((0.0, seconds)))
            elif kind == "stop" and leaders:
                tracker = random.choice(leaders)
                if tracker.stop is not None and not tracker.ended:
                    tracker.loop.call_soon_threadsafe(tracker.stop.set)
            elif kind == "demote" and isinstance(self.store, Redis):
                for tracker in leaders:
                    self.store.demote(tracker.process, 8 * LEASE_S)
                self._forgive()
                self.schedule.pause(random.choice((0.0, 8 * LEASE_S)) if leaders else 0)
            elif kind == "back up":
                self.operator.back_up()
            elif kind == "restore":
                self.operator.restore()
            elif kind == "kill operator":
                self.operator.kill()
            elif kind == "away":
                self.weather.away_until = self.schedule.now + random.choice((0.5, 3.0, 7.0))
            elif kind in ("older", "empty", "partly", "end"):
                self._damage(kind, copies, leaders)
            self._forgive()
            copies.append(self.store.copy())
        self.weather.faults = 0.0
        self.weather.away_until = 0.0
        self.calm = True

    def _draw(self) -> str:
        """Return what goes wrong next."""
        random = self.schedule.random
        if self._again and random.random() < 0.8:
            kind = self._again.pop(0)
            if not self._again:
                self._wait_for_numbers()
            return kind
        kinds = ["kill leader"] * 3 + ["kill any"] * 3 + ["stop", "away", "kill all", "kill twice"]
        kinds += ["restore", "restore", "kill operator", "back up"] if self.operator.kept else ["back up"] * 4
        kinds += ["sleep", "power"]
        if isinstance(self.store, Redis):
            kinds.append("demote")
        if self.losses:
            kinds += ["older", "empty", "partly", "leave out"]
        return random.choice(kinds)

    def _wait_for_numbers(self) -> None:
        """Let a new leader come to the number of the record that was left out last, while the store answers."""

        def has_come() -> bool:
            newest = max((each.number for each in self.serving.values()), default=0)
            return self.led > self._led_before and newest > self._left_out

        faults, self.weather.faults = self.weather.faults, 0.0
        self.schedule.pause(15 * LEASE_S, has_come)
        self.weather.faults = faults

    def _damage(self, kind: str, copies: list[Any], leaders: list[Tracker]) -> None:
        """Let the store lose something, half of the times together with the leader."""
        if self.store.alone or self.schedule.random.random() < 0.5:
            for tracker in self.trackers if self.store.alone else leaders:
                tracker.kill()
        self.operator.kill()
        self.damaged, self._unsettled, self._damaged_at = True, True, self.schedule.now
        self._led_before = self.led
        self._vanished = []
        if kind == "older":
            self.store.put_back(self.schedule.random.choice(copies))
        elif kind == "empty":
            self.store.put_back({})
        else:
            lost = self.store.lose(self.schedule.random, kind == "end")
            self.note(f"lost {lost}")
            if lost == "log":
                self._vanished = [tracker.process for tracker in leaders]

    def decides(self, set_aside: frozenset[int] = frozenset()) -> None:
        """Let an operator give the log a new id, and leave records out: later epochs of their reporters stay."""
        self._decided = True
        if set_aside:
            self._has_left_out, self.sent.exact_from = True, self.wall()

    def _settled(self) -> None:
        """Note that an operator has decided, or that nobody could."""
        self.accepted, self._unsettled, self._decided = True, False, True

    def restored(self, log_id: str, status: Status) -> None:
        """Note that the journal continues with a backup, under another log's id."""
        if log_id in self.logs:
            raise FoundOut(f"a backup was restored, and its log has the id of one that was known: {log_id}")
        self.logs[log_id] = Log(dict(status.events), dict(status.committed))
        self.over = False
        self._unsettled = False

    def must_be_noted(self, error: JournalGoneError) -> None:
        """Check that a tracker that ends since the store has lost records has written that down."""
        found = "has lost" in str(error) and "cannot be noted" not in str(error)
        if found and self.schedule.now - self._damaged_at > _SETTLED_S and not self.store.has_note():
            raise FoundOut(f"a tracker ends, and has written nothing down: {error}")

    def _forgive(self) -> None:
        """Forget what was lost, if nobody is left who could know of the loss and write it down."""
        if self._unsettled and not self.store.has_note() and max(each.knows for each in self.trackers) < self._top:
            self.note("nobody knows")
            self.sent.exact_from = self.wall()
            self._settled()
            self._top = 1
            self.logs.clear()

    # ---------------------------------------------------------------- a run

    def _rests(self) -> bool:
        """Return whether all has ended, and no restore is under way, which takes newer reports back."""
        return self.over and not self.operator.works

    def run(self, faults: int = 8) -> None:
        """Play the run.

        Raises:
            FoundOut: a promise was broken.
            StuckError: it does not come to an end.
        """
        outside = Process("outside")
        producers = [Producer(self, name, self._epochs) for name in PRODUCERS]
        works = [*(each.run for each in producers), self.watch, self.watch, self.supervise]
        if not self.losses:  # else it may be that nobody knows of a run
            works.append(partial(hand_over, self))
        for work in works:
            self.schedule.start(outside, work)
        self.schedule.start(outside, lambda: self.torment(faults))
        try:
            self.schedule.run(lambda: self.calm and self._rests() and all(producer.done for producer in producers))
        finally:
            for process in (outside, self.operator.process, *(tracker.process for tracker in self.trackers)):
                self.schedule.kill(process)
            self.schedule.end()
