"""The core in this process: commands in, answers out, no bytes and no waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from benchmarks import workload
from benchmarks.figures import Figure
from benchmarks.workload import FRONT, JOB, SEGMENT, Passes
from tracker.core import DefineJob, OpenProducer, Report, Spec, Tracker

_NOW = 1_800_000_000 * 10**9  # the core's clock is its caller's


def measure(substreams: int, sizes: list[int], runs: int) -> Iterator[Figure]:
    """Measure entries folded in per second of processor time, by id and by name.

    Args:
        substreams: how many are open.
        sizes: entries a report, one measurement for each.
        runs: repetitions, each a pass that sends and one that receives.
    """
    tracker = Tracker("bench")
    ids = _opened(tracker, substreams)
    epochs = count()
    for by_id in (True, False):
        for entries in sizes:
            rates, floors = [], []
            for seed in range(runs):
                order = Passes(substreams, entries, seed)
                floors.append(_floor_by_id(order) if by_id else _floor_by_name(order))
                rates.append(_run(tracker, order, ids if by_id else None, epochs))
            yield Figure(
                what=f"core, by {'id' if by_id else 'name'}, {entries:,} entries a report",
                unit="/s",
                runs=rates,
                floor=floors,
                floor_is="numpy folds xor" if by_id else "dict finds a name",
                note=f"{substreams:,} open; a second of one core",
            )


def _opened(tracker: Tracker, substreams: int) -> NDArray[np.uint64]:
    """Open substreams in a new job, and return their ids."""
    tracker.apply(DefineJob(Spec(JOB, "d1", ((SEGMENT, ()),), fronts=(FRONT,))), _NOW)
    for producer in ("opener", "sender"):
        tracker.apply(OpenProducer(JOB, producer, "r1"), _NOW)
    scopes = workload.scopes()
    ids: list[NDArray[np.uint64]] = []
    for epoch, places in enumerate(workload.opening(substreams)):
        rows = len(places)
        report = Report(
            job=JOB,
            producer="opener",
            run="r1",
            epoch=epoch,
            units=["unit"],
            scopes=scopes,
            names=workload.names(places),
            scope_index=workload.scope_index(places),
            end_times=workload.end_times(places),
            want_ids=True,
            segments=[SEGMENT],
            substream_index=np.arange(rows, dtype=np.uint32),
            segment_index=np.zeros(rows, np.uint32),
            xor=np.zeros(rows, np.uint64),
            sent=np.zeros(rows, np.uint32),
            received=np.zeros(rows, np.uint32),
            entry_count=rows,
            commit=True,
        )
        answer = tracker.apply(report, _NOW)
        ids.append(answer.substream_ids)  # type: ignore[union-attr, arg-type]
    return np.concatenate(ids)


def _run(tracker: Tracker, order: Passes, ids: NDArray[np.uint64] | None, epochs: Iterator[int]) -> float:
    """Measure entries per second over a pass that sends and one that receives; making the commands is not counted."""
    log_id = tracker.view(JOB).status().log_id
    scopes = workload.scopes()
    rows = np.arange(order.entries, dtype=np.uint32)
    zeros, ones = np.zeros(order.entries, np.uint32), np.ones(order.entries, np.uint32)
    spent = folded = 0
    for sent in (True, False):
        for places in order.places():
            report = Report(
                job=JOB,
                producer="sender",
                run="r1",
                epoch=next(epochs),
                units=["unit"],
                scopes=scopes if ids is None else (),
                names=workload.names(places) if ids is None else (),
                scope_index=workload.scope_index(places) if ids is None else zeros[:0],
                end_times=workload.end_times(places) if ids is None else np.empty(0, np.int64),
                substream_ids=np.empty(0, np.uint64) if ids is None else ids[places],
                log_id="" if ids is None else log_id,
                segments=[SEGMENT],
                substream_index=rows,
                segment_index=zeros,
                xor=workload.labels(places),
                sent=ones if sent else zeros,
                received=zeros if sent else ones,
                entry_count=order.entries,
                commit=True,
            )
            start = time.thread_time_ns()
            tracker.apply(report, _NOW)
            spent += time.thread_time_ns() - start
            folded += order.entries
    return folded / spent * 1e9


def _floor_by_id(order: Passes) -> float:
    """Measure the least that a tracker must do: one column, one operation, each row once."""
    accounts = np.zeros(order.substreams, np.uint64)
    spent = folded = 0
    for places in order.places():
        labels = workload.labels(places)
        start = time.thread_time_ns()
        accounts[places] ^= labels
        spent += time.thread_time_ns() - start
        folded += order.entries
    return folded / spent * 1e9


def _floor_by_name(order: Passes) -> float:
    known = dict(zip(workload.names(np.arange(order.substreams)), range(order.substreams), strict=True))
    spent = found = 0
    for places in order.places():
        names = workload.names(places)
        start = time.thread_time_ns()
        rows = [known[name] for name in names]
        spent += time.thread_time_ns() - start
        found += len(rows)
    return found / spent * 1e9
