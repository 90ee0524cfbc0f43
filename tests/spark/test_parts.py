"""Parts of a release's state: what is known of their rows adds up, and each is read with others that give no more."""

from __future__ import annotations

from spark_client.release.parts import NONE, Part, RowTally, Selection, selections
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
