"""Headers that travel with a message, copies, and the epochs that count after a restart; without Kafka."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.kafka import Element, ProgressLostError
from tracker.kafka.records import Copies, Mark, decided_epoch, headers_of, read_element, signed

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100).filter("*".__ne__)
LABELS = st.integers(1, 2**64 - 1)
ELEMENTS = st.builds(
    Element, TEXTS, TEXTS, st.none() | st.integers(-(2**61), 2**61), LABELS, st.just("till"), st.just(3)
)


@given(st.lists(ELEMENTS, min_size=1))
def test_headers_have_the_element_and_all_of_its_epoch(elements: list[Element]) -> None:
    headers = headers_of(elements, 1)
    assert [read_element(b"any key", [*each, ("traceparent", b"00")]) for each in headers] == elements
    xor = 0
    for each in elements:
        xor ^= each.label
    assert {json.dumps(json.loads(epoch)) for _, (_, epoch) in headers} == {
        json.dumps({"sender": "till", "epoch": 3, "after": 1, "rows": len(elements), "xor": signed(xor)})
    }


def test_a_window_of_a_query_is_named_as_the_tracker_names_it() -> None:
    headers = [("tracker", b'{"scope":"a","end":1356998400000001}'), ("tracker-epoch", b'{"sender":"q","epoch":3}')]
    element = read_element(b"-1", headers, timedelta(days=1))
    assert element is not None
    assert element.name == "2012-12-31T00:00:00.000001Z/2013-01-01T00:00:00.000001Z"
    assert element.label == 2**64 - 1
    assert read_element(b"-1", headers) is None, "without a length, a window by its end has no name"
    assert read_element(b"-1", headers[::-1], timedelta(days=1)) is None
    assert read_element(b"no label", headers, timedelta(days=1)) is None


@given(st.lists(st.lists(LABELS, unique=True, max_size=4), max_size=5), st.data())
def test_each_element_comes_once_whatever_is_sent_again(epochs: list[list[int]], data: st.DataObject) -> None:
    """A sender that is killed and sends its epoch again, a reader that is killed and goes on by its mark."""
    sent: list[Element] = []
    for number, labels in enumerate(epochs):
        whole = [Element("", "a", None, label, "till", number) for label in labels]
        for _ in range(data.draw(st.integers(0, 2))):
            sent += whole[: data.draw(st.integers(0, len(whole)))]
        sent += whole
    copies, handed_out = Copies(), []
    for offset, element in enumerate(sent):
        if data.draw(st.booleans()):  # killed before it: the next one reads again what the mark points to
            mark = Mark.read(Mark(0, copies.senders).write())
            assert mark is not None
            copies = Copies(mark.senders)
            for earlier in range(copies.since(offset), offset):
                assert not copies.first(sent[earlier], earlier) or earlier >= copies.since(offset)
        if copies.first(element, offset):
            handed_out.append((element.epoch, element.label))
    assert handed_out == [(number, label) for number, labels in enumerate(epochs) for label in labels]


@pytest.mark.parametrize(
    ("marked", "committed", "staged", "decided"),
    [
        (None, None, [], 0),  # the first start
        (None, 7, [], 7),  # the mark has expired, and nothing hangs on it
        (0, None, [1], 0),  # killed before Kafka's first commit
        (1, 0, [1], 1),  # killed after Kafka's commit
        (7, 7, [8], 7),
        (7, 7, [], 7),
    ],
)
def test_the_mark_decides_what_was_staged(
    marked: int | None, committed: int | None, staged: list[int], decided: int
) -> None:
    assert decided_epoch("till", marked, committed, staged) == decided


@pytest.mark.parametrize(
    ("marked", "committed", "staged", "words"),
    [
        (None, None, [1], "till has lost its progress"),
        (None, 7, [8], "till has lost its progress"),
        (6, 7, [], "till has lost its progress"),
        (8, 7, [], "the tracker has lost epochs of till: it has those up to 7, and epoch 8 was sent"),
        (3, None, [], "the tracker has lost epochs of till"),
    ],
)
def test_progress_that_one_side_has_lost_is_refused(
    marked: int | None, committed: int | None, staged: list[int], words: str
) -> None:
    with pytest.raises(ProgressLostError, match=words):
        decided_epoch("till", marked, committed, staged)


def test_a_mark_has_room_for_the_senders_of_a_partition() -> None:
    assert Mark.read(Mark(5, {"till": [3, 10]}).write()) == Mark(5, {"till": [3, 10]})
    assert Mark.read("of another program") is Mark.read("") is Mark.read(None) is None
    with pytest.raises(ProgressLostError, match="400 senders have written into one partition"):
        Mark(5, {f"till {number}": [3, 10] for number in range(400)}).write()
