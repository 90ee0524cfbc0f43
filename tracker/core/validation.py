"""Is a message well formed? The checks that do not depend on the state, and a report's names resolved to numbers.

Checked in the contract's order: shape and units, segments, the entries' end times. Promises come after; they need the
fronts and are the job's to check. Nothing here changes anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracker.contract.commands import AboutSubstream, Close, Commit, Frontier, Promise, Report
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import DURATIONS, MILLION, Spec
from tracker.contract.values import EVERY_SCOPE, NO_END_TIME

from .accounts import Accounts
from .cells import Rows
from .graph import Graph

_MOST_BYTES = 512
_JOB = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_MOST_DEPLOYMENT = 128


def check_name(kind: str, name: str) -> None:
    """Refuse a name that is empty or longer than 512 bytes of UTF-8."""
    if not name or len(name) > _MOST_BYTES or len(name.encode()) > _MOST_BYTES:
        shown = repr(name if len(name) < 60 else name[:60] + "…")
        raise Refused(
            Refusal.MALFORMED, f"{kind} {shown} has {len(name.encode())} bytes; a name has 1 to {_MOST_BYTES} bytes"
        )


def check_names(kind: str, names: Iterable[str]) -> None:
    """Check several names as `check_name` does one."""
    for name in names:
        check_name(kind, name)


def check_scope(scope: str) -> None:
    """Refuse a scope that is too long, or ``*``."""
    if scope == EVERY_SCOPE:
        raise Refused(Refusal.MALFORMED, "a scope cannot be named '*', which stands for every scope")
    if len(scope) > _MOST_BYTES or len(scope.encode()) > _MOST_BYTES:
        raise Refused(
            Refusal.MALFORMED,
            f"a scope of {len(scope.encode())} bytes is too long; a scope has 0 to {_MOST_BYTES} bytes",
        )


def check_job_name(job: str) -> None:
    """Refuse what cannot name a job."""
    if not _JOB.match(job):
        raise Refused(
            Refusal.MALFORMED, f"job {job[:140]!r} is not a valid name; use 1 to 128 letters, digits, '.', '_' or '-'"
        )


def check_deployment(deployment: str) -> None:
    """Refuse what cannot name a deployment."""
    if not 1 <= len(deployment) <= _MOST_DEPLOYMENT:
        raise Refused(
            Refusal.MALFORMED,
            f"a deployment name of {len(deployment)} characters is not valid; use 1 to {_MOST_DEPLOYMENT}",
        )


def check_spec(spec: Spec, before: Spec | None = None, graph: Graph | None = None) -> Graph:
    """Return a spec by itself; its graph.

    Args:
        before: the spec that the job has, if any; its graph is used again for the same segments.
    """
    check_job_name(spec.job)
    check_deployment(spec.deployment)
    if before is None or spec.fronts != before.fronts:
        check_names("front", spec.fronts)
        if twice := [front for front, times in Counter(spec.fronts).items() if times > 1]:
            raise Refused(Refusal.MALFORMED, f"front {twice[0]!r} is named twice; name each front once")
    for kind in DURATIONS:
        duration = getattr(spec, kind)
        if duration is not None and duration <= 0:
            raise Refused(Refusal.MALFORMED, f"{kind} must be positive; leave it out for 'never'")
    if not 0 <= spec.threshold_ppm <= MILLION or bool(spec.threshold_ppm) is (spec.threshold_after is None):
        raise Refused(
            Refusal.MALFORMED,
            f"threshold_ppm={spec.threshold_ppm} and threshold_after={spec.threshold_after} do not go together: "
            f"give both, the share from 1 to {MILLION} parts per million, or neither",
        )
    found = _check_graph(spec, before, graph)
    check_front_segments(spec, found)
    _check_state_segments(spec, found)
    return found


def _check_graph(spec: Spec, before: Spec | None, graph: Graph | None) -> Graph:
    if before is not None and graph is not None and spec.segments == before.segments:
        return graph
    check_names("segment", (name for name, _ in spec.segments))
    if not spec.segments:
        raise Refused(Refusal.MALFORMED, "a job needs at least one segment; define one")
    return Graph(spec.segments)


def check_front_segments(spec: Spec, graph: Graph) -> None:
    """Check what fronts feed: each front and segment must exist, and each segment be reached."""
    fronts = set(spec.fronts)
    fed: dict[str, list[int]] = {}
    for front, _ in spec.front_segments:
        if front not in fronts or front in fed:
            what = "is named twice" if front in fed else f"is not one of the fronts: {', '.join(spec.fronts) or 'none'}"
            raise Refused(Refusal.MALFORMED, f"front {front!r} in front_segments {what}")
        fed[front] = []
    for front, segments in spec.front_segments:
        for segment in segments:
            if segment not in graph.number:
                raise Refused(
                    Refusal.UNKNOWN_SEGMENT, f"front {front!r} feeds segment {segment!r}, which is not defined"
                )
            fed[front].append(graph.number[segment])
    for front, numbers in fed.items():
        if not numbers:
            raise Refused(
                Refusal.MALFORMED,
                f"front {front!r} feeds no segment; name its segments, or leave the front out if it feeds all of them",
            )
    if fed and len(fed) == len(fronts):
        reached = graph.reached({number for numbers in fed.values() for number in numbers})
        if not reached.all():
            alone = graph.names[int(reached.argmin())]
            raise Refused(
                Refusal.MALFORMED,
                f"no front reaches segment {alone!r}, so nothing would close it; name a front that feeds it or a "
                "segment upstream of it",
            )


def _check_state_segments(spec: Spec, graph: Graph) -> None:
    if twice := [name for name, times in Counter(spec.state_segments).items() if times > 1]:
        raise Refused(Refusal.MALFORMED, f"state segment {twice[0]!r} is named twice; name each once")
    for name in spec.state_segments:
        if name not in graph.number:
            raise Refused(Refusal.UNKNOWN_SEGMENT, f"state segment {name!r} is not defined")


@dataclass(slots=True)
class Resolved:
    """A report's names as numbers. Rows of names that are new are -1 until they are entered."""

    accounts: Accounts
    version: int  #: of the accounts
    graph: Graph
    log_id: str
    rows: Rows  #: of all substreams: names, then ids
    end_times: NDArray[np.int64]  #: one for each of names
    new: list[int]  #: places in names of what has no row yet, each distinct (scope, name) once
    again: list[tuple[int, int]]  #: (place, place in `new`) of new names that are mentioned again
    segments: Rows  #: by entry
    conflicts: frozenset[int] = frozenset()  #: places of names, only closed by promises, whose end time is another

    def holds(self, accounts: Accounts, graph: Graph, log_id: str) -> bool:
        """Return whether looking the names up again would find nothing else: no row was given or taken since."""
        same = self.accounts is accounts and self.version == accounts.version and self.graph is graph
        return same and self.log_id == log_id


def resolve(report: Report, graph: Graph, accounts: Accounts, log_id: str) -> Resolved:
    """Check a report's shape, units, segments and entries' end times, and look its names up."""
    _check_shape(report)
    rows = accounts.find(report.scopes, report.scope_index, report.names)
    new, again = _new_names(report, rows) if len(rows) else ([], [])
    if len(report.substream_ids):
        if report.log_id != log_id:
            raise Refused(
                Refusal.LOG_CHANGED,
                f"the ids belong to log {report.log_id!r}, but the job's log is {log_id!r}; resend the substream names",
            )
        by_id = accounts.rows_of(report.substream_ids)
        if int(np.minimum.reduce(by_id)) < 0:
            unknown = report.substream_ids[by_id < 0].tolist()
            raise Refused(
                Refusal.UNKNOWN_ID,
                f"{len(unknown)} ids were never assigned or are forgotten, for example {unknown[0]}; resend the "
                "substream names",
            )
        rows = np.concatenate([rows, by_id]) if len(rows) else by_id
    numbers = np.array([graph.place(segment) for segment in report.segments], np.int64)
    end_times = report.end_times
    if len(end_times) < len(report.names):
        end_times = np.full(len(report.names), NO_END_TIME, np.int64)
    by_entry = numbers.take(report.segment_index) if len(numbers) else rows[:0]
    resolved = Resolved(accounts, accounts.version, graph, log_id, rows, end_times, new, again, by_entry)
    conflicts = _end_time_conflicts(resolved, accounts) if len(end_times) else []
    if conflicts:
        closed = {promise.substream_index for promise in report.promises if isinstance(promise, AboutSubstream)}
        mentioned = np.zeros(len(rows), np.bool_)
        mentioned[report.substream_index] = True
        for place in conflicts:
            # Those that only promises name are refused in the promises' turn.
            if mentioned[place] or place not in closed:
                raise end_time_conflict(report, place, resolved, accounts)
        resolved.conflicts = frozenset(conflicts)
    return resolved


def _check_shape(report: Report) -> None:
    if not report.units and not report.commit:
        raise Refused(
            Refusal.MALFORMED, "the report neither names units nor commits its epoch; a report does one of them or both"
        )
    check_names("unit", report.units)
    if len(set(report.units)) < len(report.units):
        raise Refused(Refusal.MALFORMED, "the report names a unit twice; name each unit once")
    for scope in report.scopes:
        check_scope(scope)
    names = len(report.names)
    if len(report.scope_index) != names:
        raise Refused(
            Refusal.MALFORMED,
            f"{names} names, but {len(report.scope_index)} values in scope_index; give one for each name",
        )
    if len(report.end_times) not in (0, names):
        raise Refused(
            Refusal.MALFORMED, f"{names} names, but {len(report.end_times)} end_times; give none, or one for each name"
        )
    entries = report.entry_count
    for column in ("substream_index", "segment_index", "xor", "sent", "received"):
        if len(getattr(report, column)) != entries:
            raise Refused(
                Refusal.MALFORMED,
                f"entry_count is {entries}, but {column} has {len(getattr(report, column))}; a packed column must be "
                "written in one piece",
            )
    substreams = names + len(report.substream_ids)
    for column, what, size in (
        ("scope_index", "scopes", len(report.scopes)),
        ("substream_index", "substreams", substreams),
        ("segment_index", "segments", len(report.segments)),
    ):
        indexes = getattr(report, column)
        if len(indexes) and (highest := int(np.maximum.reduce(indexes))) >= size:
            raise Refused(
                Refusal.MALFORMED,
                f"{column} {highest} is out of range: the report has {size} {what}, counted from 0",
            )
    for promise in report.promises:
        if isinstance(promise, AboutSubstream) and promise.substream_index >= substreams:
            raise Refused(
                Refusal.MALFORMED,
                f"a promise has substream_index {promise.substream_index}, but the report has "
                f"{substreams} substreams, counted from 0",
            )
    check_promises(report.promises)


def check_promises(promises: Sequence[Promise]) -> None:
    """Check the names in promises."""
    for promise in promises:
        if isinstance(promise, Frontier) and promise.scope is not None:
            check_scope(promise.scope)
        if not (isinstance(promise, Close) and not promise.front):
            check_name("front", promise.front)


def report_of(command: Commit) -> Report:
    """Return what a commit's promises name, as a report without entries names it."""
    scopes = [scope for scope, _, _ in command.substreams]
    end_times = [NO_END_TIME if end_time is None else end_time for _, _, end_time in command.substreams]
    return Report(
        command.job,
        command.producer,
        command.run,
        epoch=0,
        scopes=scopes,
        names=[name for _, name, _ in command.substreams],
        scope_index=np.arange(len(scopes), dtype=np.uint32),
        end_times=np.array(end_times, np.int64),
        promises=command.promises,
        commit=True,
    )


def _new_names(report: Report, rows: Rows) -> tuple[list[int], list[tuple[int, int]]]:
    """Return which names have no row: the first mention of each, and the later ones."""
    missing = np.flatnonzero(rows < 0).tolist()
    if not missing:
        return [], []
    first: dict[tuple[str, str], int] = {}
    new: list[int] = []
    again: list[tuple[int, int]] = []
    scopes = report.scopes
    for place, scope in zip(missing, report.scope_index[missing].tolist(), strict=True):
        name = report.names[place]
        at = first.setdefault((scopes[scope], name), len(new))
        if at < len(new):
            again.append((place, at))
        else:
            check_name("substream", name)
            new.append(place)
    return new, again


def _end_time_conflicts(resolved: Resolved, accounts: Accounts) -> list[int]:
    """Return the places of names whose end time is not the one that the substream has."""
    end_times = resolved.end_times
    rows = resolved.rows[: len(end_times)]
    has = np.flatnonzero(rows >= 0)
    conflicts: list[int] = has[accounts.end_time[rows[has]] != end_times[has]].tolist() if has.size else []
    conflicts += [place for place, at in resolved.again if end_times[place] != end_times[resolved.new[at]]]
    return sorted(conflicts)


def end_time_conflict(report: Report, place: int, resolved: Resolved, accounts: Accounts) -> Refused:
    """Return the refusal of a name whose end time is not the one that the substream has."""
    row = int(resolved.rows[place])
    if row >= 0:
        bound = int(accounts.end_time[row])
    else:
        first = next(at for again, at in resolved.again if again == place)
        bound = int(resolved.end_times[resolved.new[first]])
    given = int(resolved.end_times[place])

    def shown(time: int) -> str:
        return "none" if time == NO_END_TIME else str(time)

    scope = report.scopes[int(report.scope_index[place])]
    return Refused(
        Refusal.END_TIME_CONFLICT,
        f"substream {report.names[place]!r} of scope {scope!r} has the end time {shown(bound)}, not {shown(given)}; "
        "the first message that names a substream fixes its end time",
    )
