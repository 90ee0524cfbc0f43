"""A schedule's counts at the tracker, over restarts and deployments: with a real tracker, and without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from pickle import dumps, loads
from typing import Any, TypeAlias

import pytest

from spark_client import Counts, Schedule, TrackingError, UsageError
from spark_client.counting.given_counts import RecordedCounts, forget_shared
from spark_client.counting.runs import Run
from spark_client.fronts.front import SourceRows
from spark_client.storage.directories import read_json
from spark_client.storage.folder import Folder
from spark_client.windows.fixed import Fixed
from tests.client.processes import Server
from tracker.client import DrainState, JobSpec, TrackerClient

RULE = Fixed(3_600_000_000, scope="tenant")
COUNTS = [("a", 0, 3), ("b", 0, 4), ("silent", 0, 2), ("later", 1, 1)]

Given: TypeAlias = Callable[[list[tuple[str, int, int]]], Schedule]


class NoRows:
    """A stand-in for the source's DataFrame, of which times given as datetimes need nothing."""

    sparkSession = None  # noqa: N815


class Source:
    """One source of a job: its runs, and what the tracker knows of it."""

    def __init__(
        self, address: str, job: str, path: Path, segment: str = "in", segments: Sequence[str] = ("in",)
    ) -> None:
        self.segment = segment
        self.segments = segments
        self.client = TrackerClient(address)
        self.job = job
        self.path = path
        self.epoch = 0
        self.runs = 0

    def begin(self, deployment: str, schedule: Schedule) -> Run:
        """Start the query, as far as the tracker sees it."""
        fronts = {each: [each] for each in self.segments}
        self.client.define_job(
            JobSpec(job=self.job, deployment=deployment, segments={each: [] for each in self.segments}, fronts=fronts)
        )
        bind(schedule, self.segment)
        self.front = schedule.live(NoRows.sparkSession)  # type: ignore[arg-type]
        return self.start()

    def start(self) -> Run:
        """Start the query, with the front as it is."""
        self.runs += 1
        run = Run(self.client, self.job, "query", f"{self.segment}{self.runs}", self.epoch)
        self.front.look(Folder("."), None, at_once=True)
        self.front.begin(RecordedCounts(Folder(self.path), Folder(self.path), run, self.segment))
        run.announce(self.front)
        return run

    def send(self, run: Run, **rows: int) -> None:
        """Send a batch with rows of the first hour, by tenant."""
        report = run.report(self.epoch)
        for tenant, number in rows.items():
            end = at(1)
            report.add("in", tenant, RULE.window_name(end), 0, sent=number, received=number, end_time=end)
        run.send(report, self.epoch)
        run.committed(self.epoch)
        self.epoch += 1

    def drain(self, deployment: str) -> None:
        self.client.drain(self.job, deployment, deployment)
        self.client.finish_front(self.job, "in")
        assert self.accounts() == {}

    def hand_over(self, deployment: str, run: Run) -> None:
        self.client.drain(self.job, deployment, deployment, hand_over=True)
        run.close(self.epoch)
        assert self.client.job(self.job).drain.state is DrainState.DRAINED

    def accounts(self) -> dict[tuple[str, int], tuple[int | None, int]]:
        """Return the expected and the sent elements of what is open, by tenant and hour."""
        return {
            (status.scope, datetime.fromisoformat(status.name.split("/")[0]).hour): (account.expected, account.sent)
            for status in self.client.substreams(self.job)
            for account in status.segments
        }


def bind(schedule: Schedule, segment: str = "in") -> None:
    nothing: Any = None
    schedule.bind(SourceRows(segment, NoRows, RULE, nothing, nothing, None))  # type: ignore[arg-type]


def at(hour: int) -> int:
    return (1_704_067_200 + hour * 3600) * 1_000_000


def rows(counts: list[tuple[str, int, int]]) -> list[tuple[str, datetime, int]]:
    return [(tenant, datetime(2024, 1, 1, hour, tzinfo=UTC), count) for tenant, hour, count in counts]


@pytest.fixture
def source(tracker: Server, job: str, tmp_path: Path) -> Source:
    return Source(tracker.address, job, tmp_path / "counts")


def test_a_table_given_again_means_only_what_is_missing(source: Source) -> None:
    run = source.begin("1", Schedule(rows(COUNTS)))
    source.send(run, a=3, b=1)
    left = {("b", 0): (4, 1), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    assert source.accounts() == left
    source.begin("1", Schedule(rows(COUNTS)))
    assert source.accounts() == left, "a restart changes nothing"
    source.drain("1")
    source.begin("1", Schedule(rows(COUNTS)))  # a driver that died in the drain
    assert source.accounts() == {}
    run = source.begin("2", Schedule(rows(COUNTS)))
    assert source.accounts() == {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    source.send(run, b=1, silent=2)
    source.drain("2")
    run = source.begin("3", Schedule(rows(COUNTS)))
    assert source.accounts() == {("b", 0): (2, 0), ("later", 1): (1, 0)}
    source.send(run, b=2)
    source.drain("3")
    source.begin("4", Schedule(rows([("a", 0, 3), ("b", 0, 4), ("new", 5, 1)])))
    assert source.accounts() == {("new", 5): (1, 0)}


def by_table(counts: list[tuple[str, int, int]]) -> Schedule:
    return Schedule(rows(counts))


def by_function(counts: list[tuple[str, int, int]]) -> Schedule:
    return Schedule(lambda: rows(counts), revise=True, refresh=0.000_001)


@pytest.mark.parametrize("given", [by_table, by_function])
@pytest.mark.parametrize("handed_over", [False, True])
def test_counts_survive_a_deployment_that_takes_over_and_its_drain(
    source: Source, given: Given, handed_over: bool
) -> None:
    run = source.begin("1", given(COUNTS))
    source.send(run, a=3, b=1)
    if handed_over:
        source.hand_over("1", run)
    source.begin("2", given(COUNTS))
    left = {("b", 0): (4, 1), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    assert source.accounts() == left, "it goes on with what is open"
    source.drain("2")
    run = source.begin("3", given(COUNTS))
    left = {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    assert source.accounts() == left, "what the drain has closed, and nothing else"
    source.send(run, b=1)
    source.begin("4", given(COUNTS))
    assert source.accounts() == left | {("b", 0): (3, 1)}
    source.begin("4", given(COUNTS))
    source.drain("4")
    run = source.begin("5", given(COUNTS))
    assert source.accounts() == left | {("b", 0): (2, 0)}, "both drains count"
    source.send(run, b=2)
    assert ("b", 0) not in source.accounts()
    source.begin("6", given(COUNTS))
    source.drain("6")
    source.begin("7", given(COUNTS))
    assert source.accounts() == {("silent", 0): (2, 0), ("later", 1): (1, 0)}


def test_a_count_is_revised_by_a_deployment_that_takes_over(source: Source) -> None:
    run = source.begin("1", by_function([("a", 0, 3)]))
    source.send(run, a=2)
    run = source.begin("2", by_function([("a", 0, 5)]))
    source.send(run, a=1)
    assert source.accounts() == {("a", 0): (5, 3)}


def test_counts_of_a_driver_that_died_are_sent_by_the_next_deployment(
    source: Source,
) -> None:
    run = source.begin("1", Schedule())
    schedule = by_table(COUNTS)
    bind(schedule)
    front = schedule.live(NoRows.sparkSession)  # type: ignore[arg-type]
    front.begin(RecordedCounts(Folder(source.path), Folder(source.path), run, "in"))
    assert front.due(), "it dies here"
    source.begin("2", by_table(COUNTS))
    assert source.accounts() == {("a", 0): (3, 0), ("b", 0): (4, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}


def test_counts_excluded_before_are_refused_in_the_next_deployment(source: Source) -> None:
    source.begin("1", by_table(COUNTS))
    with pytest.raises(UsageError, match=r"are given only now.*deployment after the next drain"):
        source.begin("2", by_table([*COUNTS, ("x", 0, 1)]))


def test_a_checkpoint_of_before_goes_on(source: Source) -> None:
    """The checkpoint's files have no record of the drains between their deployments."""
    run = source.begin("1", by_table(COUNTS))
    source.send(run, a=3, b=1)
    _as_before(source.path)
    source.begin("2", by_table(COUNTS))
    source.drain("2")
    _as_before(source.path)
    run = source.begin("3", by_table(COUNTS))
    assert source.accounts() == {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    _as_before(source.path)
    source.begin("3", by_table(COUNTS))  # what it learns of a file that is its own, it writes down
    source.begin("4", by_function([*COUNTS[:-1], ("later", 1, 2)]))
    assert source.accounts() == {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (2, 0)}


def _as_before(path: Path) -> None:
    """Leave the files of version 0.2: one for each deployment, with a line for each value."""
    for number in {file.name[:6] for file in path.glob("[0-9]*.json")}:
        files = sorted(path.glob(f"{number}*"))
        values = [value for file in files if file.suffix == ".json" for value in read_json(file)]
        for file in files:
            file.unlink()
        lines = [json.dumps(value) for value in values if not isinstance(value, int)]
        (path / f"{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")


def test_what_no_table_names_any_more_is_forgotten(source: Source) -> None:
    for number in range(1, 6):
        run = source.begin(str(number), Schedule(rows([("a", number, 2), ("b", number, 2)])))
        source.drain(str(number))
        run.close(source.epoch)
    assert len({file.name[:6] for file in source.path.glob("[0-9]*")}) == 1
    assert read_json(source.path / "drained.json").keys() <= {"3", "4", "5"}


@pytest.mark.parametrize("given", [by_table, by_function])
def test_a_query_that_starts_again_in_one_tracking_forgets_no_deployment(source: Source, given: Given) -> None:
    run = source.begin("1", given(COUNTS))
    source.send(run, a=3, b=1)
    source.drain("1")
    schedule = given(COUNTS)
    source.begin("2", schedule)
    left = {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}
    source.begin("2", schedule)
    assert source.accounts() == left
    source.begin("2", given(COUNTS))
    assert source.accounts() == left, "the next process still has the first deployment's file"


def test_a_start_that_finds_no_counts_forgets_no_deployment(source: Source) -> None:
    run = source.begin("1", by_function(COUNTS))
    source.send(run, a=3, b=1)
    source.drain("1")
    source.begin("2", by_function([]))
    source.begin("2", by_function(COUNTS))
    assert source.accounts() == {("b", 0): (3, 0), ("silent", 0): (2, 0), ("later", 1): (1, 0)}


@pytest.mark.parametrize("of_before", [False, True])
def test_each_source_of_a_query_finds_what_a_drain_has_closed(
    tracker: Server, job: str, tmp_path: Path, of_before: bool
) -> None:
    sources = {name: Source(tracker.address, job, tmp_path / name, name, ["x", "y"]) for name in ("x", "y")}
    for each in sources.values():
        run = each.begin("1", by_table([("a", 0, 4)]))
    report = run.report(0)
    for name in sources:
        report.add(name, "a", RULE.window_name(at(1)), 0, sent=1, received=1, end_time=at(1))
    run.send(report, 0)
    run.committed(0)
    client = sources["x"].client
    if of_before:  # both sources had one subscription, with the filter of the second
        run.news.subscribe(run.place, ["y"], None, name="query/counts")
        for name in sources:
            client.unsubscribe(job, f"query/counts/{name}")
    client.drain(job, "1", "1")
    for name in sources:
        client.finish_front(job, name)
    for each in sources.values():
        each.epoch = 1
        run = each.begin("2", by_table([("a", 0, 4)]))
    found = {account.segment: account.expected for each in client.substreams(job) for account in each.segments}
    assert found == {"x": 3, "y": 3}
    forget_shared(run)
    assert [each.name for each in client.subscriptions(job)] == ["query/counts/x", "query/counts/y"]


def test_what_a_complete_table_left_out_goes_to_the_next_deployment(source: Source) -> None:
    source.begin("1", Schedule(rows(COUNTS)))
    with pytest.raises(UsageError, match=r"are given only now.*give them to the deployment after the next drain"):
        source.begin("1", Schedule(rows([*COUNTS, ("x", 0, 1)])))
    source.begin("1", Schedule(rows([*COUNTS, ("y", 5, 1)])))  # it is later than all that was complete
    assert source.accounts()["y", 5] == (1, 0)
    source.drain("1")
    source.begin("2", Schedule(rows([*COUNTS, ("x", 0, 1)])))
    assert source.accounts()["x", 0] == (1, 0)


def test_a_function_is_asked_again_and_held_to_its_word(source: Source) -> None:
    given: Any = rows([("f", 1, 3)])
    schedule = Schedule(lambda: given, refresh=0.000_001)
    run = source.begin("1", schedule)
    assert source.accounts() == {("f", 1): (3, 0)}
    given = Counts([*given, *rows([("g", 2, 1)])], through=datetime(2024, 1, 1, 3, tzinfo=UTC))
    source.front.look(Folder("."), None)
    run.announce(source.front)
    assert source.accounts() == {("f", 1): (3, 0), ("g", 2): (1, 0)}
    assert source.client.job(source.job).fronts[0].frontiers == {"*": at(4)}
    given = rows([("f", 1, 2), ("g", 2, 1)])
    source.front.look(Folder("."), None)
    with pytest.raises(TrackingError, match=r"EXPECT_CONFLICT.*Schedule\(…, revise=True\)"):
        run.announce(source.front)
    revising = Schedule(lambda: given, revise=True, refresh=0.000_001)
    run = source.begin("1", revising)
    front = source.front
    assert source.accounts()["f", 1] == (2, 0)
    given = [*given, *rows([("late", 3, 1)])]
    with pytest.raises(UsageError, match="are given only now"):
        source.begin("1", Schedule(lambda: given))
    given = rows([])
    front.look(Folder("."), None)
    run.announce(front)
    assert source.accounts()["f", 1] == (2, 0), "what it has given once stands"


def test_a_count_that_is_refused_changes_nothing(source: Source) -> None:
    run = source.begin("1", Schedule())
    front = source.front
    front.expect(run, rows([("a", 0, 3)]))
    with pytest.raises(TrackingError, match="EXPECT_CONFLICT"):
        front.expect(run, rows([("c", 0, 1), ("a", 0, 2)]), through=datetime(2024, 1, 1, 5, tzinfo=UTC))
    run.announce(front)  # as the thread that follows the query does
    front.expect(run, rows([("b", 0, 2)]))
    front.expect(run, rows([("b", 0, 1)]), revise=True)
    assert source.accounts() == {("a", 0): (3, 0), ("b", 0): (1, 0)}
    assert source.client.job(source.job).fronts[0].frontiers == {}


def test_counts_that_a_batch_under_way_holds_up_follow_in_their_order(source: Source) -> None:
    run = source.begin("1", Schedule())
    front = source.front
    run.send(run.report(0), 0)
    front.expect(run, rows([("a", 0, 3)]))
    front.expect(run, rows([("a", 0, 4)]), revise=True)
    run.committed(0)
    run.announce(front)
    assert source.accounts() == {("a", 0): (4, 0)}


def test_counts_for_a_query_that_has_ended_are_refused(source: Source) -> None:
    run = source.begin("1", Schedule())
    front = source.front
    run.close(0)
    with pytest.raises(TrackingError, match=r"the query that reads 'in' has ended.*give them again"):
        front.expect(run, rows([("a", 0, 3)]))
    again = source.start()
    assert source.accounts() == {}, "whoever gave them gives them again"
    front.expect(again, rows([("a", 0, 3)]))
    assert source.accounts() == {("a", 0): (3, 0)}


def test_counts_given_before_a_query_starts_go_with_each_start(source: Source) -> None:
    schedule = Schedule()
    bind(schedule)
    schedule.live(NoRows.sparkSession).expect(None, rows([("a", 0, 3)]))  # type: ignore[arg-type]
    run = source.begin("1", loads(dumps(schedule)))
    assert source.accounts() == {("a", 0): (3, 0)}
    run = source.begin("1", schedule)
    source.front.expect(run, rows([("a", 0, 4)]), revise=True)
    source.begin("1", schedule)
    assert source.accounts() == {("a", 0): (4, 0)}


def test_another_count_of_what_has_ended_stops_nothing_else(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    """An ended load is counted anew at each start, and may have been rewritten, or removed in part, since."""
    given = rows([("a", 0, 3), ("b", 0, 4)])

    def counting(revise: bool = False) -> Schedule:
        return Schedule(lambda: given, revise=revise, refresh=0.000_001)

    run = source.begin("1", counting())
    source.send(run, a=3, b=1)
    assert source.accounts() == {("b", 0): (4, 1)}
    given = rows([("a", 0, 2), ("b", 0, 4), ("c", 0, 5)])
    with caplog.at_level(logging.WARNING, "spark_client"):
        for run in (source.begin("1", counting()), source.begin("1", counting(revise=True))):
            assert source.accounts() == {("b", 0): (4, 1), ("c", 0): (5, 0)}
            source.front.look(Folder("."), None)
            run.announce(source.front)
    assert caplog.text.count("of scope 'a' has ended with 3 and is counted as 2 now") == 2, "once in each run"
    given = rows([("a", 0, 1), ("b", 0, 5), ("d", 0, 5)])
    source.front.look(Folder("."), None)
    run.announce(source.front)
    assert source.accounts()["b", 0] == (5, 1), "what is open may still be revised"
    with pytest.raises(TrackingError, match=r"EXPECT_CONFLICT.*While it is open"):
        source.begin("1", Schedule(lambda: rows([("a", 0, 1), ("b", 0, 6)])))
