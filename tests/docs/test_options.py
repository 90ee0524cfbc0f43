"""docs/reference/options.md against the code: every option, in the signature's order, with its default."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_client
from spark_client import Front, Frontier, Schedule, Tracking
from spark_client.api import queryoptions
from spark_client.datasource.options import AWAITS, ReaderOptions
from spark_client.runtime.queryplan import QueryPlan
from tracker.client import JobSpec

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"

#: The beginning of the line before each table, and what the table describes.
SIGNATURES: dict[str, Callable[..., Any]] = {
    "One object for each job": Tracking,
    "Declare rows that enter the job": Tracking.source,
    "An aggregation whose rows": Tracking.release,
    "```": JobSpec,
}


def tables() -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each table as (option, default), by the paragraph before it."""
    found: dict[str, list[tuple[str, str]]] = {}
    paragraphs = PAGE.read_text().split("\n\n")
    for before, block in itertools.pairwise(paragraphs):
        if block.startswith("| option | type | default |"):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()[2:]]
            assert all(len(row) == 5 for row in rows), before
            found[before.strip().splitlines()[-1]] = [(row[0].strip("`"), row[2]) for row in rows]
    return found


def table(beginning: str) -> list[tuple[str, str]]:
    """Return the table after the paragraph whose last line begins so."""
    [rows] = [rows for before, rows in tables().items() if before.startswith(beginning)]
    return rows


@pytest.mark.parametrize("beginning", SIGNATURES)
def test_a_signatures_options_and_defaults_are_those_of_the_page(beginning: str) -> None:
    parameters = inspect.signature(SIGNATURES[beginning]).parameters.values()
    assert table(beginning) == [
        (each.name, "required" if each.default is inspect.Parameter.empty else f"`{each.default!r}`")
        for each in parameters
        if each.name != "self"
    ]


def test_the_writers_options_are_those_of_the_page() -> None:
    rows = dict(table("[`channel`, `route`]"))
    assert set(rows) == set(queryoptions.OWN)
    assert rows["compact_from"] == f"`{QueryPlan.compact_from}`"


def test_the_options_of_the_format_are_those_of_the_page() -> None:
    rows = dict(table("The tracker's events as rows"))
    assert set(rows) == ReaderOptions.KNOWN - {"path", AWAITS}
    wanted = ReaderOptions({"job": "shop"})
    for name, value in {
        "server": wanted.server,
        "starting_seq": wanted.starting_seq,
        "max_events_per_trigger": wanted.limit,
        "retry_for": f"{wanted.retry_for:g}",
        "what": "substreams" if wanted.substreams else "events",
        "after_seq": wanted.after_seq,
        "up_to_seq": wanted.up_to_seq,
        "include_ended": str(wanted.include_ended).lower(),
    }.items():
        assert rows[name] == f"`{value}`", name


def test_every_table_of_the_page_is_compared() -> None:
    beginnings = [*SIGNATURES, "[`channel`, `route`]", "The tracker's events as rows"]
    assert len(tables()) == len(beginnings)


def test_the_arguments_of_fronts_are_those_of_the_page() -> None:
    public = {name: getattr(spark_client, name) for name in spark_client.__all__}
    made: dict[str, Callable[..., Any]] = {
        name: each for name, each in public.items() if isinstance(each, type) and issubclass(each, Front)
    }
    made |= {"Schedule.in_rows": Schedule.in_rows, "Frontier.measured": Frontier.measured}
    wanted: dict[str, set[str]] = {}
    for name, each in made.items():
        for argument in inspect.signature(each).parameters.values():
            if argument.default is not inspect.Parameter.empty:
                wanted.setdefault(f"{argument.name}={argument.default!r}", set()).add(name)
    listed = re.findall(r"^- `(\w+=.*?)`: .* \((`.*`)\)$", PAGE.read_text(), re.MULTILINE)
    assert {argument: set(names.strip("`").split("`, `")) for argument, names in listed} == wanted


def test_the_docs_have_what_each_promise_trusts_as_its_receipts_have_it() -> None:
    table = Path("docs/promises.md").read_text(encoding="utf-8")
    public = [getattr(spark_client, name) for name in spark_client.__all__]
    fronts = [each for each in public if isinstance(each, type) and issubclass(each, Front)]
    words = {each.__name__: each.trusts for each in fronts if each is not Front}
    assert {name: said for name, said in words.items() if not said or f" | {said} |" not in table} == {}
    assert len(words) >= 8
