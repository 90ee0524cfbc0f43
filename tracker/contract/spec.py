"""A job's specification: as a command and the journal have it, and as a caller writes and reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from .values import Mode, Ordering, Shown, length

OrderingWord: TypeAlias = Literal["none", "scope", "global"]
ModeWord: TypeAlias = Mode | Literal["staged", "immediate"]

DURATIONS = (  #: of a spec
    "stall_after",
    "expire_after",
    "idle_after",
    "retention",
    "remember",
    "deadline",
    "threshold_after",
    "scope_idle_after",
    "front_idle_after",
)
#: Fields of a spec that may change within a deployment.
CHANGEABLE = (
    *DURATIONS,
    "expire_expected",
    "deadline_by_event_time",
    "threshold_ppm",
    "state_segments",
    "committed_ends",
)
MILLION = 1_000_000  #: `threshold_ppm` of everything


@dataclass(frozen=True, slots=True)
class Spec:
    """Spec of a job, as it came over the wire: names may be missing or come twice, and durations are exact."""

    job: str
    deployment: str
    segments: tuple[tuple[str, tuple[str, ...]], ...]  #: (name, the segments it feeds)
    fronts: tuple[str, ...] = ()
    ordering: Ordering = Ordering.NONE
    progress: bool = False
    stall_after: int | None = None  #: ns; None: never
    expire_after: int | None = None
    idle_after: int | None = None
    retention: int | None = None  #: None: the server's default
    remember: int | None = None  #: None: as long as there is the job
    front_segments: tuple[tuple[str, tuple[str, ...]], ...] = ()  #: (front, those it feeds); others feed every segment
    state_segments: tuple[str, ...] = ()  #: those that stand for state, which a hand-over leaves as it is
    committed_ends: bool = False  #: only what is committed brings an end: no producer is IMMEDIATE
    expire_expected: bool = False  #: `expire_after` covers expected elements, too; earlier clients did not ask for it
    deadline: int | None = None  #: ns after its end time, at which a substream ends with what there is; None: never
    deadline_by_event_time: bool = False  #: by the greatest end time that was seen; else by the clock
    threshold_ppm: int = 0  #: the share of the expected elements that is enough after a while; 0: none
    threshold_after: int | None = None
    scope_idle_after: int | None = None
    front_idle_after: int | None = None


#: Fields of a spec that are the same in the core's value, in a caller's and on the wire.
AS_IT_IS: Final = tuple(each.name for each in fields(Spec) if each.type in ("str", "bool"))
_SWITCHES: Final = tuple(each.name for each in fields(Spec) if each.type == "bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Shown):
    """A job: its graph of segments, its fronts, its rules.

    Args:
        job: its name, of ``[A-Za-z0-9._-]``, 1 to 128 characters.
        deployment: which deployment of the job this is, 1 to 128 characters.
        segments: for each segment those that its elements travel on next; cycles are allowed.
        fronts: the sources that promise what they will not send any more. Without any, substreams are closed one by
            one by whoever is their only source. As a mapping: for each source the segments that it feeds; none: all,
            as for those that are only named. A segment waits for the sources that feed it or a segment upstream.
        ordering: which ends wait for those of smaller end times: none, those in the same scope, or all.
        progress: announce `Advanced`, how far each segment has come.
        stall_after: a closed substream that has not balanced nor changed for so long is announced as `Stalled`;
            None: never.
        expire_after: and is given up after so long; None: never.
        expire_expected: also one that has begun, and waits for expected elements only.
        idle_after: a front that was silent for so long is not waited for; None: never.
        deadline: so long after its end time, in microseconds since 1970, a substream ends with what there is, as
            ``DEADLINE``; None: never.
        deadline_by_event_time: the deadline passes with the end times of what is reported, as for a replay of
            history, and no sooner than by the clock; False: with the clock.
        threshold: a share of the expected elements (above 0, up to 1) that is enough once nothing has come for
            `threshold_after`: such a substream ends as ``THRESHOLD``; None: all are waited for.
        threshold_after: how long nothing of the substream has to have changed; given with `threshold` only.
        scope_idle_after: once nothing of a scope has come for so long while other scopes went on, its open substreams
            end as ``IDLE``; None: never.
        front_idle_after: once a front has promised nothing for so long while others that feed the same segments went
            on, what waits for nothing else ends as ``IDLE``; None: never.
        retention: how long ended substreams and events are kept; None: as long as the server likes.
        remember: how long the name of an ended substream is remembered, from its end on, so that what comes of it later
            is late and begins no second life; None: as long as there is the job.
        state_segments: the segments that stand for state which emits later, such as the buffer of a window: a hand-over
            leaves what they hold to the next deployment.
        committed_ends: ends come only of what is committed, so nothing that follows can contradict one: producers with
            the mode ``"immediate"`` are refused. False: each producer chooses.

    >>> JobSpec(job="flights", deployment="d1", segments={"raw": ["clean"], "clean": []}, fronts=["schedule"]).ordering
    'none'
    """

    job: str
    deployment: str
    segments: Mapping[str, Sequence[str]]
    fronts: Sequence[str] | Mapping[str, Sequence[str]] = ()
    ordering: OrderingWord = "none"
    progress: bool = False
    stall_after: timedelta | None = None
    expire_after: timedelta | None = None
    idle_after: timedelta | None = None
    retention: timedelta | None = None
    remember: timedelta | None = None
    state_segments: Sequence[str] = ()
    committed_ends: bool = False
    expire_expected: bool = True
    deadline: timedelta | None = None
    deadline_by_event_time: bool = False
    threshold: float | None = None
    threshold_after: timedelta | None = None
    scope_idle_after: timedelta | None = None
    front_idle_after: timedelta | None = None

    def __post_init__(self) -> None:
        check_texts(job=self.job, deployment=self.deployment)
        check_graph(self.segments, self.fronts)
        for name in DURATIONS:
            if not isinstance(value := getattr(self, name), timedelta | None):
                seconds = value if isinstance(value, int | float) else "…"
                raise TypeError(f"{name}={value!r} is no length of time; give timedelta(seconds={seconds}), or None")
        for name in _SWITCHES:
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"{name}={value!r} is neither True nor False")
        if self.threshold is None:
            return
        if not isinstance(self.threshold, int | float) or not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold!r} is no share; give one above 0 and up to 1, such as 0.95")

    @classmethod
    def of(cls, spec: Spec) -> JobSpec:
        """Return a spec that the tracker has accepted as callers read it."""
        fed = dict(spec.front_segments)
        same: dict[str, Any] = {name: getattr(spec, name) for name in AS_IT_IS}
        given = [(name, getattr(spec, name)) for name in DURATIONS]
        durations: dict[str, Any] = {name: None if ns is None else length(ns) for name, ns in given}
        return cls(
            segments=dict(spec.segments),
            fronts={front: fed.get(front, ()) for front in spec.fronts} if fed else spec.fronts,
            ordering=cast("OrderingWord", spec.ordering.value),
            state_segments=spec.state_segments,
            threshold=spec.threshold_ppm / MILLION or None,
            **same,
            **durations,
        )


def check_texts(**names: object) -> None:
    """Refuse what is no text.

    Raises:
        TypeError: with the argument's name.
    """
    for what, name in names.items():
        if not isinstance(name, str):
            raise TypeError(f"{what}={name!r} is no text; give str({what}) if that is how its other reports name it")


def check_graph(segments: object, fronts: object) -> None:
    """Refuse a graph of another shape than a job's.

    Raises:
        TypeError: with the form that is right.
    """
    if not isinstance(segments, Mapping) or any(map(_is_no_list, [segments, *segments.values()])):
        raise TypeError(
            f"segments={segments!r}: give a mapping from each segment to the list of those that it feeds, such as "
            "{'raw': ['clean'], 'clean': []}"
        )
    fed = fronts.values() if isinstance(fronts, Mapping) else ()
    if any(map(_is_no_list, [fronts, *fed])):
        raise TypeError(
            f"fronts={fronts!r}: give a list of fronts, such as ['orders'], or a mapping from each front to the list "
            "of segments that it feeds, such as {'orders': ['raw']}"
        )


def _is_no_list(value: object) -> bool:
    """Return whether a value is no collection of texts; one text is none, though Python iterates over its letters."""
    return isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value)
