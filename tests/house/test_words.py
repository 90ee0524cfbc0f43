"""One word has one meaning: names that were retired for the field's terms do not come back.

Data does not say, hear or know: functions that add, record or print are called so. The name of a test is a short
sentence.
"""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.trees import definitions

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 12  #: words of a test's name

#: By package or room: names that were retired, and what stands in their place.
RETIRED: dict[str, dict[str, str]] = {
    "spark_client": {
        **dict.fromkeys(["told", "told_by", "Told", "Whole"], "key columns; DerivedLayout, ExplicitLayout"),
        **dict.fromkeys(["fileforms", "FileForm", "form_of"], "layouts, RowLayout, layout_of"),
        **dict.fromkeys(["say", "said", "hear", "heard", "heard_at"], "add to a report; a noun for what it is"),
        **dict.fromkeys(
            ["held", "_held", "hold", "_hold", "_hold_in", "HELD"], "state_segment, guard, incomplete, stored"
        ),
        **dict.fromkeys(["Over", "_over"], "TimeSemantics, ended, recently ended"),
        **dict.fromkeys(["bell", "_bell", "ring", "rings", "RINGS"], "wake-up stream"),
        **dict.fromkeys(["shelf", "Shelf"], "EpochStore"),
        **dict.fromkeys(["intake", "Intake"], "BatchInput"),
        **dict.fromkeys(["ending", "Ending"], "EpochEnds"),
        **dict.fromkeys(["Account"], "RowTally"),
        **dict.fromkeys(["Sent", "Sunk", "Function", "Routed"], "ChannelOutput, SinkDestination, FunctionDestination"),
        **dict.fromkeys(["Unspoken", "WithDelay"], "ManualFront, BoundedOutOfOrderness"),
        **dict.fromkeys(["Way", "rides", "xors", "must_count", "counts_labels"], "CountingMode, CountingPlan"),
    },
    "tracker/core": {
        **dict.fromkeys(["supporter", "supporters"], "origin epoch"),
        **dict.fromkeys(["FIRM", "firm", "soft"], "committed, tentative"),
        **dict.fromkeys(["floor"], "committed watermark"),
        **dict.fromkeys(["heard_at", "hear", "heard", "say"], "last contact; report, record"),
        **dict.fromkeys(["pinned", "pins_pass", "turned", "loosened"], "retained, closed_changed, groups_changed"),
        **dict.fromkeys(["shut", "woken", "advance"], "is_closed, changed_jobs, and one word for each progress"),
        **dict.fromkeys(["Closing", "Ends", "Piece"], "ClosedSet, Completion, StagedReport"),
    },
    "tracker/cli": dict.fromkeys(["say", "said", "asking"], "print_line, connecting"),
    "tracker/load": dict.fromkeys(
        ["board", "Board", "_board", "lifeline", "telling", "hear", "heard", "said"], "shared counters, parent watch"
    ),
    "tracker/relay": dict.fromkeys(["gathering", "Gatherer", "Room", "room"], "batching, Batcher, Capacity"),
    "tracker/sharded": dict.fromkeys(["uniting", "everywhere"], "merge, fan-out"),
    "tracker/server": dict.fromkeys(
        ["replica", "Replica", "ring", "room", "bells", "Bells", "_say"], "ReplayableState, notify, Notifier, capacity"
    ),
    "tracker/client": dict.fromkeys(["said", "say", "hear", "heard", "anew"], "report, record; a noun for what it is"),
}


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the names in a module's code, with their lines; not those in texts and comments."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string


@pytest.mark.parametrize("place", RETIRED)
def test_no_retired_name_is_used(place: str) -> None:
    retired = RETIRED[place]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} is retired: {retired[name]}"
        for path in sorted((ROOT / place).rglob("*.py"))
        if "gen" not in path.parts
        for line, name in names_in(path)
        if name in retired
    ]
    assert not found, "\n".join(found)


def test_a_retired_name_is_found_in_code_and_not_in_texts(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""A bell."""\nbell = "bell"  # bell\n')
    assert [name for _, name in names_in(module)] == ["bell"]


def long_names(path: Path) -> list[str]:
    """Return the tests of a module whose names have too many words."""
    names = [each.name.removeprefix("test_") for each in definitions(path) if each.is_test]
    return [name for name in names if len(name.split("_")) > LONGEST]


def test_names_of_tests_have_at_most_twelve_words() -> None:
    found = [f"{path}: {name}" for path in sorted((ROOT / "tests").rglob("*.py")) for name in long_names(path)]
    assert not found, "\n".join(found)


def test_a_name_of_thirteen_words_is_found_in_a_class_too(tmp_path: Path) -> None:
    module, twelve = tmp_path / "test_module.py", "a_b_c_d_e_f_g_h_i_j_k_l"
    module.write_text(f"class Tests:\n    def test_{twelve}(self): ...\n    def test_{twelve}_m(self): ...\n")
    assert long_names(module) == [f"{twelve}_m"]
