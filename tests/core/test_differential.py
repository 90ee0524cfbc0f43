"""The core and the reference model are one machine: the same answers, events and views on any sequence of commands.

A seed that fails is cut down to a short sequence and printed as lines, like those of the conformance vectors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.core.differential import complaint, difference, shrink, with_looks
from tests.core.layouts import LOOPS, accounts_of, small_pages
from tests.model.generate import generate
from tests.model.lines import Driver, Line
from tracker.core import Tracker, accounts

VECTORS = sorted((Path(__file__).parent.parent / "vectors").glob("*.jsonl"))


@pytest.fixture(params=LOOPS, autouse=True)
def _loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run everything twice: with numpy, and with compiled loops."""
    monkeypatch.setattr(accounts, "chosen", accounts_of(request.param))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if n < 2 else pytest.mark.thorough, id=path.stem)
        for n, path in enumerate(VECTORS[:10])
    ],
)
def test_core_and_model_show_the_same_on_the_vector(path: Path) -> None:
    lines = with_looks([json.loads(text) for text in path.read_text().splitlines()], seed=1)
    assert not difference(lines), complaint(lines)


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(2, 70, 2))])
def test_core_and_model_agree(first: int) -> None:
    _agree_on(range(first, first + 2))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [2242, 5953, 3036])
def test_core_and_model_agree_where_they_once_did_not(seed: int) -> None:
    """A revoked epoch takes back the number that kept a substream open; an abandoned one was closed by a drain; a
    number that an earlier epoch commits cannot be taken back by a later one that is staged.
    """
    _agree_on(range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 250))
def test_core_and_model_agree_on_many(first: int) -> None:
    _agree_on(range(first, first + 250))


def _agree_on(seeds: range) -> None:
    """Compare core and model, every second time with small pages, whose rows are recycled, and many blocks of cells."""
    for seed in seeds:
        lines = with_looks(generate(seed), seed)
        with small_pages() if seed % 2 else nullcontext():
            assert not difference(lines), f"seed {seed}\n{complaint(lines)}"


def test_a_difference_is_found_and_cut_down() -> None:
    """A core that forgets commands is caught, in few lines."""

    class Forgetful(Tracker):
        def apply(self, command, now):  # type: ignore[no-untyped-def]
            return super().apply(command, now) if type(command).__name__ != "FinishFront" else None

    def fails(lines: Sequence[Line]) -> bool:
        honest, forgetful = Driver(Tracker("log")), Driver(Forgetful("log"))
        return any(honest.run(line) != forgetful.run(line) for line in lines)

    failing = next(lines for lines in map(generate, range(100)) if fails(lines))
    short = shrink(failing, fails)
    assert len(short) <= 6
    assert short[-1]["do"] == "finish_front"
