"""`tracker top`: what it finds, how it draws that, and the terminal."""

from __future__ import annotations

import json
import re
import signal
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tests.cli.screens import Terminal
from tests.cli.shell import Shell
from tests.cli.snapshots import compare
from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.cli.looks import Choice, JobLook, Kind, Look, Observer, SilentFront, Wait, Waiting, draw
from tracker.cli.options import Sort
from tracker.cli.top import pause_after
from tracker.client import DrainState, DrainStatus, SegmentStatus, SubstreamStatus, TrackerClient, label

NOW = datetime.now(timezone.utc)


def _ns(time: datetime) -> int:
    return int(time.timestamp() * 10**9)


def job_look(name: str, **values: object) -> JobLook:
    idle = DrainStatus(DrainState.NOT_DRAINING, "", "d1")
    usual = {
        "deployment": "d1", "open": 0, "in_flight": 0, "staged": 0, "late": 0, "events_per_s": 0.0,
        "epochs_per_s": 0.0, "late_per_s": 0.0, "last_report": NOW - timedelta(hours=5), "running_fronts": 0,
        "silent_fronts": (), "drain": idle,
    }  # fmt: skip
    return JobLook(name, **(usual | values))  # type: ignore[arg-type]


def a_look() -> Look:
    """Return three jobs: one that is stuck, one that is drained, and one whose name is long."""
    silent = SilentFront("schedule", NOW - timedelta(hours=2)), SilentFront("till\x1b[2J", None)
    draining = DrainStatus(DrainState.DRAINING, "night", "d7", ("a", "b"), 12, 30, ("q",))
    segment = SegmentStatus("raw", False, 0, 5, 2, "q", "q")
    now = int(NOW.timestamp()) * 10**9
    oldest = SubstreamStatus(
        "JFK", "2013-01-01", 24, False, ("schedule",), (segment,), 0, now - 3 * 24 * 3600 * 10**9, now, ()
    )
    flights = job_look(
        "flights", open=1_234_567, in_flight=3, late=4, events_per_s=1234.5, epochs_per_s=0.5, late_per_s=0.1,
        running_fronts=3, silent_fronts=silent, staged=7,
    )  # fmt: skip
    drained = job_look("taxis", deployment="d7", open=12, in_flight=30, drain=draining)
    long = job_look("a-job-of-a-name-that-is-much-longer-than-others", last_report=None, events_per_s=None)
    waits = (
        Wait(Kind.FRONT, "schedule", 900), Wait(Kind.ELEMENTS, "raw", 100), Wait(Kind.COMMIT, "q", 3),
        Wait(Kind.ORDER, "", 2), Wait(Kind.OTHER, "", 1),
    )  # fmt: skip
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    return Look(at, "1.2", "memory", (long, flights, drained), Waiting("flights", 1000, waits, oldest), 0.1)


def drawn(look: Look, choice: Choice | None = None, **options: object) -> str:
    lines = draw(look, choice or Choice(), "tracker:7654", **options)  # type: ignore[arg-type]
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


@pytest.mark.parametrize("width", [None, 110, 80, 60, 40, 24])
def test_a_drawing_fits_the_width(width: int | None) -> None:
    compare(f"top-width-{width}", drawn(a_look(), width=width, height=width and 22))
    if width:
        assert max(len(line) for line in drawn(a_look(), width=width, height=22).splitlines()) <= width


@pytest.mark.parametrize("height", [3, 5, 8, 12, 40])
def test_a_drawing_has_as_many_lines_as_the_terminal(height: int) -> None:
    lines = drawn(a_look(), width=100, height=height).splitlines()
    assert len(lines) == height
    assert lines[-1].startswith("q quit")


def test_the_chosen_job_is_among_the_rows_that_fit() -> None:
    jobs = tuple(job_look(f"job-{number:02}") for number in range(50))
    look = Look(NOW, "", "", jobs, None, 0.1)
    for chosen in ("job-00", "job-25", "job-49"):
        shown = drawn(look, Choice(Sort.NAME, job=chosen), width=80, height=14)
        assert f"> {chosen}" in shown
        assert shown.count("  job-") == 7


def test_a_job_chosen_a_moment_ago_shows_no_other_jobs_substreams() -> None:
    shown = drawn(a_look(), Choice(job="taxis"))
    assert "taxis, deployment d7: …" in shown
    assert "schedule" not in shown.partition("\n\n")[2].partition("taxis, deployment")[2]


def test_a_drain_under_way_is_described() -> None:
    look = a_look()
    shown = drawn(Look(look.at, "", "", look.jobs, Waiting("taxis", 0, (), None), 0.1), Choice(job="taxis"))
    assert "drain: DRAINING night: 12 open, 30 in flight, unfinished: a, b, not committed: q" in shown


def test_jobs_are_ordered_by_numbers_or_names_and_turned_around() -> None:
    jobs = a_look().jobs
    assert next(job.job for job in Choice().ordered(jobs)) == "flights"
    choice = Choice()
    assert not choice.press("n", jobs)
    assert [job.job for job in choice.ordered(jobs)][1:] == ["flights", "taxis"]
    choice.press("n", jobs)
    assert next(job.job for job in choice.ordered(jobs)) == "taxis"
    choice.press("i", jobs)
    assert (choice.sort, choice.turned) == (Sort.IN_FLIGHT, False)
    for sort in Sort:
        assert len(Choice(sort).ordered(jobs)) == 3


def test_keys_choose_a_job_and_stay_with_it_in_another_order() -> None:
    jobs = a_look().jobs
    choice = Choice()
    assert choice.chosen(jobs) == "flights"
    assert not choice.press("up", jobs), "there is none above"
    assert choice.press("down", jobs)
    assert choice.press("n", jobs) is False
    assert choice.chosen(jobs) == "taxis"
    assert choice.press("home", jobs)
    assert choice.press("end", jobs)
    assert choice.chosen(jobs) == "taxis"
    assert choice.chosen(jobs[:1]) == jobs[0].job, "the chosen one was deleted"
    assert not Choice().press("down", [])


def test_a_tracker_is_looked_at_for_a_tenth_of_the_time() -> None:
    for took in (0.001, 0.5, 3.0):
        assert took / (took + pause_after(took, 0.2)) <= 0.1 + 1e-9 or took < 0.2
        assert took / (took + pause_after(took, 0.2, soon=True)) <= 0.5


# ---------------------------------------------------------------- with a server


def fill(client: TrackerClient, job: str, substreams: int = 3) -> None:
    """Make a job in which all substreams wait for a front, the first for elements too, and one front never promised."""
    client.define_job(spec(job, fronts=["schedule", "till"]))
    report = client.open_producer(job, "q", "r1").epoch(0)
    report.sent("raw", "JFK", "first", label("a"), end_time=24)
    for number in range(1, substreams):
        report.sent("raw", "JFK", str(number), label(number), end_time=48)
        report.received("raw", "JFK", str(number), label(number), end_time=48)
    report.frontier("schedule", 12)
    report.report(commit=True)


def test_a_look_counts_what_substreams_wait_for(client: TrackerClient, job: str) -> None:
    fill(client, job)
    found = Observer(client, timedelta(hours=1)).look(lambda jobs: job)
    mine = next(each for each in found.jobs if each.job == job)
    assert (mine.open, mine.in_flight, mine.running_fronts, mine.events_per_s) == (3, 1, 2, None)
    assert [each.front for each in mine.silent_fronts] == ["till"]
    assert found.waiting is not None
    waits = {(each.kind, each.name): each.substreams for each in found.waiting.waits}
    assert waits == {(Kind.FRONT, "schedule"): 3, (Kind.FRONT, "till"): 3, (Kind.ELEMENTS, "raw"): 1}
    assert found.waiting.oldest is not None
    assert found.waiting.oldest.name == "first"
    assert len(Observer(client, timedelta(0)).look(lambda jobs: job).jobs[0].silent_fronts) <= 2


def test_rates_are_of_what_happened_between_two_looks(client: TrackerClient, job: str) -> None:
    fill(client, job)
    observer = Observer(client, timedelta(hours=1))
    observer.look(lambda jobs: job)
    producer = client.producer(job, "q", "r1")
    for epoch in (1, 2):
        report = producer.epoch(epoch)
        report.received("raw", "JFK", "first", label("a"), end_time=24) if epoch == 1 else None
        report.finish("schedule") if epoch == 1 else report.finish("till")
        report.report(commit=True)
    [mine] = [each for each in observer.look(lambda jobs: job).jobs if each.job == job]
    assert mine.epochs_per_s
    assert mine.events_per_s
    assert round(mine.events_per_s / mine.epochs_per_s, 6) == 1.5, "three ends, two epochs"
    assert mine.open == 0
    [mine] = [each for each in observer.look(lambda jobs: job).jobs if each.job == job]
    assert (mine.epochs_per_s, mine.events_per_s) == (0.0, 0.0)


def test_a_job_that_was_made_again_has_no_rate_yet(client: TrackerClient, job: str) -> None:
    fill(client, job)
    observer = Observer(client, timedelta(hours=1))
    observer.look(lambda jobs: job)
    client.delete_job(job, force=True)
    client.define_job(spec(job))
    [mine] = [each for each in observer.look(lambda jobs: job).jobs if each.job == job]
    assert mine.events_per_s is None
    client.delete_job(job)
    found = observer.look(lambda jobs: job)
    assert found.waiting is None
    assert job not in [each.job for each in found.jobs]


def test_however_many_are_open_only_a_page_of_the_oldest_is_read(client: TrackerClient, job: str, shell: Shell) -> None:
    fill(client, job, 2_500)
    shown = json.loads(shell("top", job, "--json", "--interval", "0.2"))
    assert shown["waiting"]["counted"] == 1000
    assert next(each["open"] for each in shown["jobs"] if each["job"] == job) == 2_500
    assert "the oldest 1,000 of 2,500 open substreams wait for" in shell("top", job, "--once", "--interval", "0.2")


def test_without_a_terminal_it_prints_once(client: TrackerClient, job: str, shell: Shell) -> None:
    fill(client, job)
    shown = shell("top", job, "--interval", "0.2")
    assert "\x1b" not in shown
    assert re.search(rf"^> {job} +3 +1 +0 +0 +0 +0 +1/2 +\d+[sm] ago +-$", shown, re.MULTILINE), shown
    assert "  3  front till\n" in shown
    assert "q quit" not in shown


def test_a_tracker_without_jobs_is_no_error(server: Server) -> None:
    assert "no jobs" in Shell(server.address)("top", "--once", "--interval", "0.2")


def test_a_job_that_does_not_exist_is_refused(shell: Shell) -> None:
    assert "UNKNOWN_JOB" in shell("top", "nobody", status=1)
    assert "'x' is not one of 'name', 'open'" in shell("top", "--sort", "x", status=2)
    assert "Check that it is running" in shell("top", "--server", "127.0.0.1:1", "--retry-for", "0", status=3)


@pytest.mark.slow  # it has failed once on a busy machine after the last resize, without its list: not explained yet
def test_on_a_terminal_it_is_live_until_q(client: TrackerClient, job: str, shell: Shell) -> None:
    other = f"{job}-other"
    client.define_job(spec(other))
    fill(client, job)
    with Terminal(shell, "top", job, "--interval", "0.2", "--sort", "name") as terminal:
        terminal.await_screen(lambda text: f"> {job} " in text and "3 open substreams wait for" in text)
        report = client.producer(job, "q", "r1").epoch(1)
        report.sent("raw", "JFK", "later", label("z"), end_time=96)
        report.report(commit=True)
        terminal.await_screen(lambda text: "4 open substreams wait for" in text)
        terminal.press("\x1b[B")
        terminal.await_screen(lambda text: f"> {other} " in text and f"{other}, deployment d1: nothing is open" in text)
        client.delete_job(other)
        terminal.await_screen(lambda text: f"{other} " not in text)
        terminal.press("i")
        terminal.await_screen(lambda text: "> " in text)
        terminal.resize(40, 16)
        text = terminal.await_screen(lambda text: "EPOCHS/S" not in text and "IN FLIGHT" in text)
        assert max(map(len, text.splitlines())) <= 40
        terminal.press("q")
        assert terminal.finish() == 0
        assert terminal.is_as_before()
        assert terminal.written.rfind(b"\x1b[?1049l") > terminal.written.rfind(b"\x1b[?1049h"), (
            "the screen before is back"
        )


@pytest.mark.thorough
def test_the_last_look_stays_while_the_tracker_is_away(server: Server) -> None:
    with TrackerClient(server.address) as client:
        fill(client, "flights")
    shell = Shell(server.address)
    with Terminal(shell, "top", "--interval", "0.2", "--retry-for", "0") as terminal:
        terminal.await_screen(lambda text: "> flights" in text)
        server.kill()
        text = terminal.await_screen(lambda text: "no answer since" in text)
        assert "> flights" in text
        assert terminal.colours("no answer since") == {"red"}
        server.start()
        terminal.await_screen(lambda text: "no answer since" not in text and "> flights" in text)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.finish() == 143
        assert terminal.is_as_before()


@pytest.mark.parametrize(("variables", "colour"), [({}, "yellow"), ({"NO_COLOR": "1"}, "default")])
def test_colour_marks_what_is_amiss_unless_none_is_wanted(
    client: TrackerClient, job: str, shell: Shell, variables: dict[str, Any], colour: str
) -> None:
    fill(client, job)
    with Terminal(shell, "top", job, "--interval", "0.2", **variables) as terminal:
        terminal.await_screen(lambda text: "silent: till (never promised)" in text)
        assert terminal.colours("silent: till") == {colour}
        terminal.press("\x03")
        assert terminal.finish() == 130
        assert terminal.is_as_before()


def test_a_dumb_terminal_gets_one_answer(client: TrackerClient, job: str, shell: Shell) -> None:
    fill(client, job)
    with Terminal(shell, "top", job, "--interval", "0.2", TERM="dumb") as terminal:
        assert terminal.finish() == 0
        assert b"\x1b" not in terminal.written
        assert f"> {job} ".encode() in terminal.written
