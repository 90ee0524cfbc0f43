"""The rules by which the values of a job's shards become those of one job.

Each field of a value that shards have carries its rule, so a field that is added says at once what becomes of it:
`field(metadata=SUM)`. `merged` refuses a value with a field that has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from .values import DrainState

_T = TypeVar("_T")

Rule: TypeAlias = Mapping[str, Callable[[Sequence[Any]], Any]]

#: The whole job is as far as its slowest shard; the first of these states is the slowest.
_FAR: Final = (
    DrainState.NOT_DRAINING,
    DrainState.CANCELLED,
    DrainState.PENDING,
    DrainState.TIMED_OUT,
    DrainState.DRAINING,
    DrainState.DRAINED,
)


def merged(shards: Sequence[_T]) -> _T:
    """Merge the shards' values field by field.

    Args:
        shards: at least one, of one dataclass.

    Raises:
        KeyError: a field has no rule.
    """
    whole: Any = type(shards[0])
    return whole(  # type: ignore[no-any-return]
        **{each.name: each.metadata["merge"]([getattr(shard, each.name) for shard in shards]) for each in fields(whole)}
    )


def _by_name(lists: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    found: dict[str, list[Any]] = {}
    for each in chain.from_iterable(lists):
        found.setdefault(getattr(each, fields(each)[0].name), []).append(each)
    return tuple(map(merged, found.values()))


def _least(shards: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: min(shard[name] for shard in shards) for name in shards[0] if all(name in shard for shard in shards)}


def _given(values: Iterable[_T | None]) -> list[_T]:
    return [value for value in values if value is not None]


def _rule(rule: Callable[[Sequence[Any]], Any]) -> Rule:
    return {"merge": rule}


FIRST: Final = _rule(lambda values: values[0])  #: all shards agree, or the first speaks for them
FIRST_NAMED: Final = _rule(lambda names: next(filter(None, names), ""))
SUM: Final = _rule(sum)
MAX: Final = _rule(max)
ALL: Final = _rule(all)
LATEST: Final = _rule(lambda times: max(_given(times), default=None))
LEAST_OF_ALL: Final = _rule(lambda numbers: None if None in numbers else min(numbers))  #: None if a shard has none
LEAST_BY_KEY: Final = _rule(_least)  #: of the keys that every shard has
UNION: Final = _rule(lambda lists: tuple(sorted({each for some in lists for each in some})))
COMMON: Final = _rule(lambda lists: tuple(each for each in lists[0] if all(each in some for some in lists)))
SLOWEST: Final = _rule(lambda states: min(states, key=_FAR.index))
JOINED: Final = _rule("+".join)
WHOLE: Final = _rule(merged)  #: a value with rules of its own
BY_NAME: Final = _rule(_by_name)  #: values with rules of their own, one for each name, which is their first field
