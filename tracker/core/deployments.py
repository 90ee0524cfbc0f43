"""Deployments: what becomes of a job when its spec is defined again, or another deployment takes over.

A job that was drained to its end starts from scratch. One that was handed over, or is not drained, keeps its state, if
what is open can live in the new graph; `force` abandons what is open instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import Spec
from tracker.contract.values import Mode, Reason

from . import draining, epochs, timers
from .accounts import Accounts
from .drains import DrainRecord
from .fronts import CommittedWatermarks, Fronts
from .graph import Graph
from .job import Job
from .lifecycle import CLOSED, ENDED, KNOWN
from .producers import ExpectOf


def redefine(job: Job, spec: Spec, graph: Graph, force: bool) -> None:
    """Take over a spec: the same deployment's, or a new one's."""
    if spec.deployment == job.spec.deployment:
        check_redefine(job, spec, graph, force)
        before = job.spec
        job.spec = replace(
            job.spec,
            stall_after=spec.stall_after,
            expire_after=spec.expire_after,
            idle_after=spec.idle_after,
            retention=spec.retention,
            remember=spec.remember,
            state_segments=spec.state_segments,
            committed_ends=spec.committed_ends,
        )
        _durations_changed(job, before)
        return
    check_redefine(job, spec, graph, force)
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
        job.accounts.life.forget_stalls()


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
            f"{job.accounts.open} substreams and {job.count_staged()} epochs are open, and the graph changes: "
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
        owner = job.producers.get(front.owner) if front.owner is not None else None
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
    open_rows = job.accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
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
        draining.call_off(job)
        for front in job.fronts:
            if front.drained_in:
                front.finished = front.finish_committed = front.drained_in = False
                job.provisional.forget_finish(front.name)
        job.closing.fronts_changed()
    for producer in job.producers.values():
        epochs.revoke(job, producer, sorted(producer.staged))
    open_rows = job.accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
    job.end_by_force(job.accounts.in_order(open_rows).tolist(), Reason.ABANDONED)
    for producer in job.producers.values():
        producer.fence()


def _start_afresh(job: Job, graph: Graph) -> None:
    """A new deployment of a drained job."""
    _change_graph(job, graph)
    job.incarnation += 1
    _fence_all(job)
    job.late_by_id.clear()
    job.begin(Accounts(len(graph), job.accounts.next_id), Fronts(job.spec.fronts, job.now))


def _fence_all(job: Job) -> None:
    """No run of a deployment that was drained reports any more."""
    for producer in job.producers.values():
        producer.fence()
        for number in list(producer.staged):  # without entries or promises, or it would not have been drained
            job.unstage(producer, number)


def _change_graph(job: Job, graph: Graph) -> None:
    job.graph = graph
    job.read_segments.intersection_update(graph.names)


def _take_over(job: Job, old_spec: Spec, graph: Graph) -> None:
    """A new deployment that goes on with what the job has."""
    accounts, old_graph = job.accounts, job.graph
    another_graph = graph != old_graph
    if not another_graph and (job.spec.ordering, job.spec.progress) != (old_spec.ordering, old_spec.progress):
        _renew_ends(job)
        job.changes.look_at(accounts.in_use(int(KNOWN | CLOSED), int(KNOWN | CLOSED | ENDED)))
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
    """After a change of graph or rules; the progress that was announced for each segment stays announced."""
    advanced = job.ends.advanced
    job.ends = job.new_ends()
    job.ends.advanced = advanced


def _fed(spec: Spec) -> dict[str, frozenset[str]]:
    """Return the segments that each front feeds."""
    every = frozenset(name for name, _ in spec.segments)
    given = dict(spec.front_segments)
    return {front: frozenset(given.get(front, every)) for front in spec.fronts}
