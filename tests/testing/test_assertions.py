"""Output of failing assertions, for their readers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.testing.conftest import closed, define, received, report, sent
from tracker.client import Ended, Late, Reason, TrackerClient
from tracker.testing import Assertions, LocalTracker, like


def failure(assertion: Any, *arguments: Any, **options: Any) -> str:
    """Return the text with which an assertion fails; times are cut out."""
    with pytest.raises(AssertionError) as failed:
        assertion(*arguments, **options)
    return re.sub(r"\d{4}-\d\d-\d\d [\d:.]+", "TIME", str(failed.value))


MONDAY = ("shop", "orders", "berlin", "monday")


def test_an_end_that_does_not_come_is_explained(tracker: LocalTracker) -> None:
    define(tracker.client, fronts=("schedule",))
    report(tracker.client, sent("monday", 1), sent("monday", 2), received("monday", 1))
    assert failure(tracker.assert_ended, *MONDAY, timeout=0).splitlines() == [
        "substream 'monday' of scope 'berlin' has not ended on 'orders':",
        "- front 'schedule' has promised nothing yet: its source has not started, has no rows, or was declared without "
        "a promise (front=)",
        "- segment 'orders': 1 in flight (2 sent, 1 received; last sent by 'till', last received by 'till')",
    ]
    assert failure(tracker.assert_ended, *MONDAY, timeout=0.01).startswith(
        "substream 'monday' of scope 'berlin' has not ended on 'orders' within 0.01 s:\n- front"
    )


def test_what_is_reported_and_not_committed_is_named(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, sent("monday"), closed("monday"), commit=False)
    text = failure(tracker.assert_ended, *MONDAY, timeout=0)
    assert "no report of it has been committed" in failure(tracker.assert_open, *MONDAY)
    assert "producer 'till' has reported epoch 0 and not committed it (1 sent and 0 received on 'orders'" in text


def test_an_end_is_waited_for(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, sent("monday"), received("monday"), closed("monday"))
    assert tracker.assert_ended(*MONDAY, elements=1) == Ended("orders", "berlin", "monday", None, 1, Reason.COMPLETE, 0)
    assert tracker.assert_ended(*MONDAY, timeout=0).elements == 1


def test_an_end_with_other_numbers_or_another_reason_fails(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, sent("monday"), closed("monday"))
    tracker.client.abandon("shop", "berlin", "monday")
    assert failure(tracker.assert_ended, *MONDAY, elements=2).splitlines() == [
        "substream 'monday' of scope 'berlin' has ended on 'orders', but not so:",
        "- reason: expected COMPLETE, and it is ABANDONED, with 1 in flight",
        "- elements: expected 2, and there were 1",
    ]
    tracker.assert_ended(*MONDAY, elements=1, reason=Reason.ABANDONED)


def test_what_is_open_is_so_on_one_segment(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, sent("monday"), received("monday"), sent("monday", 9, "mails"), closed("monday"))
    tracker.assert_ended(*MONDAY)
    status = tracker.assert_open("shop", "mails", "berlin", "monday", in_flight=1, waiting_for=[])
    assert (status.name, status.in_flight) == ("monday", 1)
    assert failure(tracker.assert_open, *MONDAY) == (
        "substream 'monday' of scope 'berlin' is not open on 'orders': it has ended (COMPLETE, 1 elements, 0 in flight)"
    )
    assert failure(
        tracker.assert_open, "shop", "mails", "berlin", "monday", in_flight=0, waiting_for=["schedule"]
    ).splitlines() == [
        "substream 'monday' of scope 'berlin' is open on 'mails', but not so:",
        "- in flight: expected 0, and there are 1 (1 sent, 0 received)",
        "- waiting for: expected ['schedule'], and it is []",
    ]


def test_a_misspelt_name_gets_the_names_that_there_are(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, sent("monday"), sent("tuesday"))
    assert failure(tracker.assert_ended, "shop", "orders", "berlin", "mondy", timeout=0).splitlines() == [
        "substream 'mondy' of scope 'berlin' has not ended on 'orders':",
        "- nothing was reported of it; the job has 'monday' of scope 'berlin'",
    ]
    assert "'monday' of scope 'berlin', 'tuesday' of scope 'berlin'" in failure(
        tracker.assert_open, "shop", "orders", "z", "z"
    )
    assert failure(tracker.assert_ended, "shop", "order", "berlin", "monday") == (
        "job 'shop' has no segment 'order'; it has ['mails', 'orders']"
    )
    for call in (tracker.assert_ended, tracker.assert_open):
        assert failure(call, "shops", *MONDAY[1:]) == "there is no job 'shops'; the tracker has ['shop']"
    assert failure(tracker.assert_events, "shops", []) == "there is no job 'shops'; the tracker has ['shop']"


def test_events_that_differ_are_shown_beside_each_other(tracker: LocalTracker) -> None:
    define(tracker.client, segments={"orders": []})
    report(tracker.client, *[f(name) for name in ("monday", "tuesday", "friday") for f in (sent, received, closed)])
    report(tracker.client, sent("monday"), producer="late till")
    ends = [like(Ended, name=name, elements=1) for name in ("monday", "tuesday", "friday")]
    tracker.assert_events("shop", ends, only=Ended)
    tracker.assert_events("shop", [*ends, Late("orders", "berlin", "monday", "late till", 1, 0)])
    tracker.assert_events("shop", [like(Late)], only=(Late,), after_seq=3)
    tracker.assert_events("shop", [], only=(Ended, Late), scopes=["lima"])
    wrong = [ends[0], like(Ended, name="tuesday", elements=2), like(Ended, name="sunday"), ends[2]]
    assert failure(tracker.assert_events, "shop", wrong, timeout=0).splitlines() == [
        "the events of job 'shop' differ (- expected, + there):",
        "  Ended(name='monday', elements=1, …)",
        "- Ended(name='tuesday', elements=2, …)",
        "+ Ended(name='tuesday', elements=1, …)",
        "- Ended(name='sunday', …)",
        "  Ended(name='friday', elements=1, …)",
        "+ Late(segment='orders', scope='berlin', name='monday', producer='late till', sent=1, received=0)",
    ]


def test_events_that_do_not_come_are_missing(tracker: LocalTracker) -> None:
    define(tracker.client)
    assert failure(tracker.assert_events, "shop", [like(Ended)], timeout=0.05).splitlines()[1:] == ["- Ended(, …)"]


def test_a_field_that_a_kind_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="Ended has no field 'names'; it has segment, scope, name"):
        like(Ended, names="monday")


def test_all_pages_of_events_are_compared(tracker: LocalTracker) -> None:
    define(tracker.client, segments={"orders": []})
    names = [f"n{number:04}" for number in range(2_500)]
    report(tracker.client, *map(closed, names))
    events = [like(Ended, name=name) for name in names]
    assert len(tracker.client.list_events("shop").events) < len(names), "one page would hold them all"
    assert failure(tracker.assert_events, "shop", events[:-1], timeout=0).splitlines()[1:] == [
        "  … 2494 as expected",
        *(f"  Ended(name='n{number}', …)" for number in range(2494, 2499)),
        "+ Ended(segment='orders', scope='berlin', name='n2499', end_time=None, elements=0, reason='COMPLETE', "
        "in_flight=0)",
    ]
    *_, last = failure(tracker.assert_events, "shop", events[1000:], timeout=0).splitlines()
    assert last == "… and 1200 more expected, 2200 more there"


def test_any_tracker_that_a_client_reaches_can_be_asked(tracker: LocalTracker) -> None:
    define(tracker.client)
    report(tracker.client, closed("monday"))
    Assertions(TrackerClient(tracker.address)).assert_ended(*MONDAY, elements=0)
