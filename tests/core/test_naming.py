"""Names, to the byte; and the texts of refusals of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.test_readings import define, start
from tests.model.lines import Driver
from tracker.contract.commands import OpenProducer
from tracker.contract.refusal import Refused
from tracker.core import Tracker
from tracker.core.validation import check_deployment, check_job_name, check_name, check_scope

CHECKS: dict[str, tuple[Callable[[str], None], list[str], list[str]]] = {
    "name": (
        lambda name: check_name("unit", name),
        ["u", "*", "n" * 512, "ü" * 256],
        ["", "n" * 513, "ü" * 256 + "n", "n" * 600],
    ),
    "scope": (check_scope, ["", "s", "n" * 512, "ü" * 256], ["*", "n" * 513, "ü" * 256 + "n", "n" * 600]),
    "job": (check_job_name, ["a", "A-z_0.9", "n" * 128], ["", "n" * 129, "a b", "ü", "a\n"]),
    "deployment": (check_deployment, ["d", "ü" * 128], ["", "d" * 129]),
}


@pytest.mark.parametrize("kind", CHECKS)
def test_a_name_may_be_as_long_as_is_told_and_no_longer(kind: str) -> None:
    check, taken, refused = CHECKS[kind]
    for name in taken:
        check(name)
    for name in refused:
        with pytest.raises(Refused, match=r"^MALFORMED: "):
            check(name)


@pytest.mark.parametrize(("bound", "said"), [(None, 7), (7, None), (7, 8)])
@pytest.mark.parametrize("known", [False, True], ids=["of one report", "known"])
def test_who_names_another_end_time_is_told_both(bound: int | None, said: int | None, known: bool) -> None:
    tracker = Tracker("log")
    driver = Driver(tracker)
    driver.run(define())
    driver.run(start("p1"))
    line = {"do": "report", "producer": "p", "run": "p1", "units": ["u"], "promises": [], "commit": False, "epoch": 0}
    first, second = ["t", "s", bound, "a", 0, 1, 0], ["t", "s", said, "a", 0, 1, 0]
    if known:
        driver.run(line | {"entries": [first]})
        line |= {"entries": [second], "units": ["v"]}
    else:
        line |= {"entries": [first, second]}
    shown = ["none" if time is None else str(time) for time in (bound, said)]
    with pytest.raises(Refused, match=f"END_TIME_CONFLICT: .* has the end time {shown[0]}, not {shown[1]}; "):
        tracker.apply(driver._command(line), driver.now)


def test_a_refused_name_is_shown_no_longer_than_it_can_be_read() -> None:
    tracker = Tracker("log")
    Driver(tracker).run(define())
    with pytest.raises(Refused) as refused:
        tracker.apply(OpenProducer("job", "p" * 10_000, "r"), 1)
    assert len(str(refused.value)) < 200
    assert "10000 bytes" in str(refused.value)
