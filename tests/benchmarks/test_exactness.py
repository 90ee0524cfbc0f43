"""The exactness table: a generator by published rules, a truth that is a batch's, a judge that finds each damage."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.exactness import faults, nexmark, peers, report
from benchmarks.exactness.engine import Engine, UnavailableError
from benchmarks.exactness.in_lake import InLake
from benchmarks.exactness.judge import Emitted, Verdict, judge
from benchmarks.exactness.queries import GAP, LENGTH, QUERIES, SLIDE, Key, Result
from benchmarks.exactness.tracked import Tracked
from benchmarks.exactness.workload import MINUTE, START, Plan, Row, Site, Workload, make, usual

EVENTS = list(nexmark.events(3, 20_000))
BIDS = [event for event in EVENTS if event.kind == "bid"]


@pytest.fixture(scope="module")
def workload() -> Workload:
    return make(usual(40))


# ---------------------------------------------------------------- the generator


def test_fifty_events_are_one_person_three_auctions_and_else_bids() -> None:
    assert Counter(event.kind for event in EVENTS) == {"person": 400, "auction": 1200, "bid": 18_400}
    kinds = [event.kind for event in EVENTS[50:100]]
    assert kinds == ["person", *["auction"] * 3, *["bid"] * 46]


def test_ids_of_persons_and_auctions_are_consecutive_from_1000() -> None:
    assert [event.person for event in EVENTS if event.kind == "person"] == list(range(1000, 1400))
    assert [event.auction for event in EVENTS if event.kind == "auction"] == list(range(1000, 2200))


def test_half_of_the_bids_are_for_the_hot_auction() -> None:
    """The hot auction is the first of the newest hundred, the hot bidder the second; some meet them by chance."""
    hot = sum((bid.auction - 1000) == nexmark.last_auction(bid.number) // 100 * 100 for bid in BIDS)
    assert 0.49 < hot / len(BIDS) < 0.53
    hot = sum((bid.person - 1000) == nexmark.last_person(bid.number) // 100 * 100 + 1 for bid in BIDS)
    assert 0.74 < hot / len(BIDS) < 0.78


def test_other_bids_are_for_auctions_in_flight_or_not_yet_there() -> None:
    for bid in BIDS:
        newest = nexmark.last_auction(bid.number)
        assert min(newest - 100, newest // 100 * 100) <= bid.auction - 1000 <= newest + 10
    assert any(bid.auction - 1000 > nexmark.last_auction(bid.number) for bid in BIDS)


def test_prices_are_even_on_a_logarithmic_scale() -> None:
    decades = Counter(len(str(bid.price // 100)) for bid in BIDS)
    assert set(decades) <= {1, 2, 3, 4, 5, 6, 7}
    assert all(0.15 < decades[decade] / len(BIDS) < 0.18 for decade in range(1, 7))


def test_events_of_a_group_are_out_of_order_and_groups_are_not() -> None:
    times = nexmark.Clock().times(3_600_000)
    groups = [times[start : start + 20] for start in range(0, len(times), 20)]
    assert all(group != sorted(group) for group in groups)
    assert [time for group in groups for time in sorted(group)] == sorted(times)
    assert len(set(times)) == len(times)


def test_a_seed_gives_the_same_rows_and_another_one_others() -> None:
    assert make(usual(20)) == make(usual(20))
    assert make(usual(20)).rows != make(usual(20, seed=8)).rows


# ---------------------------------------------------------------- the arrival


def test_rows_come_in_steps_in_the_order_of_their_arrival(workload: Workload) -> None:
    assert [row.arrives for row in workload.rows] == sorted(row.arrives for row in workload.rows)
    for step in workload.steps:
        assert all(step.until - 2 * MINUTE <= row.arrives < step.until for row in step.rows)
    assert not any(step.rows for step in workload.steps[-8:])


def test_rows_are_late_and_the_site_that_was_cut_off_is_latest(workload: Workload) -> None:
    late: dict[str, list[float]] = defaultdict(list)
    for row in workload.rows:
        late[row.tenant].append((row.arrives - row.at) / MINUTE)
    for tenant in ("north", "south", "west"):
        assert min(late[tenant]) >= 0
        assert 2 < max(late[tenant]) <= 3
        assert 0.07 < sum(each > 0.05 for each in late[tenant]) / len(late[tenant]) < 0.13
    assert 10 < max(late["east"]) < 14


def test_the_closed_site_has_no_rows_and_its_partition_is_idle(workload: Workload) -> None:
    times = sorted(row.at for row in workload.rows if row.part == 3)
    pause = max(later - earlier for earlier, later in pairwise(times))
    assert pause >= 12 * MINUTE
    assert {row.tenant for row in workload.rows if row.part == 3} == {"west"}


def test_there_are_bursts(workload: Workload) -> None:
    minutes = Counter((row.at - START) // MINUTE for row in workload.rows if row.tenant == "north")
    assert max(minutes.values()) > 2.5 * min(minutes.values())


def test_counts_are_those_of_the_rows_and_come_after_their_minute(workload: Workload) -> None:
    counts = [count for step in workload.steps for count in step.counts]
    rows = Counter((row.tenant, row.at // MINUTE * MINUTE) for row in workload.rows)
    assert {(each.tenant, each.minute): each.rows for each in counts if each.rows} == rows
    assert all(each.arrives >= each.minute + MINUTE for each in counts)
    away = [each for each in counts if each.tenant == "east" and 10 <= (each.minute - START) // MINUTE < 19]
    assert all(each.arrives >= START + 20 * MINUTE for each in away)
    assert workload.steps[-1].complete >= START + 40 * MINUTE


def test_a_partition_that_lags_is_read_later() -> None:
    sites = (Site("north", (0, 1)),)
    usually, lagging = (make(Plan("lag", 20, sites, lag=lag)) for lag in ({}, {1: 15}))
    behind = {row.number: row.arrives for row in lagging.rows}
    assert all(behind[row.number] - row.arrives == (15 * MINUTE if row.part else 0) for row in usually.rows)


def plan_of(fault: str) -> Plan:
    return next(case.plan for case in faults.CASES if case.plan.name == fault)


@pytest.mark.parametrize("case", faults.CASES, ids=lambda case: case.plan.name)
def test_a_delay_of_40_minutes_could_end_every_window_that_is_measured(case: faults.Case) -> None:
    if case.long:
        workload = make(case.plan)
        measured = case.plan.begins + (case.plan.due or 0) * MINUTE
        assert max(row.at for row in workload.rows) >= measured + case.long * MINUTE


def test_one_bid_of_a_fast_clock_is_ahead() -> None:
    rows = make(plan_of("a fast clock")).rows
    (ahead,) = [row for row in rows if row.at > row.arrives]
    assert (ahead.kind, ahead.tenant, (ahead.at - ahead.arrives) // MINUTE) == ("bid", "north", 359)
    assert all(row.arrives - row.at < MINUTE for row in rows if row is not ahead)


def test_a_plan_that_is_moved_to_now_has_the_same_windows() -> None:
    plan = plan_of("a fast clock")
    moved = replace(plan, begins=plan.begins + 3 * LENGTH)
    truth, others = (QUERIES["tumbling"](make(each).rows) for each in (plan, moved))
    assert [each.value for each in truth.values()] == [each.value for each in others.values()]
    assert [key.begin + 3 * LENGTH for key in truth] == [key.begin for key in others]


def test_an_uploader_sends_at_once_and_marks_its_last_rows() -> None:
    rows = make(plan_of("a late uploader")).rows
    assert {(row.part, row.arrives - row.at // LENGTH * LENGTH - LENGTH) for row in rows} == {
        (0, MINUTE),
        (1, MINUTE),
        (2, 14 * MINUTE),
    }
    marks = Counter((row.tenant, row.part, row.at // LENGTH) for row in rows if row.last)
    assert marks.keys() == {(row.tenant, row.part, row.at // LENGTH) for row in rows}
    assert {*marks.values()} == {1}


def test_what_a_site_has_kept_may_come_later_than_it_is_back() -> None:
    rows = [row for row in make(plan_of("an outage and a deadline")).rows if row.tenant == "east"]
    kept = [row for row in rows if row.arrives - row.at > MINUTE]
    assert {(row.at - START) // MINUTE for row in kept} == {12, 13, 14, 15}
    assert all(row.arrives >= START + 50 * MINUTE for row in kept)


def test_rows_of_a_period_have_one_time_and_come_in_order() -> None:
    workload = make(plan_of("one instant in several batches"))
    times = [row.at for row in workload.rows]
    assert times == sorted(times)
    assert {(time + 1 - START) % (5 * MINUTE) for time in times} == {0}
    assert all(row.arrives > row.at for row in workload.rows)
    steps: dict[int, set[int]] = defaultdict(set)
    for step in workload.steps:
        for row in step.rows:
            steps[row.at].add(step.number)
    assert min(len(each) for each in list(steps.values())[:-1]) >= 3


# ---------------------------------------------------------------- the truth


def of_pandas(query: str, rows: list[Row]) -> dict[Key, tuple[int, int, int]]:
    """Compute the same query by pandas, in another way."""
    table = pd.DataFrame([vars(row) for row in rows])
    bids = table[table["kind"] == "bid"].copy()
    bids["begin"] = bids["at"] - bids["at"] % LENGTH
    bids["entity"] = 0 if query == "tumbling" else bids["person" if query == "session" else "auction"]
    if query == "sliding":
        first = bids["at"] - bids["at"] % SLIDE
        bids = pd.concat([bids.assign(begin=first), bids.assign(begin=first - SLIDE)])
    if query == "join":
        began = table[table["kind"] == "auction"].assign(begin=lambda own: own["at"] - own["at"] % LENGTH)
        bids = bids.merge(began[["tenant", "auction", "begin"]], on=["tenant", "auction", "begin"])
    bids["end"] = bids["begin"] + LENGTH
    if query == "session":
        bids = bids.sort_values("at")
        pause = bids.groupby(["tenant", "entity"])["at"].diff() >= GAP
        bids["session"] = pause.groupby([bids["tenant"], bids["entity"]]).cumsum()
        sessions = bids.groupby(["tenant", "entity", "session"])["at"]
        bids["begin"], bids["end"] = sessions.transform("min"), sessions.transform("max") + GAP
    grouped = bids.groupby(["tenant", "entity", "begin", "end"])["price"].agg(["size", "sum", "max"])
    return {Key(*key): (int(n), int(total), int(most)) for key, n, total, most in grouped.itertuples()}


@pytest.mark.parametrize("query", QUERIES)
def test_the_truth_is_what_another_batch_makes(query: str, workload: Workload) -> None:
    truth = QUERIES[query](workload.rows)
    assert len(truth) > 10
    assert {key: result.value for key, result in truth.items()} == of_pandas(query, workload.rows)


@pytest.mark.parametrize("query", QUERIES)
def test_a_result_is_complete_after_its_time_and_its_last_row(query: str, workload: Workload) -> None:
    truth = QUERIES[query](workload.rows)
    assert all(result.complete >= key.end for key, result in truth.items())
    for part in (0.5, 0.8):
        until = workload.steps[int(len(workload.steps) * part)].until
        known = QUERIES[query](row for row in workload.rows if row.arrives < until)
        complete = {key: result.value for key, result in truth.items() if result.complete < until}
        assert complete
        assert all(known[key].value == value for key, value in complete.items())


# ---------------------------------------------------------------- the judge


def judged(workload: Workload, truth: dict[Key, Result], emitted: list[Emitted]) -> Verdict:
    return judge(truth, emitted, workload.steps)


def perfect(workload: Workload, truth: dict[Key, Result]) -> list[Emitted]:
    """Return each result in the step in which it is complete."""
    return [
        Emitted(next(step.number for step in workload.steps if step.until > each.complete), key, each.value)
        for key, each in truth.items()
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_results_that_are_right_are_found_right(query: str, workload: Workload) -> None:
    truth = QUERIES[query](workload.rows)
    verdict = judged(workload, truth, perfect(workload, truth))
    assert verdict.exact
    assert 0 < verdict.delays[0] <= verdict.delays[-1] <= 2


@pytest.mark.parametrize("query", QUERIES)
def test_each_damage_is_found(query: str, workload: Workload) -> None:
    truth = QUERIES[query](workload.rows)
    good = perfect(workload, truth)
    all_of = len(truth)
    bids, volume, highest = good[3].value

    missing = judged(workload, truth, good[1:])
    assert (missing.right, missing.never, missing.exact) == (all_of - 1, 1, False)
    doubled = judged(workload, truth, [*good, replace(good[0], step=good[0].step + 1)])
    assert (doubled.right, doubled.doubled, doubled.exact) == (all_of - 1, 1, False)
    fewer = judged(workload, truth, [*good[:3], replace(good[3], value=(bids - 1, volume, highest)), *good[4:]])
    assert (fewer.right, fewer.wrong, fewer.lost, fewer.exact) == (all_of - 1, 1, 1, False)
    other = judged(workload, truth, [*good[:3], replace(good[3], value=(bids, volume + 1, highest)), *good[4:]])
    assert (other.right, other.wrong, other.lost) == (all_of - 1, 1, 0)
    early = judged(workload, truth, [*good, replace(good[3], value=(bids, volume + 1, highest))])
    assert (early.right, early.wrong, early.doubled) == (all_of - 1, 1, 1)
    invented = judged(workload, truth, [*good, replace(good[0], key=Key("nobody", 0, 0, 1))])
    assert (invented.right, invented.extra, invented.exact) == (all_of, 1, False)
    nothing = judged(workload, truth, [])
    assert (nothing.right, nothing.never, nothing.exact) == (0, all_of, False)
    assert not judged(workload, {}, []).exact


def test_rows_of_windows_that_will_not_come_are_lost(
    workload: Workload,
) -> None:
    truth = QUERIES["tumbling"](workload.rows)
    good = [each for each in perfect(workload, truth) if each.key.tenant == "north"]
    truth = {each.key: truth[each.key] for each in good}
    first, last = (pick(good, key=lambda each: each.key.end) for pick in (min, max))
    dropped = judged(workload, truth, [each for each in good if each is not first])
    assert (dropped.never, dropped.dropped, dropped.lost) == (1, 1, first.value[0])
    open_still = judged(workload, truth, [each for each in good if each is not last])
    assert (open_still.never, open_still.dropped, open_still.lost) == (1, 0, 0)


def test_a_window_that_is_marked_as_incomplete_is_neither_right_nor_wrong(workload: Workload) -> None:
    truth = QUERIES["tumbling"](workload.rows)
    good = perfect(workload, truth)
    bids, volume, highest = good[3].value
    fewer = replace(good[3], value=(bids - 1, volume, highest), marked=True)
    verdict = judged(workload, truth, [*good[:3], fewer, *good[4:]])
    assert (verdict.right, verdict.wrong, verdict.lost) == (len(truth) - 1, 0, 0)
    assert (verdict.marked, verdict.never, verdict.exact) == (1, 0, False)
    assert 0 <= verdict.marked_delays[0] <= 5
    assert judged(workload, truth, [replace(each, marked=True) for each in good]).exact


def test_delays_are_from_the_moment_a_result_is_complete(workload: Workload) -> None:
    truth = QUERIES["tumbling"](workload.rows)
    late = [replace(each, step=each.step + 2) for each in perfect(workload, truth)]
    verdict = judged(workload, truth, late)
    assert verdict.exact
    assert 4 < verdict.delays[0] <= verdict.delays[-1] <= 6


def test_a_session_that_came_in_two_parts_is_wrong_and_lacks_nothing(workload: Workload) -> None:
    truth = QUERIES["session"](workload.rows)
    key, result = next((key, each) for key, each in truth.items() if each.value[0] >= 2)
    half = (key.begin + key.end) // 2
    parts = [
        Emitted(0, replace(key, end=half), (1, 1, 1)),
        Emitted(0, replace(key, begin=half), (result.value[0] - 1, 1, 1)),
    ]
    verdict = judged(workload, {key: result}, parts)
    assert (verdict.right, verdict.wrong, verdict.doubled, verdict.lost, verdict.extra) == (0, 1, 0, 0, 0)


# ---------------------------------------------------------------- engines


def run(engine: Engine, workload: Workload, queries: list[str], directory: Path) -> dict[str, Verdict]:
    runs = engine.run(workload, queries, directory, lambda _: None)
    return {query: judged(workload, QUERIES[query](workload.rows), runs[query].emitted) for query in queries}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), [("ours", Tracked()), ("lake", InLake())])
def test_the_tracker_with_counts_is_exact_although_a_site_is_cut_off(
    name: str, engine: Tracked, tmp_path: Path
) -> None:
    """In a process of its own, since the run has a Spark session of its own."""
    command = [sys.executable, "-m", "benchmarks.exactness", "--engines", name, "--parts", "shared"]
    command += ["--minutes", "12", "--queries", "tumbling", "--json", str(tmp_path / "figures.json")]
    ran = subprocess.run([*command, "--promises", "counts"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (line,) = report.Data(tmp_path / "figures.json").lines
    assert (line.engine, line.query) == (engine.name, "tumbling")
    assert line.windows == line.right == 8
    assert (line.wrong, line.never, line.doubled, line.lost, line.aside) == (0, 0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [peers.flink(60, 5), peers.beam(60), peers.bytewax(60), peers.streams(60)],
    ids=lambda each: each.environment,
)
def test_peers_are_right_where_nothing_is_late_for_them(engine: peers.Peer, tmp_path: Path) -> None:
    """So what the table has of them is theirs, and not a fault of these programs."""
    sites = (Site("north", (0, 1)), Site("south", (1, 2)))
    workload = make(Plan("calm", 40, sites, quiet=100))
    try:
        verdicts = run(replace(engine, options={**engine.options, "delay": 5}), workload, list(QUERIES), tmp_path)
    except UnavailableError as error:
        pytest.skip(str(error))
    for verdict in verdicts.values():
        assert (verdict.wrong, verdict.doubled, verdict.extra, verdict.lost) == (0, 0, 0, 0)
        assert verdict.right > 0


def test_an_engine_that_is_not_installed_says_how_to_install_it(workload: Workload, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="make exactness-peers"):
        replace(peers.bytewax(5), environment="nothing").run(workload, ["tumbling"], tmp_path, lambda _: None)


# ---------------------------------------------------------------- the table


def test_the_page_has_the_tables_of_its_data() -> None:
    data = report.Data(report.DATA)
    page = report.PAGE.read_text()
    assert report.rendered(page, data) == page, "python -m benchmarks.exactness --docs --take … writes it"
    named = report.named_tables(page)
    assert len(named) == len({*named}) >= 5
    assert {*named} >= {name for name in report.tables(data) if name.startswith("fault: ")}


def test_releases_with_counts_are_exact_in_the_published_table() -> None:
    published = report.Data(report.DATA).lines
    ours = {line.query: line for line in published if line.engine == Tracked().name and "share" in line.workload}
    assert ours.keys() == QUERIES.keys()
    for line in ours.values():
        assert (line.right, line.wrong) == (line.windows, 0)
        assert line.lost == line.never == line.doubled == 0


def test_the_tracker_with_counts_is_right_in_every_published_fault() -> None:
    published = report.Data(report.DATA).faults
    assert {each.fault for each in published} == {*faults.NAMES.values()}
    ours = {each.fault: each.windows for each in published if each.engine == Tracked().name}
    assert ours.keys() == {case.plan.name for case in faults.CASES}
    assert all(each and each.right == each.windows and not each.lost for each in ours.values())


def test_a_fault_is_a_cell_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    some = report.Windows("e", 12, 11, longest=2.0, marked=1, marked_after=20.0)
    found = [report.Fault("f", "e, 5", False, "", some), report.Fault("g", "e, 0", True, "", replace(some, right=12))]
    report.Data(path).take(faults=found)
    data = report.Data(path)
    assert data.faults == found
    assert report.tables(data)["faults"].splitlines()[0] == "| | f | g |"
    assert report.tables(data)["faults"].splitlines()[2].startswith("| e | 11/12 2.0 (1 marked, 20.0) |")


def test_figures_are_kept_and_replaced_by_name(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    line = report.Line("w", "e", "q", "c", 2, 1, 1, 0, 0, 0, 3, None, 1.5, 2.0)
    report.Data(path).take([line, replace(line, query="r")])
    report.Data(path).take([replace(line, right=2, wrong=0)])
    assert [(each.query, each.right) for each in report.Data(path).lines] == [("q", 2), ("r", 1)]
    assert json.loads(path.read_text())["lines"][0]["lost"] == 3
