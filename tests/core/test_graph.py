"""Upstream segments, compared with the model's plain search, on graphs of all shapes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.reference import Job
from tracker.contract.spec import Spec
from tracker.core.graph import Graph

NAMES = [f"s{i}" for i in range(12)]


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, tuple[str, ...]]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    return [(name, tuple(draw(st.lists(st.sampled_from(names), max_size=4)))) for name in names]


@given(segments=graphs())
@settings(max_examples=300, deadline=None)
def test_upstream_and_order_are_the_models(segments: list[tuple[str, tuple[str, ...]]]) -> None:
    graph = Graph(segments)
    model = Job(Spec("job", "d1", tuple(segments)), "log")
    assert list(graph.names) == model.segments_in_order()
    for name in graph.names:
        upstream = {other for other in graph.names if graph.upstream[graph.number[name], graph.number[other]]}
        assert upstream == model.upstream(name)


def test_a_thousand_segments_that_all_feed_all_are_one_cycle() -> None:
    """The worst that the limits let in; by a search from each of them it takes most of a minute."""
    names = tuple(f"s{i}" for i in range(1000))
    assert Graph([(name, names) for name in names]).upstream.all()


def test_a_long_chain() -> None:
    names = [f"s{i}" for i in range(300)]
    graph = Graph([(name, names[i + 1 : i + 2]) for i, name in reversed(list(enumerate(names)))])
    assert list(graph.names) == names
    assert [int(row.sum()) for row in graph.upstream] == list(range(1, 301))
