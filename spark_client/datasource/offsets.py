"""Offsets in a job's events, and what is between two of them, where the job has several logs.

An offset is JSON, in Spark's checkpoint. In one log it is a number and the log's id. In several it has one of each for
every log, and where the merge of the logs stands (`tracker.sharded.merged_events`): progress is the minimum over them,
and a drain is announced once, when every log has announced it.

The rows between two offsets depend on these two alone: a batch that is replayed has the same rows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

from spark_client.trackers.places import Place
from tracker.client import Event, JobStatus, Position, TrackerClient
from tracker.client.watch import pages
from tracker.sharded.merged_events import Merge, beginning

Offset: TypeAlias = dict[str, Any]

_MERGE = "merge"  #: in an offset: where the merge stands
_OF_PLACE = ("seqs", "log_ids")  #: fields of `Position` that the offset has itself


def offset_of(place: Place) -> Offset:
    """Return the offset of a place, with nothing before it that waits for another log."""
    return {"seq": place.numbers, "log_id": place.ids}


def place_of(offset: Offset) -> Place:
    """Return the place of an offset."""
    return Place.of(offset["seq"], offset["log_id"])


def oldest(statuses: Sequence[JobStatus]) -> Place:
    """Return the place before the oldest events that are kept."""
    return Place(
        tuple(each.first_seq - 1 if each.first_seq else each.last_seq for each in statuses),
        tuple(each.log_id for each in statuses),
    )


def kept_from(start: Offset, ordered: bool) -> Place:
    """Return the place up to which nobody needs events again to read on after an offset."""
    place = place_of(start)
    if len(place.seqs) == 1:
        return place
    merge = Merge(ordered, _position(start))
    return Place(tuple(map(merge.after, range(len(place.seqs)))), place.log_ids)


def read_between(
    logs: Sequence[tuple[TrackerClient, str]],
    start: Offset,
    end: Place,
    segments: Sequence[str],
    scopes: Sequence[str],
    ordered: bool,
) -> tuple[list[Event], Offset]:
    """Read the events of several logs between an offset and a place, and merge them.

    Args:
        logs: of the job: for each, who has it and under which name.
        start: the events after it.
        end: the events up to it.
        segments, scopes: which events are read, as by `TrackerClient.list_events`; empty: all.
        ordered: whether ends wait for the other logs, as in jobs with ordering ``"global"``.

    Returns:
        The events, and the offset to read on from.
    """
    position = _position(start)
    merge = Merge(ordered, position)
    seqs = []
    for shard, (client, name) in enumerate(logs):
        up_to = last = end.seqs[shard]
        for event in _range(client, name, merge.after(shard), up_to, segments, scopes, position.log_ids[shard]):
            merge.take(shard, event)
            last = event.seq
        seqs.append((last, up_to))
    events = list(iter(merge.give, None))
    after = merge.position(end.log_ids)
    # An event that the merge has not taken, as it is of a deployment to come, is read again; all others are behind.
    numbers = [up_to if seq >= last else seq for seq, (last, up_to) in zip(after.seqs, seqs, strict=True)]
    return events, {**offset_of(Place(tuple(numbers), end.log_ids)), _MERGE: _merge_state(after)}


def _range(
    client: TrackerClient,
    job: str,
    after: int,
    up_to: int,
    segments: Sequence[str],
    scopes: Sequence[str],
    log_id: str,
) -> Iterator[Event]:
    read = partial(client.list_events, job, segments=segments, scopes=scopes, log_id=log_id, own_position=True)
    for page in pages(read, after, up_to):
        yield from page.events


def _position(offset: Offset) -> Position:
    place = place_of(offset)
    state = offset.get(_MERGE) or _merge_state(beginning(len(place.seqs)))
    return Position(seqs=place.seqs, log_ids=place.log_ids, **state)


def _merge_state(position: Position) -> dict[str, Any]:
    return {name: value for name, value in asdict(position).items() if name not in _OF_PLACE}
