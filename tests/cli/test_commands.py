"""The command `tracker`, as a person or a script uses it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.shell import Shell, split, table
from tests.client.conftest import spec
from tests.client.processes import TRACKER, Server
from tests.client.test_expecting import elements
from tracker.client import Expected, Finish, Stalled, TrackerClient, TrackerError, label
from tracker.client.certificates import certificate


@pytest.fixture
def flights(client: TrackerClient, job: str) -> Iterator[str]:
    """Yield a job with one substream that has ended, and one that has not."""
    client.define_job(spec(job, fronts=["schedule"]))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "JFK", "2013-01-01", label("a"), end_time=24)
    report.received("raw", "JFK", "2013-01-01", label("a"), end_time=24)
    report.sent("raw", "LGA", "2013-01-02", label("b"), end_time=48)
    report.frontier("schedule", 24)
    report.report(units=["a"], commit=True)
    yield job
    client.delete_job(job, force=True)


def test_jobs_and_one_job(shell: Shell, flights: str) -> None:
    [row] = [row for row in table(shell("jobs")) if row["JOB"] == flights]
    assert (row["DEPLOYMENT"], row["OPEN"], row["IN FLIGHT"], row["ENDED"]) == ("d1", "1", "1", "1")
    shown = shell("job", flights)
    assert "1 substreams, 1 elements in flight" in shown
    assert "schedule  running  *: 24" in shown
    status = json.loads(shell("job", flights, "--json"))
    assert status["spec"]["segments"] == {"raw": []}
    assert status["producers"][0]["committed_epoch"] == 0


def test_explain_says_what_is_in_flight_where_and_which_front_is_missing(shell: Shell, flights: str) -> None:
    told = shell("explain", flights, "LGA", "2013-01-02")
    assert "has not ended" in told
    assert "front 'schedule' (producer 'q'" in told
    assert "has promised up to 24, and the substream ends at 48" in told
    assert "segment 'raw': 1 in flight (1 sent, 0 received; last sent by 'q', last received by 'nobody')" in told
    assert "has ended" in shell("explain", flights, "JFK", "2013-01-01")
    assert json.loads(shell("explain", flights, "JFK", "2013-01-01", "--json"))["reasons"] == []


def test_explain_says_who_has_reported_and_not_committed(shell: Shell, client: TrackerClient, flights: str) -> None:
    staged = client.producer(flights, "q", "r1").epoch(1)
    staged.received("raw", "LGA", "2013-01-02", label("c"), end_time=48)
    staged.report(units=["a"])
    assert "producer 'q' has reported epoch 1 and not committed it" in shell("explain", flights, "LGA", "2013-01-02")
    client.producer(flights, "q", "r1").commit(1)
    assert "as many elements received as sent, but not the same ones" in shell("explain", flights, "LGA", "2013-01-02")


def test_explain_says_what_to_do_about_a_substream_that_nobody_knows(shell: Shell, flights: str) -> None:
    assert f"`tracker substreams {flights} --ended` lists" in shell("explain", flights, "JFK", "2014", status=1)


def test_substreams(shell: Shell, flights: str) -> None:
    [row] = table(shell("substreams", flights))
    assert (row["SCOPE"], row["NAME"], row["STATE"], row["IN FLIGHT"]) == ("LGA", "2013-01-02", "open", "1")
    assert row["WAITS FOR"] == "schedule, elements on raw"
    assert row["SEGMENTS (RECEIVED/SENT)"] == "raw 0/1"
    assert [row["STATE"] for row in table(shell("substreams", flights, "--ended"))] == ["ended", "open"]
    assert "--limit 0 lists all" in shell("substreams", flights, "--ended", "--limit", "1")
    assert table(shell("substreams", flights, "--scope", "EWR")) == []
    assert table(shell("substreams", flights, "--stalled")) == []
    lines = shell("substreams", flights, "--ended", "--json").splitlines()
    assert [json.loads(line)["scope"] for line in lines] == ["JFK", "LGA"]


def test_no_stalled_substreams_are_explained_by_what_the_job_defines(
    shell: Shell, client: TrackerClient, job: str
) -> None:
    client.define_job(spec(job))
    assert "only a job with stall_after has any" in shell("substreams", job, "--stalled")
    client.define_job(spec(job, stall_after=timedelta(seconds=30)))
    assert "when nothing of it has changed for 0:00:30" in shell("substreams", job, "--stalled")


def test_watch_shows_events_as_they_happen(shell: Shell, client: TrackerClient, flights: str) -> None:
    watching = [
        subprocess.Popen(
            [*TRACKER, "watch", flights, *options], env=shell.environment, stdout=subprocess.PIPE, text=True
        )
        for options in ([], ["--json", "--after", "1", "--scope", "LGA", "--segment", "raw"])
    ]
    people, programs = (process.stdout for process in watching)
    assert people is not None
    assert programs is not None
    try:
        assert split(people.readline())[2:] == ["Ended", "raw", "JFK/2013-01-01", "COMPLETE, 1 elements"]
        client.abandon(flights, "LGA", "2013-01-02")
        assert split(people.readline())[2:] == [
            "Ended",
            "raw",
            "LGA/2013-01-02",
            "ABANDONED, 1 elements, 1 not received",
        ]
        event = json.loads(programs.readline())
        assert (event["kind"], event["seq"], event["reason"]) == ("Ended", 2, "ABANDONED")
    finally:
        for process in watching:
            process.terminate()
            process.communicate()


def test_a_drain_is_asked_for_taken_back_and_waited_for(shell: Shell, flights: str) -> None:
    shown = shell("drain", flights, "d1", "--id", "night")
    assert split(shown.splitlines()[0]) == ["state", "DRAINING"]
    assert "unfinished fronts   schedule" in shown
    assert "CANCELLED" in shell("cancel-drain", flights, "--id", "night")
    shell("drain", flights, "d1", "--timeout", "0.2", "--wait", status=1)
    assert shell("finish-front", flights, "schedule") == "schedule is finished\n"
    assert shell("abandon", flights, "LGA", "2013-01-02") == "2013-01-02 is abandoned\n"
    assert "it was closed only by a drain on 'raw'" in shell("explain", flights, "LGA", "2013-01-02")
    ended = [row["STATE"] for row in table(shell("substreams", flights, "--ended"))]
    assert ended == ["ended", "ended by a drain"]
    assert json.loads(shell("drain", flights, "d1", "--wait", "--json"))["state"] == "DRAINED"
    assert "nothing is cancelled" in shell("cancel-drain", flights, status=1)


def test_a_drain_that_has_timed_out_can_still_be_waited_for(shell: Shell, flights: str) -> None:
    shell("drain", flights, "d1", "--timeout", "0.2", "--wait", status=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(shell.process, "drain", flights, "d1", "--timeout", "600", "--wait", "--json")
        shell("finish-front", flights, "schedule")
        shell("abandon", flights, "LGA", "2013-01-02")
        assert json.loads(waiting.result())["state"] == "DRAINED"


def test_a_deployment_hands_over(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "s", "n", label("x"))
    report.report(units=["a"], commit=True)
    timed_out = shell("drain", job, "d1", "--hand-over", "--timeout", "0.2", "--wait", status=1)
    assert "waits for open runs of q. Stop each program" in timed_out
    assert f"tracker forget-producer {job} q" in timed_out
    shown = shell("drain", job, "d1", "--hand-over")
    assert "mode                hand-over" in shown
    assert "with open runs      q" in shown
    assert "in flight on        raw" in shown
    report = producer.epoch(1)
    report.received("raw", "s", "n", label("x"))
    report.report(units=["b"], commit=True)
    producer.close()
    assert json.loads(shell("drain", job, "d1", "--hand-over", "--wait", "--json"))["open_substreams"] == 1
    assert "(hand-over)" in shell("job", job)
    assert "DRAIN_MISMATCH" in shell("drain", job, "d1", status=1)
    assert "define the next deployment" in shell("cancel-drain", job, status=1)


def test_a_drain_leaves_a_certificate(shell: Shell, client: TrackerClient, flights: str, tmp_path: Path) -> None:
    file = tmp_path / "drained.json"
    assert "give --wait" in shell("drain", flights, "d1", "--certificate", str(file), status=2)
    shell("drain", flights, "d1", "--wait", "--timeout", "0.2", "--certificate", str(file), status=1)
    assert not file.exists(), "it is not drained"
    shell("finish-front", flights, "schedule")
    shell("abandon", flights, "LGA", "2013-01-02")
    shell("drain", flights, "d1", "--wait", "--certificate", str(file))
    kept = json.loads(file.read_text())
    assert kept["kind"] == "substream-tracker/drain-certificate/1"
    assert (kept["job"], kept["deployment"], kept["mode"]) == (flights, "d1", "FINISH")
    assert (kept["open_substreams"], kept["in_flight"]) == (0, 0)
    assert kept["ended"] == {"raw": {"ABANDONED": 1, "by_drain": 1}}
    assert kept["fronts"]["schedule"]["finished"]
    assert kept["requested"]["seq"] < kept["drained"]["seq"] == client.job(flights).last_seq
    assert file.read_text() == json.dumps(certificate(client, flights, "d1"), indent=2) + "\n"
    with pytest.raises(TrackerError, match="DEPLOYMENT_MISMATCH"):
        certificate(client, flights, "d0")


def test_producers_are_forgotten_and_jobs_deleted(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    assert shell("delete-job", job, status=1).startswith("tracker: JOB_ACTIVE: ")
    assert shell("forget-producer", job, "q") == "q is forgotten\n"
    assert shell("delete-job", job) == f"{job} is deleted\n"
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    assert json.loads(shell("delete-job", job, "--force", "--json")) == {"deleted": job}


def test_what_goes_wrong_is_told_by_the_exit_status(shell: Shell) -> None:
    assert shell("job", "nobody-knows-it", status=1).startswith("tracker: UNKNOWN_JOB: ")
    assert "Missing argument 'JOB'; see `tracker job --help`" in shell("job", status=2)
    assert "No such command 'jbos'. Did you mean 'jobs'?" in shell("jbos", status=2)
    assert "Check that it is running" in shell("jobs", "--server", "127.0.0.1:1", "--retry-for", "0", status=3)


def test_it_explains_itself(shell: Shell) -> None:
    assert shell("--version").startswith("tracker ")
    assert "Examples:" in shell("--help")
    assert "TRACKER_SERVER" in shell("watch", "--help")


def test_a_reader_that_has_seen_enough_is_no_failure(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch(0)
    for number in range(2_000):
        report.sent("raw", "s", str(number), label(number))
    report.report(units=["a"], commit=True)
    listing = " ".join([*TRACKER, "substreams", job, "--json", "--limit", "0"])
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {listing} | head -n 1"],
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["name"] == "0"


# ---------------------------------------------------------------- why something has not ended


def test_explain_names_every_staged_epoch_that_concerns_a_substream(
    shell: Shell, client: TrackerClient, job: str
) -> None:
    """The usual stuck batch: a producer whose first epoch is reported and not committed was the last of nothing."""
    client.define_job(spec(job, segments={"raw": ["retry"], "retry": []}, fronts=["schedule"]))
    sender = client.open_producer(job, "sender", "r1").epoch()
    sender.sent("retry", "JFK", "2013-01-01", 1, end_time=24)
    sender.report(commit=True)
    stuck = client.open_producer(job, "stuck", "r1").epoch(7)
    stuck.received("retry", "JFK", "2013-01-01", 1, end_time=24)
    stuck.report(units=["a"])
    other = client.open_producer(job, "other", "r1").epoch(3)
    other.sent("raw", "JFK", "2013-01-02", 1, end_time=48)
    other.close("JFK", "2013-01-02", end_time=48, front="schedule")
    other.report(units=["a"])
    said = shell("explain", job, "JFK", "2013-01-01")
    assert "has not ended" in said
    assert "producer 'stuck' has reported epoch 7 and not committed it (0 sent and 1 received on 'retry')" in said
    assert "producer 'other', the owner of front 'schedule', has reported epoch 3 and not committed it" in said
    assert "'other' has reported" not in said  # nothing of this substream
    assert "no element has ever been received on segment 'retry'" in said
    # One that no committed report has named is explained all the same.
    said = shell("explain", job, "JFK", "2013-01-02")
    assert "no report of it has been committed" in said
    assert "producer 'other' has reported epoch 3 and not committed it (1 sent and 0 received on 'raw', " in said
    assert "that 'schedule' closes it" in said
    found = json.loads(shell("explain", job, "JFK", "2013-01-02", "--json"))
    assert (found["substream"], found["ended"]) == (None, False)
    assert [(each["producer"], each["epoch"], each["closed_by"]) for each in found["staged"]] == [
        ("other", 3, ["schedule"])
    ]
    client.producer(job, "stuck", "r1").close()
    assert "its run is closed" in shell("explain", job, "JFK", "2013-01-01")
    client.open_producer(job, "stuck", "r2").commit(7)
    said = shell("explain", job, "JFK", "2013-01-01")
    assert "no element has ever been received" not in said
    assert "'stuck'" not in said
    assert client.job(job).unread_segments == ("raw",)


def test_explain_takes_the_beginning_of_a_name(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch()
    for day in ("2013-01-01T00/PT1H", "2013-01-01T01/PT1H", "2013-02-01T00/PT1H"):
        report.sent("raw", "JFK", day, 1)
    report.report(commit=True)
    assert "2013-02-01T00/PT1H of scope 'JFK': has not ended" in shell("explain", job, "JFK", "2013-02")
    said = shell("explain", job, "JFK", "2013-01", status=1)
    assert "name one" in said
    assert "  2013-01-01T00/PT1H\n  2013-01-01T01/PT1H" in said
    assert "none that begins with this name" in shell("explain", job, "LGA", "2013", status=1)


def test_what_waits_for_its_turn_has_not_ended(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, ordering="scope"))
    report = client.open_producer(job, "q", "r1").epoch()
    report.sent("raw", "JFK", "first", 1, end_time=1)
    report.close("JFK", "second", end_time=2)
    report.report(commit=True)
    said = shell("explain", job, "JFK", "second")
    assert "second of scope 'JFK': has not ended" in said
    assert "its end waits for 1 substream that ends earlier and has not ended (ordering scope)" in said
    assert "first of scope 'JFK' holds it back: segment 'raw': 1 in flight" in said


# ---------------------------------------------------------------- for people


HOUR = 3_600 * 10**6


def test_times_are_shown_as_times_and_many_frontiers_in_few_words(
    shell: Shell, client: TrackerClient, job: str
) -> None:
    start = 1_772_323_200 * 10**6  # 2026-03-01, in microseconds
    client.define_job(spec(job, fronts=["f"], progress=True))
    report = client.open_producer(job, "q", "r1").epoch()
    report.sent("raw", "t3", "w", 1, end_time=start + 99 * HOUR)
    for number in range(30):
        report.frontier("f", start + number * HOUR, scope=f"t{number}")
    report.frontier("f", start)
    report.report(commit=True)
    shown = shell("job", job)
    assert "*: 2026-03-01 00:00:00, t0: 2026-03-01 00:00:00, t1: 2026-03-01 01:00:00, t2: 2026-03-01 02:00:00" in shown
    assert "26 more" in shown
    assert max(map(len, shown.splitlines())) < 250
    assert "t3/w, known since" in shown
    assert json.loads(shell("job", job, "--json"))["fronts"][0]["frontiers"]["t1"] == start + HOUR
    [row] = table(shell("substreams", job))
    assert row["END TIME"] == "2026-03-05 03:00:00"
    assert row["CHANGED"].endswith("s ago")
    assert json.loads(shell("substreams", job, "--json"))["end_time"] == start + 99 * HOUR
    assert "has promised up to 2026-03-01 03:00:00, and the substream ends at 2026-03-05 03:00:00" in shell(
        "explain", job, "t3", "w"
    )
    assert "up to 2026-03-01 00:00:00" in shell("events", job, "--kind", "Advanced")


def test_empty_lists_say_so(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    assert "no open substreams in job" in shell("substreams", job)
    assert "no stalled substreams" in shell("substreams", job, "--stalled")
    assert "no substreams of scope x" in shell("substreams", job, "--scope", "x", "--ended")
    assert "no such events" in shell("events", job)
    assert shell("substreams", job, "--json") == ""


def test_events_are_listed_and_that_ends(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    for name, report in zip("abc", producer.epochs(), strict=False):
        report.close("s", name)
        report.report(commit=True)
    assert len(shell("events", job).splitlines()) == 3
    assert [json.loads(line)["name"] for line in shell("events", job, "--after", "1", "--json").splitlines()] == [
        "b",
        "c",
    ]
    shown = shell("events", job, "--limit", "2").splitlines()
    assert (len(shown), shown[-1]) == (3, "… and more: only the first 2 are shown; --limit 0 lists all")
    assert "no such events" in shell("events", job, "--kind", "Late")
    assert "'late' is none of Advanced, " in shell("events", job, "--kind", "late", status=2)


def test_the_history_of_one_substream_has_all_its_events_and_no_others(
    shell: Shell, client: TrackerClient, job: str
) -> None:
    client.define_job(spec(job, stall_after=timedelta(milliseconds=1)))
    with client.open_producer(job, "q", "r1") as producer:
        for epoch, name in enumerate(("monday", "tuesday")):
            report = producer.epoch(epoch)
            for scope in ("JFK", "LGA"):
                report.sent("raw", scope, name, label(name, scope))
                report.close(scope, name)
            report.report(commit=True)
    stalled = (event for event in client.watch(job) if isinstance(event.kind, Stalled))
    assert {next(stalled).kind.name for _ in range(4)} == {"monday", "tuesday"}  # type: ignore[union-attr]
    client.abandon(job, "JFK", "monday")
    told = shell("events", job, "--scope", "JFK", "--name", "monday", "--json").splitlines()
    assert [(each["kind"], each["scope"], each["name"]) for each in map(json.loads, told)] == [
        ("Stalled", "JFK", "monday"),
        ("Ended", "JFK", "monday"),
    ]
    assert len(shell("events", job, "--name", "tuesday", "--json").splitlines()) == 2


def test_an_end_is_waited_for_in_a_script(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch()
    report.close("s", "over")
    report.report(commit=True)
    assert "s/over has ended on raw: COMPLETE, 0 elements" in shell("wait", job, "raw", "s", "over")
    assert json.loads(shell("wait", job, "raw", "s", "over", "--json"))["reason"] == "COMPLETE"
    assert "has ended" in shell("wait", job, "raw", "s", "over", "--timeout", "0"), "a look finds what is there"
    said = shell("wait", job, "raw", "s", "never", "--timeout", "0.2", status=1)
    assert "has not ended on 'raw' within 0.2 s" in said


def test_a_script_goes_on_only_after_an_end_that_is_good_enough(
    shell: Shell, client: TrackerClient, flights: str
) -> None:
    shell("abandon", flights, "LGA", "2013-01-02")
    lost = ("wait", flights, "raw", "LGA", "2013-01-02")
    assert "as ABANDONED with 1 elements in flight, so it is not complete; --reason ABANDONED accepts" in shell(
        *lost, status=1
    )
    shell(*lost, "--reason", "COMPLETE", "--reason", "ABANDONED")
    assert "'LOST' is none of COMPLETE, EXPIRED, ABANDONED" in shell(*lost, "--reason", "LOST", status=2)
    shell("drain", flights, "d1")
    report = client.open_producer(flights, "q", "r9").epoch()
    report.add("raw", "LGA", "cut", 0, sent=1, received=1)
    report.report(commit=True)
    shell("finish-front", flights, "schedule")
    cut = ("wait", flights, "raw", "LGA", "cut")
    assert "because a drain has closed it, so the next deployment may bring more of it; --by-drain" in shell(
        *cut, status=1
    )
    shell(*cut, "--by-drain")


def test_a_whole_stretch_of_time_is_waited_for(shell: Shell, client: TrackerClient, job: str) -> None:
    february = 1_359_676_800 * 10**6
    client.define_job(spec(job, fronts=["f"], progress=True))
    till = client.open_producer(job, "q", "r1")
    report = till.epoch(0)
    report.sent("raw", "JFK", "january", 7, end_time=february)
    report.frontier("f", february + 5)
    report.report(commit=True)
    wait = ("wait", job, "raw", "--up-to", "2013-02-01")
    said = shell(*wait, "--timeout", "0.1", status=1)
    assert f"has come up to {february - 1}, and not up to {february}" in said, "one tenant's element is in flight"
    report = till.epoch(1)
    report.received("raw", "JFK", "january", 7, end_time=february)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(shell.process, *wait)
        report.report(commit=True)
        assert waiting.result() == "all substreams up to 2013-02-01 00:00:00.000005 have ended on raw\n"
    answer = json.loads(shell("wait", job, "raw", "--up-to", "2013-02-01T00:00:00Z", "--json"))
    assert answer == {"segment": "raw", "up_to": february + 5}


def test_a_stretch_of_time_that_cannot_be_waited_for_is_refused(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    assert "define it with progress=True" in shell("wait", job, "raw", "--up-to", "7", status=2)
    assert "has no segment 'row'; it has 'raw'" in shell("wait", job, "row", "--up-to", "7", status=2)
    assert "neither a number nor a date" in shell("wait", job, "raw", "--up-to", "today", status=2)
    for words in (["JFK"], ["JFK", "january", "--up-to", "7"], []):
        assert "give either the SCOPE and the NAME" in shell("wait", job, "raw", *words, status=2)


def test_options_stand_before_the_command_or_after_it(shared_server: Server, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    nowhere = Shell("127.0.0.1:1")
    server = ["--server", shared_server.address]
    for words in ([*server, "job", job, "--json"], ["--json", "job", job, *server], [*server, "--json", "job", job]):
        assert json.loads(nowhere(*words))["spec"]["job"] == job
    assert json.loads(nowhere("--server", "127.0.0.1:2", "job", job, *server, "--json"))["spec"]["job"] == job
    assert "127.0.0.1:2" in nowhere("--server", "127.0.0.1:2", "--retry-for", "0", "jobs", status=3)


def test_a_drain_of_a_deployment_that_is_not_there_is_warned_of(
    shared_server: Server, client: TrackerClient, job: str
) -> None:
    client.define_job(spec(job))
    for name, there in ((job, "the current one is 'd1'"), (f"{job}-typo", "the job does not exist")):
        ran = subprocess.run(
            [*TRACKER, "drain", name, "d9", "--server", shared_server.address],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "PENDING" in ran.stdout
        assert there in ran.stderr
        assert f"tracker cancel-drain {name} --deployment d9" in ran.stderr


def test_a_server_says_what_it_allows(shell: Shell) -> None:
    assert "max_open_substreams" in shell("info")
    assert json.loads(shell("info", "--json"))["limits"]["max_open_substreams"] > 0


def test_a_person_sees_what_is_missing(client: TrackerClient, job: str, shell: Shell) -> None:
    client.define_job(spec(job, fronts=["source", "other"]))
    producer = client.open_producer(job, "q", "r1")
    producer.commit(promises=[Expected("source", "raw", "JFK", "monday", 20, end_time=24)])
    producer.commit(promises=[Expected("source", "raw", "LGA", "monday", 20, end_time=24)])
    elements(producer, 0, "JFK", range(16))
    shown = table(shell("substreams", job))
    assert [row["SEGMENTS (RECEIVED/SENT)"] for row in shown] == ["raw 16/16 of 20", "raw 0/0 of 20"]
    assert "2 substreams incomplete, 16 of 40 elements sent" in shell("job", job)
    explained = shell("explain", job, "JFK", "monday")
    assert "segment 'raw': 16 of 20 expected elements sent (source: 20)" in explained
    assert "front 'other' also feeds segment 'raw', and has neither promised a number" in explained
    elements(producer, 1, "JFK", range(16, 21))
    producer.commit(promises=[Finish("other")])
    watched = shell("explain", job, "JFK", "monday")
    assert "has ended" in watched


def test_durable_readers_are_listed_and_removed(shell: Shell, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    assert "no subscriptions" in shell("subscriptions", job)
    client.subscribe(job, "mailer", segments=["raw"])
    [row] = table(shell("subscriptions", job))
    assert (row["NAME"], row["SEGMENTS"], row["STATE"]) == ("mailer", "raw", "active")
    assert shell("unsubscribe", job, "mailer") == "mailer is unsubscribed\n"
    assert "UNKNOWN_SUBSCRIPTION" in shell("unsubscribe", job, "mailer", status=1)
