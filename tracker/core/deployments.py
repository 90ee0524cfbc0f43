"""Deployments: what becomes of a job when it is drained, its spec is defined again, or another deployment takes over.

To finish, every front finishes and every substream ends; then the next deployment starts from scratch. To hand over,
nothing is in flight any more but what segments of state hold, and every run has closed: then the next deployment goes
on with what is open, as it does where nothing was drained, if that can live in the new graph; `force` abandons what is
open instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracker.contract.events import DrainCancelled, Drained, DrainRequested
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import CHANGEABLE, Spec
from tracker.contract.values import DrainMode, DrainState, Mode, Reason

from . import reports, timers
from .accounts import new_accounts
from .fronts import CommittedWatermarks, Fronts
from .graph import Graph
from .job import DrainRecord, Job
from .lifecycle import CLOSED, STALLED
from .producers import ExpectOf, FinishOf


def request(job: Job, asked: DrainRecord) -> None:
    """Begin a drain of the current deployment, unless there is one.

    Args:
        asked: its id, its mode and its deadline; of a pending one, it becomes one that is under way.
    """
    check_request(job.drain, asked.mode)
    if job.drain.under_way or job.drain.state is DrainState.DRAINED:
        return
    for front in job.fronts:
        front.drained_in = False
    job.drain = replace(asked, state=DrainState.DRAINING)
    job.announce(DrainRequested(asked.drain_id, asked.mode))


def check_request(drain: DrainRecord, mode: DrainMode) -> None:
    """Refuse a drain while there is one of the other mode."""
    if drain.mode is mode or drain.state in (DrainState.NOT_DRAINING, DrainState.CANCELLED):
        return
    what = {DrainMode.FINISH: "finishes", DrainMode.HAND_OVER: "hands over"}[drain.mode]
    if drain.state is DrainState.DRAINED:
        raise Refused(
            Refusal.DRAIN_MISMATCH,
            f"drain {drain.drain_id!r}, which {what}, is done; start the next deployment, and drain that one",
        )
    raise Refused(
        Refusal.DRAIN_MISMATCH,
        f"drain {drain.drain_id!r}, which {what}, was asked for before; wait for it, or cancel it and ask again",
    )


def cancel(job: Job, drain_id: str) -> None:
    """Cancel the drain: the deployment goes on."""
    check_cancel(job, drain_id)
    if job.drain.under_way:
        call_off(job)


def call_off(job: Job) -> None:
    """Cancel the drain under way. Timers that a hand-over had suspended start again."""
    suspended = job.drain.hands_over
    job.announce(DrainCancelled(job.drain.drain_id))
    job.drain = replace(job.drain, state=DrainState.CANCELLED, deadline=None)
    if suspended:
        timers.resume(job)


def check_cancel(job: Job, drain_id: str) -> None:
    """Refuse to cancel another drain, one in which a front has finished because of it, or a hand-over that is done."""
    if drain_id and job.drain.drain_id and drain_id != job.drain.drain_id:
        raise Refused(
            Refusal.DRAIN_MISMATCH,
            f"the drain under way is {job.drain.drain_id!r}, not {drain_id!r}; name that one, or leave drain_id out",
        )
    if job.drain.handed_over:
        raise Refused(
            Refusal.DRAINED,
            f"deployment {job.spec.deployment!r} was handed over by drain {job.drain.drain_id!r}, which can no longer "
            "be cancelled; define the next deployment, which goes on with what is open",
        )
    if not job.drain.finishes:
        return
    finishing = sorted(front.name for front in job.fronts if front.drained_in) + sorted(_finishes_staged(job))
    if finishing:
        raise Refused(
            Refusal.DRAIN_IN_PROGRESS,
            f"fronts {finishing} have finished in the drain, so it can no longer be cancelled; let it complete and "
            "define a new deployment",
        )


def _finishes_staged(job: Job) -> set[str]:
    return {
        pledge.front
        for producer in job.producers.values()
        if producer.mode is Mode.STAGED
        for epoch in producer.staged.values()
        for pledge in epoch.pledges
        if isinstance(pledge, FinishOf)
    }


def confirm(job: Job) -> None:
    """Announce the end of the drain under way if it is done."""
    if not job.drain.under_way:
        return
    done = _nothing_is_under_way(job) if job.drain.hands_over else _everything_has_ended(job)
    if done:
        job.drain = replace(job.drain, state=DrainState.DRAINED, deadline=None)
        job.announce(Drained(job.drain.drain_id, job.drain.mode))


def _everything_has_ended(job: Job) -> bool:
    if job.is_open():
        return False
    return not (job.fronts.unfinished() if job.fronts else job.open_producers())


def _nothing_is_under_way(job: Job) -> bool:
    # The accumulators last: they are looked at when everybody has stopped, and not with each report before.
    return not uncommitted(job) and not job.open_producers() and not unbalanced(job).any()


def uncommitted(job: Job) -> list[str]:
    """Return the producers with an epoch staged; in a hand-over, also those with a revoked one that is to come
    again."""
    awaiting = job.provisional.awaiting if job.drain.hands_over else {}
    return [producer.name for producer in job.producers.values() if producer.staged or producer.name in awaiting]


def unbalanced(job: Job) -> NDArray[np.bool_]:
    """Return, for each segment, whether an open substream does not balance there; of no segment of state."""
    open_rows = job.accounts.open_rows()
    found = job.accounts.cells.unbalanced_segments(open_rows)
    found[[job.graph.number[name] for name in job.spec.state_segments]] = False
    return found


def redefine(job: Job, spec: Spec, graph: Graph, force: bool) -> None:
    """Take over a spec: the same deployment's, or a new one's."""
    check_redefine(job, spec, graph, force)
    if spec.deployment == job.spec.deployment:
        before = job.spec
        changeable: dict[str, Any] = {name: getattr(spec, name) for name in CHANGEABLE}
        job.spec = replace(job.spec, **changeable)
        _durations_changed(job, before)
        _wake_silent(job)
        return
    drain = job.drain
    if not drain.finished and force:
        _clear_the_way(job)
    job.past_deployments.add(job.spec.deployment)
    old_spec, job.spec = job.spec, spec
    job.drain = DrainRecord()
    _durations_changed(job, old_spec)
    if drain.finished:
        _start_afresh(job, graph)
        return
    if drain.handed_over:
        _fence_all(job)
    _take_over(job, old_spec, graph)
    _wake_silent(job)
    if drain.handed_over:
        timers.resume(job)
    job.evaluate()


def check_redefine(job: Job, spec: Spec, graph: Graph, force: bool) -> None:
    """Refuse a spec that cannot be taken over."""
    if spec.deployment == job.spec.deployment:
        _check_same(job, spec, graph)
        return
    if spec.deployment in job.past_deployments:
        raise Refused(
            Refusal.DEPLOYMENT_MISMATCH,
            f"deployment {spec.deployment!r} was replaced by {job.spec.deployment!r}; give the new deployment "
            "another name",
        )
    if not job.drain.finished and not force:
        _check_takeover(job, spec, graph)


def _durations_changed(job: Job, before: Spec) -> None:
    """Have what may stall looked up again; where nobody asks for stalls any more, there are none."""
    job.stalls_from = None
    if job.spec.stall_after is None and before.stall_after is not None:
        job.accounts.life.unmark(slice(None), STALLED)


def _wake_silent(job: Job) -> None:
    """Wait for silent fronts again where the job has no rule for them any more."""
    if job.spec.front_idle_after is None:
        for front in job.fronts:
            job.break_silence(front)


def _check_same(job: Job, spec: Spec, graph: Graph) -> None:
    differences = job.graph.differences(graph)
    if set(spec.fronts) != set(job.spec.fronts):
        differences.append(f"fronts {sorted(spec.fronts)} instead of {sorted(job.spec.fronts)}")
    elif (fed := _fed(spec)) != (before := _fed(job.spec)):
        front = next(front for front in fed if fed[front] != before[front])
        differences.append(f"front {front!r} feeds {sorted(fed[front])} instead of {sorted(before[front])}")
    if spec.ordering != job.spec.ordering:
        differences.append(f"ordering {spec.ordering.name} instead of {job.spec.ordering.name}")
    if spec.progress != job.spec.progress:
        differences.append(f"progress {spec.progress} instead of {job.spec.progress}")
    if differences:
        raise Refused(
            Refusal.SPEC_CONFLICT,
            f"deployment {spec.deployment!r} is already defined differently: {'; '.join(differences)}; "
            "give the changed job a new deployment name",
        )
    _check_committed_ends(job, spec)


def _check_takeover(job: Job, spec: Spec, graph: Graph) -> None:
    if job.drain.under_way:
        raise Refused(
            Refusal.DRAIN_IN_PROGRESS,
            f"deployment {job.spec.deployment!r} is draining ({job.drain.drain_id!r}); wait for the drain, "
            "cancel it, or set force",
        )
    if job.drain.handed_over:
        _check_state_has_a_place(job, graph)
    elif (differences := job.graph.differences(graph)) and job.is_open():
        raise Refused(
            Refusal.INCOMPATIBLE_GRAPH,
            f"{job.accounts.life.open} substreams and {job.count_staged()} epochs are open, and the graph changes: "
            f"{'; '.join(differences)}; drain the job or hand it over, or set force (which abandons what is open)",
        )
    removed = [front for front in job.fronts if front.name not in spec.fronts]
    if removed and not spec.fronts:
        raise Refused(
            Refusal.INCOMPATIBLE_GRAPH,
            "the last front is removed, so no open substream could close; drain the job first, or set force",
        )
    if not job.drain.handed_over:  # or what is staged is empty
        _check_owners(job, spec, graph)
    _check_committed_ends(job, spec)


def _check_owners(job: Job, spec: Spec, graph: Graph) -> None:
    """Refuse to remove a front, or what it feeds, while its owner has something staged."""
    fed = _fed(spec)
    kept = frozenset(graph.names)
    for front in job.fronts:
        if front.name in fed and _fed(job.spec)[front.name] & kept <= fed[front.name]:
            continue
        owner = job.owner(front)
        if owner is not None and owner.staged:
            raise Refused(
                Refusal.EPOCH_STAGED,
                f"front {front.name!r} is removed, or feeds less than before, but its owner {owner.name!r} has "
                f"epochs {sorted(owner.staged)} staged; commit them first, or set force",
            )


def _check_committed_ends(job: Job, spec: Spec) -> None:
    """Refuse to demand committed ends while what is not committed can bring one, or keeps one from coming."""
    if not spec.committed_ends:
        return
    awaiting = job.provisional.awaiting
    for producer in job.producers.values():
        if producer.mode is Mode.IMMEDIATE and (
            producer.run is not None or producer.staged or producer.name in awaiting
        ):
            raise Refused(
                Refusal.MODE_CONFLICT,
                f"committed_ends is set, but producer {producer.name!r} is IMMEDIATE and has its run open, an epoch "
                "staged, or an epoch to commit again; let it commit and close its run, or forget it, first",
            )


def _check_state_has_a_place(job: Job, graph: Graph) -> None:
    """Refuse to remove a segment of state that still holds something."""
    open_rows = job.accounts.open_rows()
    holding = job.accounts.cells.unbalanced_segments(open_rows)
    lost = [name for name, number in job.graph.number.items() if holding[number] and name not in graph.number]
    if lost:
        raise Refused(
            Refusal.INCOMPATIBLE_GRAPH,
            f"the job was handed over with elements on segments {lost}, which the new graph does not have; keep them, "
            "or set force (which abandons what is open)",
        )


def _clear_the_way(job: Job) -> None:
    """Do what `force` does before the new deployment takes over."""
    if job.drain.under_way:
        call_off(job)
        for front in job.fronts:
            if front.drained_in:
                front.finished = front.finish_committed = front.drained_in = False
                job.provisional.forget_finish(front.name)
        job.closing.fronts_changed()
    for producer in job.producers.values():
        reports.revoke(job, producer, sorted(producer.staged))
    open_rows = job.accounts.open_rows()
    job.end_by_force(job.accounts.in_order(open_rows).tolist(), Reason.ABANDONED)
    for producer in job.producers.values():
        producer.fence()


def _start_afresh(job: Job, graph: Graph) -> None:
    """Start a new deployment of a drained job."""
    _change_graph(job, graph)
    job.incarnation += 1
    _fence_all(job)
    job.late_by_id.clear()
    job.begin(new_accounts(len(graph), job.accounts.next_id), Fronts(job.spec.fronts, job.now))


def _fence_all(job: Job) -> None:
    """Fence every run of a deployment that was drained: none reports any more."""
    for producer in job.producers.values():
        producer.fence()
        for number in list(producer.staged):  # without entries or promises, or it would not have been drained
            job.unstage(producer, number)


def _change_graph(job: Job, graph: Graph) -> None:
    job.graph = graph
    job.read_segments.intersection_update(graph.names)


def _take_over(job: Job, old_spec: Spec, graph: Graph) -> None:
    """Start a new deployment that goes on with what the job has."""
    accounts, old_graph = job.accounts, job.graph
    another_graph = graph != old_graph
    if not another_graph and (job.spec.ordering, job.spec.progress) != (old_spec.ordering, old_spec.progress):
        _renew_ends(job)
        job.changes.look_at(accounts.open_rows(CLOSED))
    if another_graph or _fed(job.spec) != _fed(old_spec):
        _change_fronts(job, _fed(old_spec), graph)
    job.fronts.by_name = {name: job.fronts.by_name[name] for name in job.spec.fronts}
    if another_graph:
        _renew_ends(job)


def _change_fronts(job: Job, old_fed: dict[str, frozenset[str]], graph: Graph) -> None:
    """Go over to the spec's fronts, what they feed, and its graph."""
    accounts, fronts, closing, old_graph = job.accounts, job.fronts, job.closing, job.graph
    closed_before = closing.closed_now()
    committed_watermarks, fed = fronts.committed_watermarks(), _fed(job.spec)
    # Nothing is staged for what is removed: its owners have nothing staged by now, and nobody else may.
    added = {name: [graph.number[segment] for segment in fed[name]] for name in fed if name not in old_fed}
    closes: dict[str, list[int]] = {}
    starts: dict[str, CommittedWatermarks] = {}
    for name, numbers in added.items():
        reached = set(np.flatnonzero(graph.reached(numbers)).tolist())
        old = [n for segment, n in old_graph.number.items() if graph.number.get(segment) in reached]
        old = old or list(old_graph.number.values())
        closes[name] = closing.waiting.closed_by_name_by_all(old)
        starts[name] = CommittedWatermarks.least([committed_watermarks[number] for number in old])
    met_by_all = closing.waiting.met_by_all()
    for name, segments in old_fed.items():
        lost = segments - fed.get(name, frozenset())
        closing.expectations.remove_front(name, {old_graph.number[segment] for segment in lost})
        if name not in fed:
            del fronts.by_name[name]
            closing.waiting.remove_front(name)
    if graph != old_graph:
        kept = {old: graph.number[name] for name, old in old_graph.number.items() if name in graph.number}
        job.retire(accounts.relaid(len(graph), Reason.COMPLETE.number, list(kept.items())).tolist())
        closing.expectations.relaid(kept)
        met_by_all = [(row, kept[segment]) for row, segment in met_by_all if segment in kept]
        least = CommittedWatermarks.least(committed_watermarks)
        committed_watermarks = [
            committed_watermarks[old_graph.number[name]] if name in old_graph.number else least for name in graph.names
        ]
        _change_graph(job, graph)
    for name, numbers in added.items():
        fronts.add_front(name, job.now, starts[name])
        for id_ in closes[name]:
            closing.waiting.adopt_close(id_, name)
        for row, segment in met_by_all:
            if segment in numbers:
                closing.expectations.give(ExpectOf(name, row, segment, 0, False))
    fronts.by_name = {name: fronts.by_name[name] for name in job.spec.fronts}
    fronts.lead(job.spec.front_segments, graph, committed_watermarks)
    fronts.raise_committed()
    closing.regroup(closed_before if graph == old_graph else None)


def _renew_ends(job: Job) -> None:
    """Renew ends after a change of graph or rules; the progress announced for each segment stays announced."""
    advanced = job.ends.advanced
    job.ends = job.new_ends()
    job.ends.advanced = advanced


def _fed(spec: Spec) -> dict[str, frozenset[str]]:
    """Return the segments that each front feeds."""
    every = frozenset(name for name, _ in spec.segments)
    given = dict(spec.front_segments)
    return {front: frozenset(given.get(front, every)) for front in spec.fronts}
