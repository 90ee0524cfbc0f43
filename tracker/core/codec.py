"""Parts of a job in a snapshot: each as plain values and columns, and back again, side by side.

Derived state (indexes, heaps, the rows to look at) is not kept but rebuilt. Rows are used again and so are kept as ids;
sets are kept in an order of their own, so that the same state gives the same bytes. The meaning of a value that an
older version did not write stands beside the line that reads it.

`tests/core/test_codec.py` holds every field of every class of the state to coming back, or to being listed as derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias, get_args

import numpy as np

from tracker.contract.bounds import bounded
from tracker.contract.spec import Spec
from tracker.contract.status import SOLE_OWNER
from tracker.contract.values import DrainMode, DrainState, Mode, Ordering, Reason

from .accounts import Accounts, new_accounts
from .cells import Entries, Rows
from .closed import ClosedSet
from .expectations import Expectations
from .fronts import CommittedWatermarks, Front, Fronts
from .graph import Graph
from .job import DrainRecord, Job
from .lifecycle import CLOSED, ENDED, KNOWN
from .log import Dropped, EventFilter, EventLog
from .producers import (
    AboutRow,
    CloseOf,
    Epoch,
    ExpectOf,
    FinishOf,
    FrontierOf,
    IdentitiesOf,
    Newest,
    Number,
    Numbers,
    Pledge,
    Producer,
    StagedReport,
)
from .provisional import COMMITTED, Origin, Provisional
from .subscriptions import Subscription, Subscriptions
from .tombstones import Tombstones

Values: TypeAlias = dict[str, Any]

#: The fields of a class that are kept as they are, under their own names or in this order.
_RULES = (
    "expire_expected",
    "deadline",
    "deadline_by_event_time",
    "threshold_ppm",
    "threshold_after",
    "scope_idle_after",
    "front_idle_after",
)
_OF_SUBSCRIPTION = ("acknowledged", "max_age", "max_events", "created", "last_ack", "expired", "expired_because")
_OF_PRODUCER = ("run", "last_run", "seals", "settled", "committed")
_OF_FRONT = ("owner", "owned_in", "drained_in", "idle", "last_promise")
_OF_ACCOUNTS = ("scope", "end_time", "created", "changed")
IdsOf: TypeAlias = Callable[[Rows], Rows]
RowsOf: TypeAlias = Callable[[Any], Rows]


def dump_log(log: EventLog) -> dict[str, Any]:
    return {
        "log_id": log.log_id,
        "first_seq": log._first,
        "events": log._events[log._passed :],
        "retained": [[seq, *kept] for seq, kept in log.retained._events.items()],
        "dropped": dump_dropped(log.dropped),
    }


def load_log(values: dict[str, Any]) -> EventLog:
    """Load a log; loading the subscriptions finds who waits for what is retained."""
    log = EventLog(values["log_id"])
    log._first = values["first_seq"]
    # Version 0.1 dumped neither of the two: whatever was before the first event had been dropped.
    log.dropped = load_dropped(values["dropped"]) if "dropped" in values else Dropped(values["first_seq"] - 1)
    for seq, *kept in values.get("retained", ()):
        log.retained.add(seq, tuple(kept), 0)
    log._events = list(map(tuple, values["events"]))
    return log


def dump_dropped(dropped: Dropped) -> list[Any]:
    places = [[segment, scope, seq] for (segment, scope), seq in dropped._places.items()]
    return [dropped.last, dropped._everywhere, places, list(dropped._segments.items())]


def load_dropped(values: list[Any]) -> Dropped:
    last, everywhere, places, segments = values
    dropped = Dropped(last)
    dropped._everywhere = everywhere
    dropped._places = {(segment, scope): seq for segment, scope, seq in places}
    dropped._segments = dict(map(tuple, segments))
    return dropped


def dump_subscriptions(subscriptions: Subscriptions) -> list[Any]:
    """Return the subscriptions; what each of them waits for follows from the log."""
    return [
        [each.name, sorted(each.wanted.segments), sorted(each.wanted.scopes), *_kept(each, _OF_SUBSCRIPTION).values()]
        for each in subscriptions._by_name.values()
    ]


def load_subscriptions(log: EventLog, values: list[Any]) -> Subscriptions:
    subscriptions = Subscriptions(log)
    for name, segments, scopes, *rest in values:
        subscriptions.restore(Subscription(name, EventFilter(segments, scopes), *rest))
    subscriptions.release_unclaimed()
    return subscriptions


def _kept(one: object, fields: Iterable[str]) -> Values:
    return {field: getattr(one, field) for field in fields}


def _keep(one: object, fields: Iterable[str], values: Values) -> None:
    for field in fields:
        setattr(one, field, values[field])


def copy_job(job: Job) -> Callable[[], Values]:
    """Copy the job. The function that is returned makes plain values of the copy, and shares nothing with the job.

    Copying a million substreams takes a fifth of the time that making plain values of them takes, and a job's commands
    have to wait for the copy alone.
    """
    accounts = job.accounts.copied()
    values = {
        "spec": dump_spec(job.spec),
        "log": dump_log(job.log),
        "subscriptions": dump_subscriptions(job.subscriptions),
        "now": job.now,
        "incarnation": job.incarnation,
        "left": list(job.past_deployments),
        "drain": dump_drain(job.drain),
        "producer_names": list(job.numbers.names),
        "read_segments": sorted(job.read_segments),
        "producers": [dump_producer(job, producer) for producer in job.producers.values()],
        "late_reports": job.late_reports,
        "event_time": job.event_time,
        "folded_at": job.folded_at,
        "looked_at": job.looked_at,
        "promised_at": job.promised_at,
        "late_by_id": list(job.late_by_id.items()),
        "fronts": dump_fronts(job.fronts, job.provisional),
        "closes": dump_closes(job.closing, job.provisional),
        "given_up": [(id_, reason.number) for id_, reason in job.closing.waiting.given_up.items()],
        "expectations": dump_expectations(job.closing.expectations, job.provisional),
        "advanced": list(job.ends.advanced.items()),
        "tombstones": dump_tombstones(job.tombstones),
    }
    return lambda: values | {"accounts": dump_accounts(accounts)}


def load_job(values: Values) -> Job:
    """Return the job that gave these values."""
    spec = load_spec(values["spec"])
    job = Job(spec, Graph(spec.segments), "", values["now"])
    job.log = load_log(values["log"])
    job.subscriptions = load_subscriptions(job.log, values.get("subscriptions", []))  # version 0.1 had none
    job.incarnation = values["incarnation"]
    job.past_deployments = Newest(values["left"])
    job.drain = load_drain(values["drain"])
    job.numbers = Numbers(values["producer_names"])
    job.read_segments = set(values.get("read_segments", job.graph.names))  # version 0.1 did not know
    job.late_reports = values["late_reports"]
    job.late_by_id = dict(map(tuple, values["late_by_id"]))
    accounts = load_accounts(values["accounts"])
    fronts, committed_watermarks = load_fronts(values["fronts"], len(job.graph))
    job.begin(accounts, fronts, committed_watermarks)
    job.event_time, job.looked_at = values.get("event_time"), values.get("looked_at")  # older dumps have neither
    job.folded_at = values.get("folded_at")
    job.promised_at = values.get("promised_at", 0)
    load_tentative(job.provisional, values["fronts"]["fronts"])
    load_expectations(job, values.get("expectations", {}))  # older dumps have none
    given_up = {id_: Reason.of(number) for id_, number in values.get("given_up", ())}  # older dumps have none
    job.closing.waiting.given_up = given_up
    load_closes(job, values["closes"])
    if "tombstones" in values:  # older dumps have none
        job.tombstones = load_tombstones(values["tombstones"])
    job.ends.advanced = dict(map(tuple, values["advanced"]))
    for each in values["producers"]:
        producer = load_producer(job, each)
        job.producers[producer.name] = producer
        for epoch in producer.staged.values():
            units, entries = epoch.size
            job.staged_units += units
            job.staged_entries += entries
    _find_anew(job)
    return job


def _find_anew(job: Job) -> None:
    """Find what is to be looked at next, and what may be forgotten, which no dump has."""
    accounts = job.accounts
    # Those that balance and yet have not ended wait for others, or for the next evaluation.
    closed = accounts.open_rows(CLOSED)
    if closed.size:
        job.changes.look_at(accounts.cells.endable(closed, job.graph)[0])
    over = np.concatenate([accounts.in_use(0, int(KNOWN)), accounts.in_use(int(ENDED))])
    over = over[np.argsort(accounts.changed[over], kind="stable")]
    since, starts = np.unique(accounts.changed[over], return_index=True)
    if over.size:
        job.to_forget.extend(zip(since.tolist(), np.split(over, starts[1:]), strict=True))


# ---------------------------------------------------------------- spec, drain


def dump_spec(spec: Spec) -> list[Any]:
    return [
        spec.job,
        spec.deployment,
        [[name, list(feeds)] for name, feeds in spec.segments],
        list(spec.fronts),
        spec.ordering.number,
        spec.progress,
        spec.stall_after,
        spec.expire_after,
        spec.idle_after,
        spec.retention,
        spec.remember,
        [[front, list(segments)] for front, segments in spec.front_segments],
        list(spec.state_segments),
        spec.committed_ends,
        {name: getattr(spec, name) for name in _RULES},
    ]


def load_spec(fields: list[Any]) -> Spec:
    job, deployment, segments, fronts, ordering, *rest = fields
    lists = [each for each in rest if isinstance(each, list)]  # earlier versions had fewer, or none
    front_segments, state_segments = [*lists, [], []][:2]
    progress, committed_ends = [*(each for each in rest if isinstance(each, bool)), False][:2]
    spec = Spec(
        job,
        deployment,
        tuple((name, tuple(feeds)) for name, feeds in segments),
        tuple(fronts),
        Ordering.of(ordering),
        progress,
        *(each for each in rest if not isinstance(each, list | bool | dict)),
    )
    fed = tuple((front, tuple(feeds)) for front, feeds in front_segments)
    states = tuple(state_segments)
    rules = next((each for each in rest if isinstance(each, dict)), {})
    return bounded(replace(spec, front_segments=fed, state_segments=states, committed_ends=committed_ends, **rules))


def dump_drain(drain: DrainRecord) -> Values:
    return {"state": drain.state.number, **_kept(drain, ("drain_id", "deadline")), "mode": drain.mode.number}


def load_drain(values: Values) -> DrainRecord:
    mode = DrainMode.of(values.get("mode", DrainMode.FINISH.number))  # earlier versions had no other
    return DrainRecord(DrainState.of(values["state"]), values["drain_id"], values["deadline"], mode)


# ---------------------------------------------------------------- producers and what they have staged

_PLEDGES: tuple[type[Any], ...] = (FrontierOf, CloseOf, FinishOf, ExpectOf, IdentitiesOf)


def dump_producer(job: Job, producer: Producer) -> Values:
    ids_of, awaiting = job.accounts.ids_of, job.provisional.awaiting.get(producer.name, {})
    rows = np.array(list(awaiting), np.int64)
    return {
        "name": producer.name,
        "number": producer.number,
        "mode": producer.mode.number,
        **_kept(producer, _OF_PRODUCER),
        "past": list(producer.past),
        "heard_at": producer.last_contact,
        "holds": [ids_of(rows) if rows.size else rows, list(awaiting.values())],
        "staged": [dump_epoch(number, epoch, ids_of) for number, epoch in producer.staged.items()],
    }


def load_producer(job: Job, values: Values) -> Producer:
    rows_of = job.accounts.rows_of
    producer = Producer(values["name"], values["number"], Mode.of(values["mode"]), values["heard_at"])
    _keep(producer, _OF_PRODUCER, values)
    producer.past = Newest(values["past"])
    ids, epochs = values["holds"]
    if epochs:
        job.provisional.awaiting[producer.name] = dict(
            zip(rows_of(ids.astype(np.uint64)).tolist(), epochs, strict=True)
        )
    producer.staged = dict(load_epoch(each, rows_of) for each in values["staged"])
    return producer


def dump_epoch(number: int, epoch: Epoch, ids_of: IdsOf) -> Values:
    return {
        "epoch": number,
        "sealing": epoch.sealing,
        "sealed": epoch.sealed,
        "pieces": [
            [list(piece.units), dump_entries(piece.entries, ids_of), [dump_pledge(p, ids_of) for p in piece.pledges]]
            for piece in epoch.pieces
        ],
        "folded": [dump_entries(entries, ids_of) for entries in epoch.folded],
    }


def load_epoch(values: Values, rows_of: RowsOf) -> tuple[int, Epoch]:
    epoch = Epoch(values["sealing"], values["sealed"])
    for units, entries, pledges in values["pieces"]:
        resolved = tuple(load_pledge(pledge, rows_of) for pledge in pledges)
        epoch.add(StagedReport(tuple(units), load_entries(entries, rows_of), resolved))
    epoch.folded = [load_entries(entries, rows_of) for entries in values["folded"]]
    return values["epoch"], epoch


def dump_entries(entries: Entries, ids_of: IdsOf) -> list[Any]:
    return [ids_of(entries.rows), *entries[1:]]


def load_entries(columns: list[Any], rows_of: RowsOf) -> Entries:
    return Entries(rows_of(columns[0].astype(np.uint64)), *columns[1:])


def dump_pledge(pledge: Pledge, ids_of: IdsOf) -> list[Any]:
    fields = list(pledge)
    if isinstance(pledge, AboutRow):
        fields[1] = int(ids_of(np.array([pledge.row]))[0])
    return [_PLEDGES.index(type(pledge)), *fields]


def load_pledge(fields: list[Any], rows_of: RowsOf) -> Pledge:
    kind, *values = fields
    if _PLEDGES[kind] in get_args(AboutRow):
        values[1] = int(rows_of(np.array([values[1]], np.uint64))[0])
    pledge: Pledge = _PLEDGES[kind](*values)
    return pledge


# ---------------------------------------------------------------- substreams


def dump_accounts(accounts: Accounts) -> Values:
    """Return the accounts in the order of their ids. The cells' columns are their layout's."""
    rows = accounts.in_use(0)
    rows = rows[np.argsort(accounts.ids_of(rows), kind="stable")]
    return {
        "segments": accounts.segments,
        "next_id": accounts.next_id,
        "ids": accounts.ids_of(rows) if rows.size else np.empty(0, np.int64),
        "names": [accounts.names[row] for row in rows.tolist()],
        "scope_names": list(accounts.scope_names),
        "free_scopes": list(accounts._free_scopes),
        "flags": accounts.flags[rows],
        **{column: getattr(accounts, column)[rows] for column in _OF_ACCOUNTS},
        **accounts.cells.dump(rows),
    }


def load_accounts(values: Values) -> Accounts:
    ids = values["ids"]
    accounts = new_accounts(values["segments"], int(ids[0]) if len(ids) else values["next_id"])
    rows = accounts.restore(ids, values["next_id"], values["names"], values["scope_names"], values["free_scopes"])
    accounts.life.load(rows, values["flags"])
    for column in _OF_ACCOUNTS:
        getattr(accounts, column)[rows] = values[column]
    if len(rows):
        accounts.cells.load(rows, values)
        accounts.cells.count_in_flight(rows[accounts.life.is_open(rows)])
        accounts.enter(rows)
    return accounts


def dump_tombstones(stones: Tombstones) -> Values:
    return stones.all()._asdict() | {"until": stones._until, "swept": stones._swept}


def load_tombstones(values: Values) -> Tombstones:
    stones = Tombstones()
    stones._until, stones._swept = values["until"], values["swept"]
    stones.put(values["high"], values["low"], values["second"])
    return stones


# ---------------------------------------------------------------- fronts and promises


def dump_fronts(fronts: Fronts, provisional: Provisional) -> Values:
    return {
        "fronts": [dump_front(front, provisional) for front in fronts],
        "scoped": sorted(fronts.scoped),
        "floors_by_segment": list(map(dump_watermarks, fronts.committed_watermarks())),
    }


def load_fronts(values: Values, segments: int) -> tuple[Fronts, list[CommittedWatermarks]]:
    """Return the fronts, and the committed watermarks by segment."""
    fronts = Fronts((), 0)
    for each in values["fronts"]:
        fronts.by_name[each["name"]] = load_front(each)
    fronts.scoped = set(values["scoped"])
    if "floors_by_segment" not in values:  # of a version in which every segment waited for every front
        return fronts, [load_watermarks([values["floor_of_all"], values["floors"]])] * segments
    # Segments whose committed watermarks are the same have them in one place: only those can share a group.
    shared: dict[Any, CommittedWatermarks] = {}
    return fronts, [
        shared.setdefault((each.of_all, frozenset(each.by_scope.items())), each)
        for each in map(load_watermarks, values["floors_by_segment"])
    ]


def dump_front(front: Front, provisional: Provisional) -> Values:
    """Return a front: what is tentative has its origins, and what is committed None in their place."""
    committed = [COMMITTED] if front.finish_committed else []
    return {
        "name": front.name,
        **_kept(front, _OF_FRONT),
        "firm": list(front.committed.items()),
        "soft": list(provisional.frontiers.get(front.name, ())),
        "finishers": [*committed, *sorted(provisional.finishes.get(front.name, ()))],
        "heard_at": front.last_contact,
        "silent": front.silent,
        "quiet_since": front.quiet_since,
    }


def load_front(values: Values) -> Front:
    front = Front(values["name"], values["heard_at"])
    _keep(front, _OF_FRONT, values)
    front.silent = values.get("silent", False)  # older dumps have neither
    front.quiet_since = values.get("quiet_since", front.last_contact)
    front.committed.update(map(tuple, values["firm"]))
    front.finished, front.finish_committed = bool(values["finishers"]), COMMITTED in values["finishers"]
    return front


def load_tentative(provisional: Provisional, fronts: list[Values]) -> None:
    """Load what fronts that are in place have promised, and can be taken back."""
    for each in fronts:
        origins = {_origin(by) for by in each["finishers"]}
        if origins and COMMITTED not in origins:
            provisional.finishes[each["name"]] = origins
        if each["soft"]:
            provisional.frontiers[each["name"]] = [(_origin(by), scope, time) for by, scope, time in each["soft"]]
            provisional.promise_anew(each["name"])


def dump_watermarks(committed_watermarks: CommittedWatermarks) -> list[Any]:
    # UNSET and EVERYTHING need more than 64 bits. In order: segments share what is equal, whatever came first in it.
    by_scope = sorted(committed_watermarks.by_scope.items())
    return [str(committed_watermarks.of_all), [(scope, str(watermark)) for scope, watermark in by_scope]]


def load_watermarks(values: list[Any]) -> CommittedWatermarks:
    of_all, by_scope = values
    return CommittedWatermarks(int(of_all), {scope: int(watermark) for scope, watermark in by_scope})


def _origin(value: Any) -> Any:
    return COMMITTED if value is None else (value[0], value[1])


def dump_closes(closing: ClosedSet, provisional: Provisional) -> list[Any]:
    """Return, by id, the fronts that closed it by name; of the sole owner's closes only those to be taken back."""
    closes: dict[int, list[Any]] = {
        id_: [(front, _by(provisional.closes.get(id_, {}).get(front, ()))) for front in fronts]
        for id_, fronts in closing.waiting.closes.items()
    }
    for id_, fronts in provisional.closes.items():
        if SOLE_OWNER in fronts:
            closes.setdefault(id_, []).append((SOLE_OWNER, _by(fronts[SOLE_OWNER])))
    return list(closes.items())


def _by(origins: Iterable[Origin]) -> list[Origin | None]:
    return [*sorted(origins)] or [COMMITTED]


def load_closes(job: Job, values: list[Any]) -> None:
    """Load closes by name, once the flags, the fronts and the expectations are in place."""
    for id_, closes in values:
        for front, by in closes:
            if front != SOLE_OWNER:
                job.closing.waiting.closes.setdefault(id_, {})[front] = None
            if COMMITTED not in by:
                job.provisional.keep_close(id_, front, {_origin(each) for each in by})
    job.closing.regroup()


def dump_expectations(expectations: Expectations, provisional: Provisional) -> Values:
    return {
        "numbers": [
            (id_, [(*key, *number) for key, number in numbers.items()])
            for id_, numbers in expectations._numbers.items()
        ],
        "given": [
            (id_, *key, [(by, *number) for by, number in given])
            for id_, keys in provisional.numbers.items()
            for key, given in keys.items()
        ],
        "identities": expectations.identified(),
        "added": [
            (id_, origin, *key, xor)
            for id_, by in provisional.identities.items()
            for origin, added in by.items()
            for key, xor in added
        ],
        "announced": [(id_, list(segments.items())) for id_, segments in expectations._announced.items()],
    }


def load_expectations(job: Job, values: Values) -> None:
    expectations = job.closing.expectations
    for id_, numbers in values.get("numbers", ()):
        expectations.restore(id_, {(segment, front): Number.of(*number) for segment, front, *number in numbers})
    for id_, segment, front, given in values.get("given", ()):
        numbers = [(_origin(by), Number.of(*number)) for by, *number in given]
        job.provisional.keep_numbers(id_, (segment, front), numbers)
    for id_, segment, front, xor in values.get("identities", ()):
        expectations.identify(id_, (segment, front), xor)
    for id_, by, segment, front, xor in values.get("added", ()):
        job.provisional.keep_identities(id_, tuple(by), (segment, front), xor)
    for id_, segments in values.get("announced", ()):
        expectations._announced[id_] = dict(map(tuple, segments))
