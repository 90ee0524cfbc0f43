"""The page of a dry run in Chromium, without a network, in both colours; and the same as a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browsing import Window, chromium, inaccessible, sideways
from tests.replay.test_promises import HOUR, columns
from tracker.replay.report import Options, Replay


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def result() -> Replay:
    """Replay forty shops, of which the first is hostile; some windows are wrong under short promises."""
    shops = ["<script>alert(1)</script>", *(f"shop {number}" for number in range(39))]
    late = ((hour, place, 4 * (place % 7 == hour % 5)) for hour in range(50) for place in range(40))
    rows = [(hour * HOUR, (hour + delay) * HOUR, shops[place]) for hour, place, delay in late]
    return Replay.of(columns(rows), Options())


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("colours", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_the_page_needs_no_network_and_is_readable(
    browser: Any, result: Replay, tmp_path: Path, colours: str, width: int
) -> None:
    result.save(tmp_path / "report.html")
    options = {"color_scheme": colours, "viewport": {"width": width, "height": 900}, "offline": True}
    window = Window(browser, (tmp_path / "report.html").as_uri(), **options)
    asked: list[str] = []
    window.tab.on("request", lambda request: asked.append(request.url))
    window.tab.goto(window.url)
    assert asked == [window.url]
    assert not inaccessible(window.tab)
    assert sideways(window.tab) <= 0
    back = window.tab.evaluate("getComputedStyle(document.querySelector('.tracker-replay')).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (colours == "light")
    assert window.tab.locator("table").first.locator("tbody tr").count() == len(result.outcomes)
    assert window.tab.locator("svg g.good").count() + window.tab.locator("svg g.bad").count() == len(result.outcomes)
    assert window.tab.locator("svg rect.wrong").count() > 0
    assert "the 25 of 40 that are wrong most often" in window.tab.inner_text("main")
    assert [window.tab.locator("pre").nth(n).inner_text() for n in range(2)] == [each.code for each in result.advice]
    window.close()


def test_names_are_text_in_a_notebook(result: Replay) -> None:
    cell = result._repr_html_()
    assert "<script" not in cell
    assert "&lt;script&gt;alert(1)" in cell


def test_a_history_under_which_nothing_was_released_is_drawn() -> None:
    empty = Replay.of(columns([(0, 0, "a")]), Options(promises=["frontier=1d", "least=99%"]))
    assert "no window was released" in empty._repr_html_()
    assert "No promise was kept" in empty._repr_html_()
    assert empty.table().splitlines()[1].split() == ["frontier=1d", "1", "0", "1", "0", "-", "-", "-", "-"]
    assert empty.table().splitlines()[2].split()[:2] == ["least=99%", "0"]
