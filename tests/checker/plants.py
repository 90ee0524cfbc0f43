"""Faults that are planted in a tracker, to see that the checker finds them.

`launcher` changes the modules of the process that it starts. Each fault has a plan of few faults that shows it, and the
kinds of findings, of which one at least must come out.
"""

# Each plant replaces something.
# mypy: disable-error-code="assignment, method-assign, misc"

from __future__ import annotations

import asyncio
import queue
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from tracker.contract.commands import Command, Report
from tracker.core import Refused
from tracker.journal import JournalGoneError, Record, Recovery
from tracker.journal.redis import journal as redis_journal
from tracker.journal.redis import log as redis_log
from tracker.journal.redis import scripts
from tracker.journal.redis.log import Known, Relation, Top
from tracker.server import app, owning
from tracker.server.owning import Leadership
from tracker.server.replayable import ReplayableState
from tracker.server.sequencer import Clock
from tracker.server.watching import Readers
from tracker.wire.codec import Method

_LATE_S: Final = 0.5  # from an acknowledgement that comes too early to the write
_PATIENCE_S: Final = 0.2  # for the journal's answer
_SLOW_S: Final = 0.5  # for each record of a replay
_BETWEEN_S: Final = 0.2  # from a look at the lease to the write
_KINDS_OF_TWO_LEADERS: Final = ("two leaders", "stale", "lost", "two events with one number", "an event that is gone")

#: Keys and arguments as in `scripts.APPEND`: the entry is written whoever writes it.
_APPEND_UNCHECKED: Final = """
local top = redis.call('HMGET', KEYS[2], 'id', 'last')
if top[1] == ARGV[1] then return ARGV[1] end
local number = tonumber(top[2] or '0') + tonumber(ARGV[4])
local id = string.format('%d-%d', tonumber(string.match(top[1] or '0-0', '^%d+')), number)
redis.call('XADD', KEYS[1], id, 'count', ARGV[4], 'sum', ARGV[5], 'data', ARGV[6])
redis.call('HSET', KEYS[2], 'id', id, 'last', number)
return id
"""


@dataclass(frozen=True)
class Planted:
    """A fault.

    Args:
        means: what is wrong then.
        sow: puts it into the modules of this process.
        faults: that show it: kind, seconds from the beginning, how long it lasts, and options.
        found: the kinds of findings of which it shows one at least.
    """

    means: str
    sow: Callable[[], None]
    faults: Sequence[tuple[str, float, float, dict[str, Any]]]
    found: tuple[str, ...]


def _unfenced() -> None:
    scripts.APPEND = _APPEND_UNCHECKED
    redis_log.checksum = lambda first, count, data: zlib.crc32(data)  # type: ignore[attr-defined]
    redis_journal.RedisJournal._look = lambda self, acknowledged, top: None


def _leased() -> None:
    _unfenced()
    append: Any = redis_log.Log.append

    def checked(log: Any, records: Sequence[Record]) -> int:
        holder = log.client.get(log._keys.lease)
        if holder is None or holder.decode() != _HOLDERS.get(id(log._keys), ""):
            raise JournalGoneError("another tracker has the lease")
        time.sleep(_BETWEEN_S)
        return int(append(log, records))

    claim: Any = redis_log.Log.claim

    def claimed(log: Any, holder: str, *more: Any) -> Any:
        _HOLDERS[id(log._keys)] = holder
        return claim(log, holder, *more)

    redis_log.Log.claim = claimed
    redis_log.Log.append = checked


_HOLDERS: dict[int, str] = {}


def _early() -> None:
    append: Any = redis_log.Log.append
    waiting: queue.Queue[tuple[Any, Sequence[Record], float]] = queue.Queue()
    last: dict[int, int] = {}

    def write() -> None:
        while True:
            log, records, due = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            append(log, records)

    def acknowledged(log: Any, records: Sequence[Record]) -> int:
        last[id(log)] = last.get(id(log), log.last) + len(records)
        waiting.put((log, records, time.monotonic() + _LATE_S))
        return last[id(log)]

    redis_log.Log.append = acknowledged
    threading.Thread(target=write, daemon=True).start()


def _forgetful() -> None:
    recover: Any = redis_journal.RedisJournal.recover

    def without_the_last(journal: Any, *more: Any) -> Recovery:
        recovery = recover(journal, *more)
        records = list(recovery.records)
        commits = [place for place, record in enumerate(records) if record.method in (Method.REPORT, Method.COMMIT)]
        if commits:
            records[commits[-1]] = records[commits[-1]]._replace(payload=b"")
        return replace(recovery, records=iter(records))

    redis_journal.RedisJournal.recover = without_the_last


def _skipping() -> None:
    watch: Any = Readers.watch

    def skips(readers: Any, request: Any) -> AsyncIterator[Any]:
        if request.after_seq:
            request.after_seq += 1
        found: AsyncIterator[Any] = watch(readers, request)
        return found

    Readers.watch = skips


def _unconfirmed() -> None:
    async def confirm(_: Leadership) -> None:
        pass

    Leadership.confirm = confirm


def _silent() -> None:
    Recovery.tail_lost = property(lambda self: False)


def _twice() -> None:
    apply: Any = ReplayableState.apply

    def counts_again(state: Any, command: Command, at: int) -> Any:
        if isinstance(command, Report) and command.commit:
            producers = state.tracker.view(command.job).status().producers
            committed = {each.producer: each.committed_epoch for each in producers}.get(command.producer)
            if committed is not None and command.epoch <= committed:
                command = replace(command, epoch=committed + 1)
        return apply(state, command, at)

    ReplayableState.apply = counts_again


def _turned_back() -> None:
    Clock.now = lambda self: self._wall()


def _blind() -> None:
    def compare(known: Known, shown: Top) -> tuple[Relation, int]:
        return (Relation.REPLACED if shown.term > known.term > 0 else Relation.CONTINUES), 0

    redis_log.compare = compare


def _accepting() -> None:
    run: Any = app.run
    app.run = lambda options, *more, **named: run(replace(options, accept_loss=True), *more, **named)
    app.replace = lambda options, **_: options  # type: ignore[attr-defined]
    owning.follow_journal = lambda _: None  # type: ignore[attr-defined]


def _impatient() -> None:
    confirm: Any = Leadership.confirm

    async def confirmed(leadership: Leadership) -> None:
        with suppress(TimeoutError, Refused):
            await asyncio.wait_for(confirm(leadership), _PATIENCE_S)

    Leadership.confirm = confirmed


def _marked() -> None:
    carrying: Any = redis_journal.RedisJournal.carrying
    replaying: Any = redis_journal.RedisJournal.replaying
    noted: deque[int] = deque(maxlen=30)

    def carries_all(journal: Any, numbers: Sequence[int]) -> bool:
        noted.extend(numbers)
        return bool(carrying(journal, list(noted)))

    def replays_slowly(journal: Any, number: int) -> None:
        replaying(journal, number)
        time.sleep(_SLOW_S if number else 0)

    redis_journal.RedisJournal.carrying = carries_all
    redis_journal.RedisJournal.replaying = replays_slowly


def _hurried() -> None:
    made: Any = redis_journal.RedisJournal.__init__

    def ignores_restores(journal: Any, address: Any, follow: bool = False, restoring: bool = False) -> None:
        made(journal, address, follow, restoring=True)

    redis_journal.RedisJournal.__init__ = ignores_restores


_BOTH: Final = {"requests": True, "answers": True, "late": True}
_ANSWERS: Final = {"requests": False, "answers": True, "late": False, "everyone": True}

PLANTS: Final[dict[str, Planted]] = {
    "no fencing": Planted(
        "the journal takes the records of a tracker that another one has replaced",
        _unfenced,
        [("cut journal", 1.5, 3.0, _BOTH), ("sleep", 7.5, 2.0, {})],
        _KINDS_OF_TWO_LEADERS,
    ),
    "lease without token": Planted(
        "a tracker looks at the lease before it writes, and the write itself is not checked",
        _leased,
        [("sleep", at, 1.8, {}) for at in (1.5, 6.0, 10.5, 15.0)],
        (*_KINDS_OF_TWO_LEADERS, "not what the model has", "order"),
    ),
    "early answers": Planted(
        "calls are answered before their records are durable",
        _early,
        [("kill", 2.0, 0.5, {}), ("kill", 6.0, 0.5, {})],
        ("lost", "two events with one number", "an event that is gone"),
    ),
    "numbers again": Planted(
        "the last record is left out when a tracker takes over, so that numbers of events are given again",
        _forgetful,
        [("kill", 2.0, 0.5, {}), ("kill", 6.0, 0.5, {})],
        ("lost", "two events with one number", "an event that is gone"),
    ),
    "watch that skips": Planted(
        "a watch that goes on leaves an event out", _skipping, [("kill", 2.0, 0.5, {})], ("gap in a watch",)
    ),
    "old answers": Planted(
        "look-ups are answered without asking the journal who leads",
        _unconfirmed,
        [("cut journal", 1.5, 5.0, _BOTH)],
        ("stale", "two leaders"),
    ),
    "silent loss": Planted(
        "the logs keep their ids after records were lost",
        _silent,
        [("promote older", 1.5, 1.0, {})],
        ("loss without another log", "two events with one number", "an event that is gone"),
    ),
    "blind standby": Planted(
        "who has followed a log does not compare what it has read with what Redis has",
        _blind,
        [("older redis", 3.0, 1.5, {"how": "older", "dead": True})],
        ("loss without another log", "lost", "two events with one number", "an event that is gone", "stuck"),
    ),
    "accepts by itself": Planted(
        "a tracker continues after a loss without being told to",
        _accepting,
        [("older redis", 3.0, 1.5, {"how": "older", "dead": False, "unread": True})],
        ("a loss that nobody accepted",),
    ),
    "impatient look-ups": Planted(
        "a look-up is answered if the journal is slow to tell who leads",
        _impatient,
        [("slow redis", 1.5, 7.0, {"seconds": 5.0, "everyone": False})],
        ("stale", "two leaders"),
    ),
    "marks that stay": Planted(
        "a command that was answered stays noted as one under way, and is left out after two kills",
        _marked,
        [("kill heirs", at, 6.0, {"times": 1, "after": 0.2}) for at in (2.0, 9.0)],
        ("lost", "not what the model has", "two events with one number", "an event that is gone"),
    ),
    "half a restore": Planted(
        "a tracker starts on a journal that was set aside for a backup",
        _hurried,
        [("restore", 3.0, 0.0, {"after": 0})],
        ("lost", "another log without a loss"),
    ),
    "counted twice": Planted(
        "a repeated report counts again",
        _twice,
        [("cut clients", at, 1.0, _ANSWERS) for at in (2.0, 4.0)],
        ("not what the model has",),
    ),
    "clock turned back": Planted(
        "the tracker's clock follows the machine's wherever it goes",
        _turned_back,
        [("clock", 2.0, 2.0, {"seconds": -3600})],
        ("time goes back",),
    ),
}
