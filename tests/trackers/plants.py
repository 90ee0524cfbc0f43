"""Mends that can be taken out, to see that a simulation finds what they mend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tracker.contract.values import Reason
from tracker.core import codec, reports, timers
from tracker.core.ends import Completion
from tracker.journal import LeftOut, Recovery, SqliteJournal
from tracker.journal.mark import Mark, Marked, Marks
from tracker.journal.objects.log import Log as ObjectsLog
from tracker.journal.redis import journal as redis_journal
from tracker.journal.redis import log, scripts
from tracker.journal.redis.log import Relation, Top
from tracker.journal.replicated import ReplicatedJournal
from tracker.server.sequencer import Sequencer


def _compares_nothing(change: pytest.MonkeyPatch) -> None:
    change.setattr(log, "compare", lambda known, shown: (Relation.SAME, 0))


def _keeps_marks(change: pytest.MonkeyPatch) -> None:
    def came(self: Any, pending: Any, number: int, done: asyncio.Future[Any]) -> None:
        del self._under_way[number]
        error = done.exception()
        self._answered(pending, None if error is not None else done.result(), error)

    change.setattr(Sequencer, "_came", came)


def _leaves_out_by_number(change: pytest.MonkeyPatch) -> None:
    change.setattr(LeftOut, "__eq__", lambda self, other: self.number == other.number)
    change.setattr(LeftOut, "__hash__", lambda self: hash(self.number))


def _notes_no_restore(change: pytest.MonkeyPatch) -> None:
    opens = SqliteJournal.__init__
    change.setattr(SqliteJournal, "__init__", lambda self, path, restoring=False: opens(self, path, True))
    always = property(lambda self: True, lambda self, value: None)
    change.setattr(ReplicatedJournal, "_restoring", always, raising=False)


def _fences_nobody(change: pytest.MonkeyPatch) -> None:
    change.setattr(reports, "fence_all", lambda job, stand_in: None)


def _fences_all(change: pytest.MonkeyPatch) -> None:
    change.setattr(
        reports, "fence_all", lambda job, stand_in: [producer.fence() for producer in job.producers.values()]
    )


def _sees_no_vanished_log(change: pytest.MonkeyPatch) -> None:
    change.setattr(scripts, "APPEND", scripts.APPEND.replace(" or redis.call('EXISTS', KEYS[1]) == 0", ""))
    shows = SimpleNamespace(read=lambda *shown: replace(Top.read(*shown), has_log=True))
    change.setattr(redis_journal, "Top", shows)


def _makes_no_top_again(change: pytest.MonkeyPatch) -> None:
    for name in ("LOOK", "CLAIM"):
        change.setattr(scripts, name, getattr(scripts, name).replace("if not top[1] and", "if false and"))


def _asks_no_role(change: pytest.MonkeyPatch) -> None:
    change.setattr(redis_journal.Confirmation, "_check_role", lambda self, role: None)


def _keeps_log_ids(change: pytest.MonkeyPatch) -> None:
    change.setattr(Recovery, "tail_lost", False)


def _trusts_any_run(change: pytest.MonkeyPatch) -> None:
    change.setattr(Mark, "_run", property(lambda self: b"one for all runs", lambda self, value: None), raising=False)


def _trusts_the_living(change: pytest.MonkeyPatch) -> None:
    def read(self: Any, writer: str) -> None:
        self._open(writer)
        self.found = Marked() if self._mark is None else self._mark.marked

    change.setattr(Marks, "read", read)


def _lets_replaced_write(change: pytest.MonkeyPatch) -> None:
    change.setattr(ObjectsLog, "_moved", lambda self, found: None)
    written = scripts.APPEND.replace("return redis.error_reply('NOTLAST ' .. id)", "return id")
    change.setattr(scripts, "APPEND", written)


def _calls_all_complete(change: pytest.MonkeyPatch) -> None:
    change.setattr(Completion, "_reason", lambda self, row, segment: Reason.COMPLETE)


def _forgets_rules(change: pytest.MonkeyPatch) -> None:
    change.setattr(codec, "Reason", SimpleNamespace(of=lambda number: Reason.COMPLETE))


def _closes_in_hand_overs(change: pytest.MonkeyPatch) -> None:
    change.setattr(timers, "_unpromised_due", lambda job: job.now)


def _takes_fronts_for_silent(change: pytest.MonkeyPatch) -> None:
    fall_silent = timers._fall_silent
    change.setattr(timers, "_fall_silent", lambda job, silence: fall_silent(job, silence // 4))


#: The stores, whether they lose what they had, and how the mend is taken out.
PLANTS: dict[str, tuple[str, bool, Callable[[pytest.MonkeyPatch], None]]] = {
    "S1: a tracker compares nothing": ("redis", True, _compares_nothing),
    "S1: a log keeps its id after a loss": ("objects", True, _keeps_log_ids),
    "S1: reporters go on with their runs after a loss": ("objects", True, _fences_nobody),
    "S2: marks outlast answers": ("file", False, _keeps_marks),
    "S2: marks outlast answers, in Redis": ("redis", False, _keeps_marks),
    "S2: marks outlast answers, with objects": ("objects", False, _keeps_marks),
    "S3: records are left out by their number": ("file", True, _leaves_out_by_number),
    "S3: records are left out by their number, in Redis": ("redis", True, _leaves_out_by_number),
    "S3: records are left out by their number, with objects": ("objects", True, _leaves_out_by_number),
    "S4: a restore leaves no note in a file": ("file", False, _notes_no_restore),
    "S4: a restore leaves no note in Redis": ("redis", False, _notes_no_restore),
    "S4: a restore leaves no note in an object store": ("objects", False, _notes_no_restore),
    "S5: a restore ends all runs in a hand-over": ("file", False, _fences_all),
    "S6: a log that vanishes is not noticed": ("redis", True, _sees_no_vanished_log),
    "S6: the end of a log is not made again": ("redis", True, _makes_no_top_again),
    "S7: a demoted master confirms who leads": ("redis", False, _asks_no_role),
    "an end by a rule is called complete": ("file", False, _calls_all_complete),
    "a restart forgets which rule has closed a substream": ("objects", False, _forgets_rules),
    "rules close substreams in a hand-over": ("objects", False, _closes_in_hand_overs),
    "a front is silent too early": ("file", False, _takes_fronts_for_silent),
    "a mark from before a loss of power counts": ("file", False, _trusts_any_run),
    "a mark of a writer that lives counts": ("objects", False, _trusts_the_living),
    "a replaced leader's writes count, in Redis": ("redis", False, _lets_replaced_write),
    "a replaced leader's writes count, with objects": ("objects", False, _lets_replaced_write),
}
