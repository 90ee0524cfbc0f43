"""No end is false and none is missing, whatever fails, as long as those who report hold to the contract's rules.

Each seed is another dataflow: calls are lost, unanswered or arrive late and twice; tasks fail and are tried again;
drivers die before and after they commit and come back as another run; channels double and delay; deployments roll,
fronts come and go; some are drained; the tracker is rebuilt from its dump. An oracle that knows where every element is
judges every event. That it can fail is tested, too: each rule of those who report, broken, is found out.
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.simulation.dataflow import Dataflow
from tests.simulation.world import ALL_RULES, GRAPH, FoundOut, Kind
from tracker.core.commands import Mode
from tracker.core.refusal import Refused


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_end_is_false_and_none_is_missing(first: int) -> None:
    _run(range(first, first + 20))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_no_end_is_false_and_none_is_missing_in_many(first: int) -> None:
    _run(range(first, first + 100))


def _run(seeds: range) -> None:
    for seed in seeds:
        try:
            Dataflow(seed).run()
        except (FoundOut, Refused) as found:
            raise AssertionError(f"seed {seed}: {found}") from found


@pytest.mark.parametrize("rule", [rule.name for rule in fields(ALL_RULES)])
def test_a_broken_rule_is_found_out(rule: str) -> None:
    for seed in range(100):
        try:
            Dataflow(seed, replace(ALL_RULES, **{rule: False})).run()
        except (FoundOut, Refused):
            return
    pytest.fail(f"nobody noticed that {rule} was broken")


# All but a-b and r-r, which change no upstream: a reaches b through r as well, and r is upstream of itself.
EDGES = [("a", "r"), ("r", "b"), ("b", "st"), ("st", "c"), ("st", "d")]


@pytest.mark.parametrize("edge", EDGES, ids="-".join)
def test_a_tracker_that_does_not_know_an_edge_is_found_out(edge: tuple[str, str]) -> None:
    without = {name: tuple(fed for fed in feeds if (name, fed) != edge) for name, feeds in GRAPH.items()}
    for seed in range(100):
        try:
            Dataflow(seed, kinds=[Kind(Mode.STAGED)], told=without).run()
        except FoundOut:
            return
    pytest.fail(f"nobody noticed that the tracker knows nothing of {edge}")
