"""The distributed agent: as many messages as shards for each of one agent's, and no entry more."""

from __future__ import annotations

import pytest

from experiments.dataflow import Kind, Shape, simulate
from experiments.reports import each_interval
from experiments.sharded import follow


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_substream_ends_on_its_shard(kind: Kind, shards: int) -> None:
    run = simulate(Shape(kind, 6, 4, 5, elements=400))
    messages = each_interval(run, 1000)
    done = follow(run, messages, shards)  # raises if one does not end, or anything is late
    assert done.messages == shards * len(messages)
    assert done.busiest_messages == len(messages)
    assert len(messages.xor) / shards <= done.busiest_entries <= len(messages.xor)
