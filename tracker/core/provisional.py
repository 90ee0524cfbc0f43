"""Provisional effects: those of IMMEDIATE epochs that are not committed, and how they are taken back.

A STAGED epoch takes effect when it is committed, for good, and never comes here. An IMMEDIATE report takes effect when
it is received, tentatively: until its epoch is committed, the epoch may be revoked, and then all is as if it had never
happened. So each tentative effect is kept with its *origin*, the epoch that it came from:

* `note` keeps a promise before it takes effect, with what stood before it;
* `confirm` forgets what could be taken back of a promise, since a committed epoch promises the same;
* `commit` makes all effects of an epoch final;
* `revoke` takes them back, elements too, and has the substreams that were touched await another commit of the epoch:
  until then balance proves nothing;
* `release` lets those end for which that commit has come, or will not come.

The effects themselves are where those of STAGED epochs are, which know nothing of this: a front's `promised` frontiers
beside its `committed` ones, the closes by name, the numbers that are expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar

from tracker.contract.status import SOLE_OWNER

from .accounts import Accounts
from .cells import Entries, Rows, distinct
from .closed import ClosedSet
from .expectations import Key
from .fronts import UNSET, Fronts
from .lifecycle import AWAITING_RECOMMIT, ENDED, SOLE, STALLED
from .producers import CloseOf, ExpectOf, FinishOf, FrontierOf, Number, Pledge

Origin: TypeAlias = tuple[str, int]  #: the epoch that an effect came from: its producer's name, and its number
COMMITTED: None = None  #: in the place of an origin: nobody can take it back

_Key = TypeVar("_Key")
_Record = TypeVar("_Record")


class Provisional:
    """The tentative effects of a job.

    Args:
        closing: the job's; has the closes by name and the numbers.

    Attributes:
        awaiting: by producer and row, the epoch after whose commit the row may end.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts, closing: ClosedSet) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self._closing = closing
        self.frontiers: dict[str, list[tuple[Origin, str | None, int]]] = {}  #: by front
        self.finishes: dict[str, set[Origin]] = {}  #: by front
        self.closes: dict[int, dict[str, set[Origin]]] = {}  #: by id and front
        self.numbers: dict[int, dict[Key, list[tuple[Origin | None, Number]]]] = {}  #: by id and key: all, in turn
        self.identities: dict[int, dict[Origin, list[tuple[Key, int]]]] = {}  #: by id and origin: what was added
        self._ids: dict[Origin, dict[int, None]] = {}  # of the substreams that an epoch has closed, or expects
        self.awaiting: dict[str, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self.frontiers or self.finishes or self.closes or self.numbers or self.identities)

    # ------------------------------------------------------------ promises

    def note(self, origin: Origin, pledge: Pledge) -> None:
        """Keep a promise of an epoch, before it takes effect."""
        if isinstance(pledge, FrontierOf):
            promising = self._fronts.by_name[pledge.front]
            if promising.promised is promising.committed:
                promising.promised = dict(promising.committed)
            self.frontiers.setdefault(pledge.front, []).append((origin, pledge.scope, pledge.time))
        elif isinstance(pledge, FinishOf):
            if not self._fronts.by_name[pledge.front].finish_committed:
                self.finishes.setdefault(pledge.front, set()).add(origin)
        elif isinstance(pledge, CloseOf):
            id_, front = self._accounts.id_of(pledge.row), pledge.front
            is_open = not self._accounts.flags[pledge.row] & ENDED
            if is_open and (front in self.closes.get(id_, ()) or not self._is_closed(id_, front, pledge.row)):
                self.keep_close(id_, front, {origin})
        elif isinstance(pledge, ExpectOf):
            self._note_number(origin, pledge)
        else:
            self.keep_identities(self._accounts.id_of(pledge.row), origin, (pledge.segment, pledge.front), pledge.xor)

    def _is_closed(self, id_: int, front: str, row: int) -> bool:
        if front == SOLE_OWNER:
            return bool(self._accounts.flags[row] & SOLE)
        return front in self._closing.waiting.closes.get(id_, ())

    def _note_number(self, origin: Origin, pledge: ExpectOf) -> None:
        id_, key = self._accounts.id_of(pledge.row), (pledge.segment, pledge.front)
        before = self._closing.expectations.of(id_).get(key)
        if self._closing.expectations.accepts(pledge, before):
            given = self.numbers.get(id_, {}).get(key)
            if given is None:
                given = [] if before is None else [(COMMITTED, before)]
            self.keep_numbers(id_, key, [*given, (origin, pledge.number)])

    def keep_identities(self, id_: int, origin: Origin, key: Key, xor: int) -> None:
        """Note what an epoch has added to the identities of sent elements."""
        self.identities.setdefault(id_, {}).setdefault(origin, []).append((key, xor))
        self._ids.setdefault(origin, {})[id_] = None

    def keep_close(self, id_: int, front: str, origins: set[Origin]) -> None:
        """Note that these epochs, too, have closed a substream for a front."""
        self.closes.setdefault(id_, {}).setdefault(front, set()).update(origins)
        for origin in origins:
            self._ids.setdefault(origin, {})[id_] = None

    def keep_numbers(self, id_: int, key: Key, given: list[tuple[Origin | None, Number]]) -> None:
        """Note the numbers of which the last stands, as far as any can be taken back."""
        # Numbers before a committed one will never stand again.
        last = max((at for at, (by, _) in enumerate(given) if by is COMMITTED), default=0)
        given = given[last:]
        origins = {by for by, _ in given if by is not COMMITTED}
        if origins:
            self.numbers.setdefault(id_, {})[key] = given
        else:
            _drop(self.numbers, id_, key)
        for origin in origins:
            self._ids.setdefault(origin, {})[id_] = None

    def confirm(self, pledge: Pledge) -> None:
        """Note a promise that nobody can take back, before it takes effect."""
        if isinstance(pledge, FinishOf):
            self.finishes.pop(pledge.front, None)
        elif isinstance(pledge, CloseOf):
            _drop(self.closes, self._accounts.id_of(pledge.row), pledge.front)
        elif isinstance(pledge, ExpectOf):
            id_, key = self._accounts.id_of(pledge.row), (pledge.segment, pledge.front)
            if self._closing.expectations.accepts(pledge, self._closing.expectations.of(id_).get(key)):
                _drop(self.numbers, id_, key)

    def commit(self, origin: Origin) -> None:
        """Make an epoch's closes and numbers final; its frontiers and finishes were committed by themselves."""
        self._drop_frontiers(origin)
        for name in [name for name, origins in self.finishes.items() if origin in origins]:
            del self.finishes[name]
        for id_ in self._ids.pop(origin, ()):
            for front in [front for front, origins in self.closes.get(id_, {}).items() if origin in origins]:
                _drop(self.closes, id_, front)
            for key, given in list(self.numbers.get(id_, {}).items()):
                self.keep_numbers(id_, key, [(COMMITTED if by == origin else by, number) for by, number in given])
            _drop(self.identities, id_, origin)

    def _drop_frontiers(self, origin: Origin) -> None:
        for name, promises in list(self.frontiers.items()):
            left = [promise for promise in promises if promise[0] != origin]
            if len(left) < len(promises):
                self.frontiers[name] = left
                if not left:
                    del self.frontiers[name]
                self.promise_anew(name)

    def promise_anew(self, name: str) -> None:
        """Find a front's frontiers by what it has committed, and by what can still be taken back."""
        front = self._fronts.by_name[name]
        promised = front.committed
        if name in self.frontiers:
            promised = dict(promised)
            for _, scope, time in self.frontiers[name]:
                promised[scope] = max(time, promised.get(scope, UNSET))
        front.promised = promised

    def forget_finish(self, name: str) -> None:
        """Forget that a front has finished."""
        self.finishes.pop(name, None)

    # ------------------------------------------------------------ revocation

    def revoke(self, origin: Origin, folded: Iterable[Entries], now: int) -> None:
        """Revoke an epoch.

        Args:
            folded: its entries that were folded in.
            now: when it was revoked (ns).
        """
        for entries in folded:
            self._take_out(origin, entries, now)
        for id_ in self._ids.pop(origin, ()):
            self._withdraw_numbers(origin, id_, now)
            self._withdraw_identities(origin, id_)
            self._withdraw_closes(origin, id_)
        self._drop_frontiers(origin)
        self._withdraw_finishes(origin)
        self._closing.fronts_changed()
        self._closing.note()

    def _take_out(self, origin: Origin, entries: Entries, now: int) -> None:
        accounts, (producer, number) = self._accounts, origin
        rows = distinct(entries.rows[~accounts.life.are(entries.rows, ENDED)])
        for row in rows.tolist():
            awaiting = self.awaiting.setdefault(producer, {})
            awaiting[row] = max(number, awaiting.get(row, number))
            accounts.life.mark(row, AWAITING_RECOMMIT)
            accounts.life.unmark(row, STALLED)
            accounts.changed[row] = now
        has_ended = accounts.cells.reasons(entries.rows, entries.segments) != 0
        accounts.cells.unfold(entries.where(~has_ended))
        expectations = self._closing.expectations
        if expectations:
            expectations.touched(entries.rows)
            self._closing.look_at(expectations.among(entries.rows))

    def _withdraw_numbers(self, origin: Origin, id_: int, now: int) -> None:
        """Withdraw the numbers of an origin, but for those of a substream that has ended."""
        row = self._accounts.row_of(id_)
        for key, given in list(self.numbers.get(id_, {}).items()):
            if all(by != origin for by, _ in given):
                continue
            if self._accounts.reason(row, key[0]):
                _drop(self.numbers, id_, key)
                continue
            left = [each for each in given if each[0] != origin]
            self.keep_numbers(id_, key, left)
            stands = left[-1][1] if left else None
            if self._closing.expectations.replace(id_, key, stands) and not self._accounts.flags[row] & ENDED:
                self._accounts.changed[row] = now
                self._accounts.life.unmark(row, STALLED)
                self._closing.look_at([row])

    def _withdraw_identities(self, origin: Origin, id_: int) -> None:
        row = self._accounts.row_of(id_)
        for key, xor in self.identities.get(id_, {}).get(origin, ()):
            if not self._accounts.reason(row, key[0]):
                self._closing.identify(row, key, xor)
        _drop(self.identities, id_, origin)

    def _withdraw_finishes(self, origin: Origin) -> None:
        for name, origins in list(self.finishes.items()):
            origins.discard(origin)
            if not origins:
                del self.finishes[name]
                front = self._fronts.by_name[name]
                front.finished = front.drained_in = False

    def _withdraw_closes(self, origin: Origin, id_: int) -> None:
        for front, origins in list(self.closes.get(id_, {}).items()):
            origins.discard(origin)
            if not origins:
                _drop(self.closes, id_, front)
                self._closing.reopen(self._accounts.row_of(id_), front)

    # ------------------------------------------------------------ substreams that await a commit

    def release(self, producer: str, committed: int | None = None) -> list[int]:
        """Return the rows that may end now that a producer has committed an epoch, or (None) is forgotten."""
        awaiting = self.awaiting.get(producer, {})
        rows = [row for row, epoch in awaiting.items() if committed is None or epoch <= committed]
        freed = []
        for row in rows:
            del awaiting[row]
            if not any(row in others for others in self.awaiting.values()):
                self._accounts.life.unmark(row, AWAITING_RECOMMIT)
                freed.append(row)
        if not awaiting:
            self.awaiting.pop(producer, None)
        return freed

    def ended(self, rows: Rows) -> None:
        """Drop what is kept of rows that ended on every segment: they cannot change any more."""
        if not (self.awaiting or self.closes):
            return
        for row in rows[self._accounts.life.are(rows, AWAITING_RECOMMIT)].tolist():
            self._accounts.life.unmark(row, AWAITING_RECOMMIT)
            for producer in [name for name, awaiting in self.awaiting.items() if row in awaiting]:
                del self.awaiting[producer][row]
                if not self.awaiting[producer]:
                    del self.awaiting[producer]
        if self.closes:
            for id_ in self._accounts.ids_of(rows).tolist():
                self.closes.pop(id_, None)


def _drop(records: dict[int, dict[_Key, _Record]], id_: int, key: _Key) -> None:
    """Forget a record of a substream, if there is one."""
    of_it = records.get(id_, {})
    of_it.pop(key, None)
    if not of_it:
        records.pop(id_, None)
