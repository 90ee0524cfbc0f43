"""A report in the making. No tracker is needed to see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.client import NO_END_TIME, JobSpec, Outcome, Report, Reported, TrackerClient
from tracker.contract.commands import Close, Contents, Finish, Frontier

LABELS = st.integers(-(2**63), 2**64 - 1)


def gather() -> tuple[Report, list[Contents]]:
    said: list[Contents] = []

    def send(contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        said.append(contents)
        return Reported(Outcome.APPLIED, (), 0)

    return Report(send), said


def entries(contents: Contents) -> dict[tuple[str, str, str, int], tuple[int, int, int]]:
    """Return the entries by segment, scope, name and end time; no two may be of the same."""
    rows = {}
    for place, segment, xor, sent, received in zip(
        contents.substream_index.tolist(),
        contents.segment_index.tolist(),
        contents.xor.tolist(),
        contents.sent.tolist(),
        contents.received.tolist(),
        strict=True,
    ):
        scope, name = contents.substreams[place]
        key = (contents.segments[segment], scope, name, int(contents.end_times[place]))
        assert key not in rows
        rows[key] = (xor, sent, received)
    return rows


ELEMENTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 2), LABELS, st.booleans()))


@given(st.lists(st.tuples(st.booleans(), ELEMENTS), max_size=5))
def test_entries_of_one_substream_and_segment_become_one_however_they_come(
    pieces: list[tuple[bool, list[tuple[str, str, int, int, bool]]]],
) -> None:
    report, said = gather()
    expected: dict[tuple[str, str, str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for in_columns, elements in pieces:
        for segment, scope, number, label, sent in elements:
            cell = expected[segment, scope, str(number), number]
            cell[0] ^= label % 2**64
            cell[1 if sent else 2] += 1
            if not in_columns:
                tell = report.sent if sent else report.received
                tell(segment, scope, str(number), label, end_time=number)
        for segment in {element[0] for element in elements} if in_columns else ():
            rows = [element for element in elements if element[0] == segment]
            report.add_columns(
                segment,
                [row[1] for row in rows],
                [str(row[2]) for row in rows],
                np.array([row[2] for row in rows]),
                np.array([row[3] % 2**64 for row in rows], np.uint64),
                [int(row[4]) for row in rows],
                [int(not row[4]) for row in rows],
            )
    report.report(units=["u"])
    assert entries(said[0]) == {key: tuple(cell) for key, cell in expected.items()}


def test_a_report_shows_what_it_holds() -> None:
    report = Report(lambda contents, units, commit: Reported(Outcome.APPLIED, (), 0), 7, "shop", "orders")
    report.sent("raw", "a", "1", 5)
    assert repr(report) == "<Report of 'orders' in 'shop', epoch 7: 1 substreams, 0 promises>"


def test_negative_labels_are_taken_as_spark_gives_them() -> None:
    report, said = gather()
    report.sent("raw", "s", "n", -1)
    report.add_columns("raw", ["s"], ["m"], None, np.array([-2]), [1], [0])
    report.report(units=["u"])
    assert said[0].xor.tolist() == [2**64 - 1, 2**64 - 2]


def test_columns_may_be_numpy_arrays_of_strings() -> None:
    report, said = gather()
    report.add_columns(
        "raw", np.array(["s", "t"], object), np.array(["n", "m"]), [NO_END_TIME, 7], [1, 2], [1, 1], [0, 0]
    )
    report.report(units=["u"])
    assert entries(said[0]) == {("raw", "s", "n", NO_END_TIME): (1, 1, 0), ("raw", "t", "m", 7): (2, 1, 0)}
    assert all(type(text) is str for pair in said[0].substreams for text in pair)


def test_promises_keep_their_order_and_name_substreams_that_nothing_else_names() -> None:
    report, said = gather()
    report.frontier("schedule", 10, scope="JFK")
    report.close("JFK", "d1", end_time=24)
    report.finish("schedule")
    report.report(units=["u"])
    assert said[0].promises == (
        Frontier("schedule", 10, "JFK"),
        Close("", 0, only_without_fronts=True),
        Finish("schedule"),
    )
    assert said[0].substreams == [("JFK", "d1")]
    assert said[0].end_times.tolist() == [24]
    assert len(said[0].xor) == 0


@pytest.mark.parametrize(("end_time", "error"), [("noon", TypeError), (1.5, TypeError), (2**63, OverflowError)])
def test_an_end_time_beyond_64_bits_is_refused_and_nothing_is_kept(end_time: Any, error: type) -> None:
    report, _ = gather()
    with pytest.raises(error, match=r"end_time=.* of substream 'd1' in scope 'JFK' is no 64-bit integer; give"):
        report.sent("raw", "JFK", "d1", 1, end_time=end_time)
    report.sent("raw", "JFK", "d1", 1, end_time=24)


def test_a_substream_has_one_end_time() -> None:
    report, _ = gather()
    report.sent("raw", "JFK", "d1", 1, end_time=24)
    with pytest.raises(ValueError, match="'d1' of scope 'JFK' has two end times, 24 and none"):
        report.received("raw", "JFK", "d1", 1)
    with pytest.raises(ValueError, match="two end times"):
        report.add_columns("raw", ["JFK"], ["d1"], [25], [1], [1], [0])


def test_refused_columns_leave_the_report_as_it_was() -> None:
    report, said = gather()
    report.sent("raw", "JFK", "d1", 1, end_time=24)
    with pytest.raises(ValueError, match="two end times"):
        report.add_columns("raw", ["LGA", "LGA"], ["d1", "d1"], [24, 48], [1, 2], [1, 1], [0, 0])
    with pytest.raises(ValueError, match="columns have different lengths"):
        report.add_columns("raw", ["LGA"], ["d1", "d2"], [24, 48], [1, 2], [1, 1], [0, 0])
    with pytest.raises(ValueError, match="0 or more"):
        report.add_columns("raw", ["LGA"], ["d1"], None, [1], [-1], [0])
    with pytest.raises(TypeError, match="column sent must hold 64-bit integers"):
        report.add_columns("raw", ["LGA"], ["d1"], None, [1], [1.5], [0])
    report.sent("raw", "LGA", "d1", 2, end_time=72)
    report.report(units=["u"])
    assert entries(said[0]) == {("raw", "JFK", "d1", 24): (1, 1, 0), ("raw", "LGA", "d1", 72): (2, 1, 0)}


def test_an_entry_that_counts_too_many_elements_is_not_sent() -> None:
    report, said = gather()
    report.add("raw", "s", "n", 0, sent=2**32 - 1)
    report.add("raw", "s", "n", 0, sent=1)
    with pytest.raises(OverflowError, match="report more often"):
        report.report(units=["u"])
    assert said == []


@pytest.mark.parametrize("xor", [-1, -(2**63), 2**63, 2**64 - 1, -7])
def test_an_xor_of_either_sign_is_its_64_bits(xor: int) -> None:
    """As Spark's `xxhash64` gives it: alone, and folded with others before or after."""
    report, said = gather()
    report.add("raw", "s", "alone", xor, sent=1)
    report.add("raw", "s", "before", xor)
    report.add("raw", "s", "before", 5)
    report.sent("raw", "s", "after", 5)
    report.add("raw", "s", "after", xor)
    report.report(units=["u"])
    assert said[0].xor.tolist() == [xor % 2**64, xor % 2**64 ^ 5, xor % 2**64 ^ 5]


@pytest.mark.parametrize(
    ("names", "label", "words"),
    [
        (("raw", 5, "d1"), 1, "scope=5 is no text"),
        (("raw", "JFK", None), 1, "name=None is no text"),
        ((b"raw", "JFK", "d1"), 1, "segment=b'raw' is no text"),
        (("raw", "JFK", "d1"), "7f", "label '7f' .* is no integer of 64 bits"),
        (("raw", "JFK", "d1"), 1.0, "label 1.0 .* is no integer of 64 bits"),
    ],
)
def test_an_element_of_other_types_is_refused_and_leaves_nothing(names: Any, label: Any, words: str) -> None:
    for method in ("sent", "received", "add"):
        report, said = gather()
        with pytest.raises(TypeError, match=words):
            getattr(report, method)(*names, label)
        report.report(commit=True)
        assert entries(said[0]) == {}


@pytest.mark.parametrize("wrong", [5, None, b"JFK", ["JFK"]])
@pytest.mark.parametrize("column", ["scopes", "names"])
def test_a_column_of_names_with_anything_but_texts_is_refused_whole(wrong: Any, column: str) -> None:
    report, said = gather()
    rows: dict[str, Any] = {"scopes": ["LGA", "JFK"], "names": ["d1", "d2"]} | {column: ["LGA", wrong]}
    with pytest.raises(TypeError, match=f"column {column} must hold texts, not"):
        report.add_columns("raw", **rows, end_times=None, xor=[1, 2], sent=[1, 1], received=[0, 0])
    report.sent("raw", "LGA", "d1", 4)
    report.report(commit=True)
    assert entries(said[0]) == {("raw", "LGA", "d1", NO_END_TIME): (4, 1, 0)}


def test_a_number_of_numpy_is_a_label_like_any_other() -> None:
    report, said = gather()
    for label in (np.int64(-1), np.uint64(2**64 - 1), -1, 2**64 - 1):
        report.sent("raw", "JFK", "d1", label)  # type: ignore[arg-type]
    report.report(commit=True)
    assert entries(said[0]) == {("raw", "JFK", "d1", NO_END_TIME): (0, 4, 0)}


def test_a_report_that_covers_nothing_is_refused_with_the_argument_to_give() -> None:
    report, said = gather()
    with pytest.raises(ValueError, match="commit=True"):
        report.report()
    assert not said


@pytest.mark.parametrize(
    ("argument", "right"),
    [
        ({"segments": ["a"]}, "'clean': "),
        ({"segments": {"a": "bc"}}, "'clean': "),
        ({"segments": {"a": None}}, "'clean': "),
        ({"fronts": "orders"}, r"\['orders'\]"),
        ({"fronts": {"orders": "a"}}, r"\['raw'\]"),
        ({"stall_after": 60}, r"timedelta\(seconds=60\)"),
        ({"retention": "1 day"}, r"timedelta\(seconds=…\)"),
        ({"segments": {1: []}}, "'clean': "),
        ({"fronts": {1: []}}, r"\['raw'\]"),
        ({"job": 5}, "is no text"),
        ({"deployment": None}, "is no text"),
        ({"committed_ends": "yes"}, "is neither True nor False"),
    ],
)
def test_a_job_of_another_shape_is_refused_with_the_right_one(argument: dict[str, Any], right: str) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(argument))}=.*{right}"):
        JobSpec(**{"job": "j", "deployment": "d", "segments": {"a": []}, **argument})


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("close", {"scope": "JFK", "name": "d1", "front": 5}, "front=5 is no text"),
        ("finish", {"front": None}, "front=None is no text"),
        ("frontier", {"front": "f", "time": "2013-01-01"}, "time='2013-01-01' is no integer"),
        ("frontier", {"front": "f", "time": 1, "scope": 7}, "scope=7 is no text"),
        ("expect", {"front": "f", "segment": "raw", "scope": "JFK", "name": "d1", "elements": "3"}, "is no integer"),
        ("expect", {"front": "f", "segment": 1, "scope": "JFK", "name": "d1", "elements": 3}, "segment=1 is no text"),
        ("identities", {"front": 1, "segment": "raw", "scope": "JFK", "name": "d1", "xor": 3}, "front=1 is no text"),
    ],
)
def test_a_promise_of_other_types_is_refused_and_leaves_nothing(
    method: str, arguments: dict[str, Any], words: str
) -> None:
    report, said = gather()
    with pytest.raises(TypeError, match=words):
        getattr(report, method)(**arguments)
    report.report(commit=True)
    assert said[0].promises == ()


def test_names_of_other_types_are_refused_before_a_call() -> None:
    client = TrackerClient("127.0.0.1:1", retry_for=0)
    with pytest.raises(TypeError, match="producer=5 is no text"):
        client.open_producer("flights", 5, "r1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="run=None is no text"):
        client.producer("flights", "p", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scope=5 is no text"):
        client.wait_for_end("flights", "raw", 5, "d1", timeout=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="epoch='1' is no integer"):
        client.producer("flights", "p", "r1").epoch("1")  # type: ignore[arg-type]
