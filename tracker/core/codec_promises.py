"""What a snapshot keeps of fronts and of what they have promised, tentatively too, and back again (see `codec`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from .closing import SOLE_OWNER, ClosedSet
from .expecting import Expectations
from .frontgroups import CommittedWatermarks, Front
from .fronts import Fronts
from .job import Job
from .provisional import COMMITTED, Origin, Provisional

Values: TypeAlias = dict[str, Any]


def dump_fronts(fronts: Fronts, provisional: Provisional) -> Values:
    return {
        "fronts": [dump_front(front, provisional) for front in fronts],
        "scoped": sorted(fronts.scoped),
        "floors_by_segment": [
            dump_watermarks(committed_watermarks) for committed_watermarks in fronts.committed_watermarks()
        ],
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
    """Return what is tentative has its origins, and what is committed None in their place."""
    committed = [COMMITTED] if front.finish_committed else []
    return {
        "name": front.name,
        "owner": front.owner,
        "owned_in": front.owned_in,
        "firm": list(front.committed.items()),
        "soft": list(provisional.frontiers.get(front.name, ())),
        "finishers": [*committed, *sorted(provisional.finishes.get(front.name, ()))],
        "drained_in": front.drained_in,
        "idle": front.idle,
        "heard_at": front.last_contact,
        "last_promise": front.last_promise,
    }


def load_front(values: Values) -> Front:
    front = Front(values["name"], values["heard_at"])
    front.owner, front.owned_in = values["owner"], values["owned_in"]
    front.committed.update(map(tuple, values["firm"]))
    front.finished, front.finish_committed = bool(values["finishers"]), COMMITTED in values["finishers"]
    front.drained_in, front.idle, front.last_promise = values["drained_in"], values["idle"], values["last_promise"]
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
    return [
        str(committed_watermarks.of_all),
        [(scope, str(committed_watermark)) for scope, committed_watermark in by_scope],
    ]


def load_watermarks(values: list[Any]) -> CommittedWatermarks:
    committed_watermarks = CommittedWatermarks()
    committed_watermarks.of_all = int(values[0])
    committed_watermarks.by_scope = {scope: int(committed_watermark) for scope, committed_watermark in values[1]}
    return committed_watermarks


def _origin(value: Any) -> Any:
    return COMMITTED if value is None else (value[0], value[1])


def dump_closes(closing: ClosedSet, provisional: Provisional) -> list[Any]:
    """By id, the fronts that closed it by name; of the sole owner's closes only those that can be taken back."""
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
    """Once the flags, the fronts and the expectations are in place."""
    for id_, closes in values:
        for front, by in closes:
            if front != SOLE_OWNER:
                job.closing.waiting.closes.setdefault(id_, {})[front] = None
            if COMMITTED not in by:
                job.provisional.keep_close(id_, front, {_origin(each) for each in by})
    job.closing.regroup()


def dump_expectations(expectations: Expectations, provisional: Provisional) -> Values:
    return {
        "numbers": [(id_, [(*key, n) for key, n in numbers.items()]) for id_, numbers in expectations._numbers.items()],
        "given": [(id_, *key, list(given)) for id_, keys in provisional.numbers.items() for key, given in keys.items()],
        "announced": [(id_, list(segments.items())) for id_, segments in expectations._announced.items()],
    }


def load_expectations(job: Job, values: Values) -> None:
    expectations = job.closing.expectations
    for id_, numbers in values.get("numbers", ()):
        expectations.restore(id_, {(segment, front): number for segment, front, number in numbers})
    for id_, segment, front, given in values.get("given", ()):
        job.provisional.keep_numbers(id_, (segment, front), [(_origin(by), number) for by, number in given])
    for id_, segments in values.get("announced", ()):
        expectations._announced[id_] = dict(map(tuple, segments))
