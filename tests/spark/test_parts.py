"""Parts of a release's state: what is known of their rows adds up, and each is read with others that give no more."""

from __future__ import annotations

from spark_client.release.parts import NONE, Part, RowTally, Selection, joined, selections
from spark_client.spark_internals.checkpoints import Batch
from spark_client.windows.substreams import Substream


def test_tallies_add_up_and_what_one_does_not_know_is_unknown() -> None:
    one, more = RowTally(2, 0b110, 3, 5, 4), RowTally(1, 0b011, 1, 4, 2)
    assert one + more == RowTally(3, 0b101, 1, 5, 6)
    assert one + RowTally(1) == RowTally(3, None, 3, 5, None)
    assert RowTally(1) + one == RowTally(3, None, 3, 5, None)
    assert one + NONE == NONE + one == one


def test_parts_with_nothing_else_that_is_wanted_are_read_together() -> None:
    a, b, c = (Substream("s", name, None) for name in "abc")
    rows = {"p": [a], "q": [a, b], "r": [c]}
    parts = {name: Part(name, 0, dict.fromkeys(some, RowTally(1)), {}) for name, some in rows.items()}
    assert selections(parts, {a: ["p", "q"]}) == [Selection(["p", "q"], {a})]
    assert selections(parts, {a: ["p"], b: ["q"]}) == [Selection(["p"], {a}), Selection(["q"], {b})]
    assert selections(parts, {a: ["p"], c: ["r"]}) == [Selection(["p", "r"], {a, c})]
    assert selections(parts, {}) == []


def test_a_joined_part_has_what_lives_in_each_and_its_batches() -> None:
    a, b, gone = (Substream("s", name, None) for name in ("a", "b", "gone"))
    batches = {epoch: Batch(at=epoch) for epoch in (1, 2, 3)}
    one = Part("one", 2, {a: RowTally(2, 6, 1, 2, 2), gone: RowTally(1, 1, 1, 1, 1)}, batches, live={a})
    two = Part("two", 3, {a: RowTally(1, 3, 3, 3, 1), b: RowTally(1, 9, 3, 3, 1)}, {3: batches[3]}, live={a, b})
    both = joined([one, two], "both", ["file"])
    assert both.rows == {a: RowTally(3, 5, 1, 3, 3), b: RowTally(1, 9, 3, 3, 1)}
    assert (both.epoch, both.batches, both.live) == (3, {1: batches[1], 3: batches[3]}, {a, b})
