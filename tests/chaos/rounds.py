"""A round: a job is fed while things are done to it; when all is over, what it released is compared with the truth."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from examples.lake.services import environment
from examples.services.kafka import Kafka
from examples.services.s3 import S3
from tests.buckets.line import Line as LineToStore
from tests.buckets.line import Request
from tests.chaos import truth
from tests.chaos.plan import BROKERS, IN_A_DRAIN, STORES, TOPIC, Fault, Shape, faults_in_a_drain, files, shape
from tests.chaos.processes import MARK, Role, below, kill_all, processes, processor_seconds, send
from tests.chaos.spark_home import spark_home
from tests.client.processes import Line, Server
from tests.spark.feed import Feed
from tracker.client import TrackerClient, TrackerError, TrackerUnavailable

Say = Callable[[str], None]

_COMES_UP = 240.0  #: seconds in which a process that a fault is for has to be there; and a driver has to start
_WHILE_IT_STARTS = 0.5  #: of the drivers that are killed: before they have committed anything
_IDLES = 30.0  #: seconds after which a driver that has committed nothing is killed nevertheless
_TRIES = 8  #: drivers that may fail one after the other
_SETTLES = 300.0  #: seconds without any progress after which a round is over
_HAS_WORKED = 0.3  #: of these waits, what its processes must have had of a processor: a machine may be busy elsewhere
_STANDS_STILL = 3600.0  #: seconds after which a wait is over nevertheless
_BREAKS, _BROKEN = 0.3, ("before", "after", "500")  #: the share of a broken store's requests, and what becomes of them
_GROWS = 16 << 20  #: bytes that a tracker may hold more after a round than before it; 3 to 4 MiB were seen
_RECORD = b"tracker-epoch"  #: the header that each record of a channel has
_REPOSITORY = Path(__file__).parents[2]
_TARGETS: dict[str, tuple[Role, ...]] = {
    "worker": ("worker",),
    "executor": ("executor",),
    "source reader": ("reader",),
    "query": ("query",),
}


@dataclass
class Outcome:
    """Outcome of a round.

    Attributes:
        shape: of its job.
        injected: faults, by kind.
        problems: what was not as it should be; none if the round is exact.
        damage: those of the problems that a slow machine cannot cause: something was counted, announced or released
            wrongly. A protection that is taken out has to show here.
        seconds: that it took.
        memory: bytes that the tracker held before the round and after it.
        copies: records of Kafka's that were written again.
    """

    shape: Shape
    injected: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    seconds: float = 0.0
    memory: tuple[int, int] = (0, 0)
    copies: int = 0


class _Patience:
    """A wait for a round's processes that is over after a while in which they could have done something.

    Args:
        mark: theirs.
        seconds: for which they are waited for, on a machine that has nothing else to do.
    """

    def __init__(self, mark: str, seconds: float) -> None:
        self._mark = mark
        self._seconds = seconds
        self._since = time.monotonic()
        self._had = processor_seconds(processes(mark))

    def is_over(self) -> bool:
        """Return whether the processes have had their time."""
        waited = time.monotonic() - self._since
        if waited < self._seconds:
            return False
        worked = processor_seconds(processes(self._mark)) - self._had
        return worked > _HAS_WORKED * self._seconds or waited > _STANDS_STILL


class Round:
    """One round.

    Args:
        seed: everything that can be is drawn from it.
        path: a directory of its own.
        plan: the faults, in their order. Those in a drain come by the seed; there are none if there are none here.
        feed_files: how many files of rows there are.
        without: the protection that is taken out.
        say: hears of each fault.
        kafka: whether the channel is a topic of a Kafka broker, which is started for the round.
        lake: whether all is in a store of objects, which is started for the round, and results may go into tables.
        connect: whether the job runs over Spark Connect.
        home: of `spark_home`; None: the round makes its own.
    """

    def __init__(
        self,
        seed: int,
        path: Path,
        plan: Sequence[Fault],
        feed_files: int,
        without: str | None,
        say: Say,
        kafka: bool = False,
        home: Path | None = None,
        lake: bool = False,
        connect: bool = False,
    ) -> None:
        self._path = path
        self._say = say
        self._mark = str(path)
        self._without = without
        path.mkdir(parents=True)
        self._home = home or spark_home(path / "spark")
        self._store = S3(path / "s3") if lake else None
        self._line_to_store: LineToStore | None = None
        if self._store is not None:
            self._store.start()
            self._line_to_store = LineToStore(self._store.port)
        self._tracker = Server(path)
        self._line = Line(self._tracker.address)
        self._broker_line: Line | None = None
        self._broker = Kafka(path / "kafka", self._line_to_broker) if kafka else None
        store = f"http://127.0.0.1:{self._line_to_store.port}" if self._line_to_store else ""
        brokers = self._broker.servers if self._broker else ""
        self._shape = shape(seed, self._line.address, brokers, without, store, connect)
        self._kept = truth.Kept(path, self._shape, self._store)
        self._shape.write(path / "shape.json")
        self._plan = plan
        self._in_the_drain = faults_in_a_drain(seed) if plan and self._shape.drains else []
        self._rows = files(seed, feed_files, marked=not self._shape.drains)
        self._feed = Feed(path / "raw")
        self._put = 0
        self._driver: subprocess.Popen[bytes] | None = None
        self._zombies: list[subprocess.Popen[bytes]] = []
        self._pauses: list[threading.Timer] = []
        self._restarts = 0
        self._failed_starts = 0  # without a batch committed
        self._had_done = 0
        self._outcome = Outcome(self._shape)
        self._client = TrackerClient(self._tracker.address, retry_for=120)
        self._subscriber = truth.Subscriber(self._client, self._shape.job)

    def _line_to_broker(self, address: str) -> str:
        self._broker_line = Line(address)
        return self._broker_line.address

    def play(self) -> Outcome:
        """Play the round to its end, and judge it."""
        began = time.monotonic()
        before = self._tracker.memory()
        try:
            if self._broker is not None:
                self._broker.start()
                self._broker.create(TOPIC)
            self._start()
            for place, fault in enumerate(self._plan):
                self._put_rows(len(self._rows) * (place + 1) // (len(self._plan) + 1))
                self._wait(fault.after)
                self._commit(fault)
            self._put_rows(len(self._rows))
            self._finish()
            self._outcome.problems = truth.problems(
                self._kept, self._shape, self._feed.rows, self._client, self._subscriber
            )
            self._outcome.damage = list(self._outcome.problems)
            self._outcome.memory = before, self._tracker.memory()
            if self._outcome.memory[1] > before + _GROWS:
                self._outcome.problems.append(f"the tracker held {before} bytes, and now {self._outcome.memory[1]}")
            if self._broker is not None:
                self._outcome.copies = self._broker.size(TOPIC) - sum(row["kind"] != "z" for row in self._feed.rows)
        except Lost as lost:
            self._outcome.problems = [str(lost), *self._leftovers()]
        finally:
            self._outcome.injected["task failures"] += _size(self._path / "task-failures")
            self._end()
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    # ---------------------------------------------------------------- the job

    def _start(self) -> None:
        (self._path / "started").unlink(missing_ok=True)
        self._had_done = self._commits()
        variables = {
            **os.environ,
            **(environment(self._store, self._shape.store) if self._store else {}),
            MARK: self._mark,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        with (self._path / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.job", str(self._path)],
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def _restart(self) -> None:
        """Start another driver, on the same checkpoints."""
        self._restarts += 1
        self._start()

    def _keep_up(self) -> None:
        """Start a driver again that has ended by itself, as a supervisor would."""
        assert self._driver is not None
        code = self._driver.poll()
        if code is None:
            return
        if (self._path / "order").exists():
            if code == 0:
                raise Ended
            if not self._in_the_drain:
                raise Lost(f"the job was told to stop and ended with {code}")
        self._outcome.injected["restarts after a failed query"] += 1
        self._failed_starts = 1 if self._commits() > self._had_done else self._failed_starts + 1
        if self._failed_starts > (_TRIES if self._without is None else 2):
            raise Lost(f"the job cannot go on: its program ended with {code} {self._failed_starts} times")
        self._say(f"the driver has ended with {code}: restarted")
        self._restart()  # what it leaves behind ends by itself, sooner or later

    def _put_rows(self, up_to: int) -> None:
        """Feed so many files in all: with the faults, so that there is work to do when one strikes."""
        while self._put < up_to:
            self._feed.put(*self._rows[self._put])
            self._put += 1

    # ---------------------------------------------------------------- faults

    def _commit(self, fault: Fault, when: str = "") -> None:
        action, _, target = fault.kind.partition(" ")
        if fault.kind == "kill tracker":
            self._tracker.kill()
            time.sleep(fault.seconds / 4)
            self._tracker.start()
        elif fault.kind == "pause tracker":
            self._tracker.freeze()
            time.sleep(fault.seconds)
            self._tracker.thaw()
        elif fault.kind == "cut network":
            self._line.cut()
        elif fault.kind == "hold back answers":
            self._line.hold_answers()
            time.sleep(fault.seconds)
            self._line.cut()
        elif fault.kind in BROKERS:
            self._strike_the_broker(fault)
        elif fault.kind in STORES:
            self._strike_the_store(fault)
        elif "driver" in target:
            self._strike_the_driver(fault)
        else:
            self._strike(fault, action, _TARGETS[target])
        self._outcome.injected[fault.kind + when] += 1
        self._say(f"{fault.kind}{when}{f' for {fault.seconds:.1f} s' if action in ('pause', 'hold') else ''}")

    def _strike(self, fault: Fault, action: str, roles: tuple[Role, ...]) -> None:
        """Kill or pause a process of these roles: another one where the first has ended by itself just before."""
        deadline = time.monotonic() + _COMES_UP
        while time.monotonic() < deadline:
            pid = self._target(fault, roles)
            if action == "kill" and send([pid], signal.SIGKILL):
                return
            if action == "pause" and self._pause([pid], fault.seconds):
                return
        raise Lost(f"no {' or '.join(roles)} lives for long enough to be struck")

    def _strike_the_broker(self, fault: Fault) -> None:
        assert self._broker is not None
        line = self._broker_line
        assert line is not None
        if fault.kind == "kill broker":
            self._broker.kill()
            time.sleep(fault.seconds / 4)
            self._broker.start()
        else:  # from the next records on: a producer that gets no answer writes them again
            line.hold_answers(after=_RECORD)
            written = self._comes_true(lambda: line.holds, _IDLES)
            time.sleep(fault.seconds if written else 0)
            line.cut()

    def _strike_the_store(self, fault: Fault) -> None:
        assert self._store is not None
        line = self._line_to_store
        assert line is not None
        if fault.kind == "kill store":
            self._store.kill()
            time.sleep(fault.seconds / 4)
            self._store.start()
        else:  # some requests do not arrive, the answers of others are lost, and others are done and called errors
            rng = random.Random(f"{self._shape.seed} {fault.which}")

            def broken(request: Request) -> str | None:
                return rng.choice(_BROKEN) if rng.random() < _BREAKS else None

            line.fault = broken
            time.sleep(fault.seconds)
            line.fault = lambda request: None

    def _strike_the_driver(self, fault: Fault) -> None:
        if fault.kind == "kill driver" and fault.which < _WHILE_IT_STARTS:
            self._wait_until((self._path / "started").exists, "a driver does not start")
        else:
            self._wait_until(self._is_working, "a driver that was started does no work")
        self._wait(fault.after)
        driver = self._driver
        assert driver is not None
        living = processes(self._mark)
        family = below(driver.pid, living)
        jvm = [process.pid for process in living if process.role == "jvm" and process.pid in family]
        if fault.kind == "pause driver":
            self._pause([driver.pid, *jvm], fault.seconds)
        elif fault.kind == "second driver":
            self._zombies.append(driver)
            self._restart()
        elif fault.kind == "zombie driver":
            send(family, signal.SIGSTOP)
            self._zombies.append(driver)
            self._restart()
            self._wait_until(self._is_working, "a driver that was started beside a zombie does no work")
            send(reversed(family), signal.SIGCONT)
        else:
            alone = [driver.pid, *jvm] if fault.kind != "kill driver, not its server" else [driver.pid]
            send(family if fault.kind == "kill driver" else alone, signal.SIGKILL)
            if driver.wait() != -signal.SIGKILL:  # it had ended by itself, which is no kill
                self._keep_up()
                self._strike_the_driver(fault)
                return
            self._restart()

    def _is_working(self) -> bool:
        """Return whether the driver in charge has committed a batch, or has had the time to."""
        started = self._path / "started"
        with suppress(FileNotFoundError):
            return self._commits() > self._had_done or time.time() - started.stat().st_mtime > _IDLES
        return False

    def _commits(self) -> int:
        """Count the batches that Spark has committed."""
        return sum(name.isdigit() for path in self._kept.root.glob("cp*/commits") for name in os.listdir(path))

    def _target(self, fault: Fault, roles: tuple[Role, ...]) -> int:
        found: list[int] = []
        fed = time.monotonic()

        def there() -> bool:
            nonlocal fed
            assert self._driver is not None
            if time.monotonic() - fed > _IDLES and self._put < len(self._rows):
                self._put_rows(self._put + 1)  # a server whose program was killed may have done all that there was
                fed = time.monotonic()
            living = processes(self._mark)
            own = set(below(self._driver.pid, living))
            found[:] = [process.pid for process in living if process.role in roles and process.pid in own]
            return bool(found)

        self._wait_until(there, f"there is no {' or '.join(roles)}")
        return found[int(fault.which * len(found))]

    def _pause(self, pids: list[int], seconds: float) -> list[int]:
        """Pause processes. Return those that were there."""
        paused = send(pids, signal.SIGSTOP)
        going_on = threading.Timer(seconds, send, [paused, signal.SIGCONT])
        going_on.start()
        self._pauses.append(going_on)
        return paused

    # ---------------------------------------------------------------- time

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._keep_up()
            time.sleep(0.1)

    def _wait_until(self, holds: Callable[[], bool], otherwise: str, seconds: float = _COMES_UP) -> None:
        patience = _Patience(self._mark, seconds)
        while not self._comes_true(holds, 1.0):
            if patience.is_over():
                raise Lost(otherwise)

    def _comes_true(self, holds: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not holds():
            self._keep_up()
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    # ---------------------------------------------------------------- the end

    def _finish(self) -> None:
        """Wait until everything has been released and stop the job, or drain it: then faults strike meanwhile."""
        for pause in self._pauses:
            pause.join()
        self._wait_until(lambda: self._commits() > 0, "no batch was ever committed", _SETTLES)
        if self._shape.drains:
            self._patiently(self._all_received, "not all rows have been received")
            (self._path / "order").write_text("drain")
        else:
            self._patiently(self._all_released, "not everything has been released")
            (self._path / "order").write_text("stop")
        with suppress(Ended):
            for fault in self._in_the_drain:
                self._wait(fault.after)
                self._commit(fault, IN_A_DRAIN)
            self._patiently(lambda: False, "the job does not stop")

    def _patiently(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait for as long as there is progress, or as the machine leaves the job no time for any."""
        settles = _SETTLES if self._without is None else _SETTLES / 3
        seen, patience = "", _Patience(self._mark, settles)
        while not holds():
            self._keep_up()
            now = self._progress()
            if now != seen:
                seen, patience = now, _Patience(self._mark, settles)
            if patience.is_over():
                raise Lost(otherwise)
            time.sleep(0.3)

    def _progress(self) -> str:
        return f"{self._commits()} {self._restarts}"

    def _all_received(self) -> bool:
        with suppress(TrackerError, TrackerUnavailable):
            received = Counter[str]()
            for status in self._client.substreams(self._shape.job, include_ended=True):
                for account in status.segments:
                    received[account.segment] += account.received
            rows = self._feed.rows
            audited = received["audit"] == len(rows) or not self._shape.audit
            passed = sum(row["kind"] != "z" for row in rows)
            return audited and received["in"] == len(rows) and received["clean"] == passed
        return False

    def _all_released(self) -> bool:
        with suppress(TrackerError, TrackerUnavailable):
            status = self._client.job(self._shape.job)
            staged = any(producer.staged_epochs for producer in status.producers)
            if status.open_substreams or status.in_flight or staged or not status.ended_substreams:
                return False
            return self._kept.state_is_empty() and truth.has_all(self._kept, self._feed.rows)
        return False

    def _leftovers(self) -> list[str]:
        """List the imbalances of a round that cannot come to its end, and the driver's last errors.

        Any round that stands still has received less than was sent. More received than sent, more sent than was fed,
        or equal counts with labels that do not vanish, is damage.
        """
        found: list[str] = []
        fed = truth.fed_on(self._feed.rows, self._shape)
        with suppress(TrackerError, TrackerUnavailable):
            for status in self._client.substreams(self._shape.job):
                for account in status.segments:
                    if account.sent == account.received and not account.xor:
                        continue
                    counts = f"{account.segment} sent {account.sent} received {account.received}"
                    problem = f"{status.scope} {status.name}: {counts}"
                    found.append(problem)
                    if (
                        account.received >= account.sent
                        or account.sent > fed[account.segment, status.scope, status.name]
                    ):
                        self._outcome.damage.append(problem)
        log = (self._path / "driver.log").read_text(errors="replace").splitlines()
        reasons = [line for line in log if line.startswith(("spark_client.errors", "pyspark.errors"))]
        # The tracker had committed what Spark had not: no slowness makes it so.
        self._outcome.damage.extend(line for line in reasons if "EPOCH_REWOUND" in line)
        return [*found[:6], *(reasons[-1:])]

    def _end(self) -> None:
        for pause in self._pauses:
            pause.cancel()
        self._subscriber.close()
        kill_all(self._mark)
        for process in [self._driver, *self._zombies]:
            if process is not None:
                process.wait()
        self._line.close()
        self._tracker.kill()
        if self._broker is not None and self._broker_line is not None:
            self._broker_line.close()
            self._broker.kill()
        if self._store is not None and self._line_to_store is not None:
            self._line_to_store.close()
            self._store.kill()
        shutil.rmtree(self._home / "work", ignore_errors=True)


class Ended(Exception):  # noqa: N818 - what is waited for
    """The job has stopped, as it was asked to."""


class Lost(Exception):  # noqa: N818 - an outcome, not an error of the program
    """The round cannot come to its end."""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
