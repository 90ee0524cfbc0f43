"""The programs of the documentation run as they stand there, but for the tracker's address."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.client.processes import TRACKER, Server
from tracker.client import Event, JobSpec, ShardedClient, TrackerClient, label

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, heading: str, language: str) -> list[str]:
    """Return the blocks of one language under a heading."""
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {heading}\n")
    assert rest, f"{page} has no heading {heading!r}"
    return [block for found, block in FENCE.findall(rest.partition("\n## ")[0]) if found == language]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tracker"), "memory")
    yield server
    server.stop()


def test_the_readmes_program_runs_and_runs_again(server: Server) -> None:
    [program] = blocks("README.md", "Without Spark", "python")
    assert "127.0.0.1:7654" in program
    for _ in range(3):
        ran = subprocess.run(
            [sys.executable, "-c", program.replace("127.0.0.1:7654", server.address)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=ROOT,
        )
        assert (ran.stdout, ran.stderr) == ("30 images are done\n", "")
    drain = ["drain", "thumbnails", "d1", "--wait", "--timeout", "60", "--server", server.address]
    ran = subprocess.run([*TRACKER, *drain], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout.split()[:2]) == (0, ["state", "DRAINED"]), ran.stdout
    TrackerClient(server.address).delete_job("thumbnails")


def printed_by(program: str, server: Server, *more: str) -> str:
    """Run a program, or a module, which ends by itself. Return its output."""
    called = [program] if program.endswith(".py") else ["-m", program]
    command = [sys.executable, *called, server.address, *more]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def shown_in(printed: str) -> list[list[str]]:
    """Return the rows of the tables that Spark has shown, their headings too."""
    rows = [line.strip("|").split("|") for line in printed.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.thorough
@pytest.mark.spark
def test_the_spark_quickstart_ends_by_itself_and_releases_each_shops_day_once(server: Server) -> None:
    """The README's program for Spark, ready to run: berlin does not wait for lima, and the drain ends what is open."""
    printed = printed_by("examples/spark_quickstart.py", server)
    released = [[cell[: len("{2026-03-01")] for cell in row] for row in shown_in(printed) if row[0] != "shop"]
    assert released == [
        ["berlin", "{2026-03-01", "rum", "1", "4"],
        ["berlin", "{2026-03-01", "tea", "1", "3"],
        ["lima", "{2026-03-01", "tea", "2", "7"],
        ["berlin", "{2026-03-02", "rum", "1", "1"],
    ]
    arrived = printed.index("file 3 has arrived")
    assert printed.index("berlin") < arrived < printed.index("lima") < printed.index("drained: ")


@pytest.mark.spark
@pytest.mark.slow
def test_chained_jobs_end_an_hour_with_its_results_or_none(server: Server) -> None:
    printed = printed_by("examples/chained_jobs.py", server)
    assert [(row[0], *row[2:]) for row in shown_in(printed) if row[0] != "shop"] == [("berlin", "2", "4")]
    assert "berlin: 2 results of the first job were read, of 2\n" in printed
    assert "lima: 0 results of the first job were read, of 0\n" in printed


@pytest.mark.spark
@pytest.mark.slow
def test_the_windows_of_each_kind_are_those_of_a_batch(server: Server) -> None:
    """The program itself compares them, and fails otherwise."""
    printed = printed_by("examples.windows", server)
    assert [line.partition(":")[0] for line in printed.splitlines() if line.endswith("equal to the batch")] == [
        "windows that overlap",
        "sessions by gap",
        "days in the zone of each row",
        "hours and their six hours",
        "twenty clicks each",
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_results_early_and_final_and_the_ledger_account_for_each_row(server: Server) -> None:
    printed = printed_by("examples.results", server)
    early, bill = (
        [row for row in shown_in(part) if row[0] in ("berlin", "lima")] for part in printed.split("what became of")
    )
    assert early == [["berlin", "2", "12", "false"]]
    assert "sums: [('berlin', 3, 16, 2), ('lima', 2, 7, 2)]\n" in printed
    assert "best: [('berlin', 'b2', 9), ('berlin', 'b4', 4), ('lima', 'l1', 2), ('lima', 'l2', 5)]\n" in printed
    assert sorted(row[1:] for row in bill) == [
        ["2", "2", "0", "0", "0", "0", "0"],
        ["5", "3", "1", "1", "0", "0", "0"],
    ], "sent, released, filtered, late, given up, quarantined, missing"


@pytest.mark.spark
@pytest.mark.slow
def test_the_shadow_names_the_window_that_was_closed_too_early(server: Server, tmp_path: Path) -> None:
    printed = printed_by("examples.shadow", server, str(tmp_path / "shadow.svg"))
    assert [row for row in shown_in(printed) if row[4] not in ("lost", "0", "NULL")] == [
        ["lima", "2026-03-02 00:00:00", "4", "2", "2", "60.0"]
    ]
    assert (tmp_path / "shadow.svg").read_text().startswith("<svg")


def test_ordered_ends_wait_for_the_shop_that_hangs_which_is_named(server: Server) -> None:
    assert printed_by("examples/ordered_ends.py", server).splitlines() == [
        "out: berlin 0, lima 0, oslo 0, berlin 1, oslo 1",
        "oslo's hour 2 is complete. 1 of all has to end before: lima's hour 1",
        "out: berlin 0, lima 0, oslo 0, berlin 1, oslo 1, lima 1, berlin 2, lima 2, oslo 2",
    ]


def test_the_reader_that_may_be_away(server: Server) -> None:
    """docs/concepts/substreams.md: it sends everything once it has happened, and acknowledges it."""
    [program] = blocks("docs/concepts/substreams.md", "Readers that may be away", "python")
    client = TrackerClient(server.address)
    client.define_job(JobSpec(job="flights", deployment="d1", segments={"raw": ["clean"], "clean": []}))
    with client.open_producer("flights", "p", "1") as producer:
        for name, report in zip(("w0", "w1"), producer.epochs(), strict=False):
            report.close("s", name)
            report.report(commit=True)
    sent: list[object] = []

    class EnoughError(Exception):
        pass

    def send(kind: object) -> None:
        if len(sent) == 1:
            raise EnoughError
        sent.append(kind)

    with pytest.raises(EnoughError):
        exec(program, {"client": client, "send": send})
    assert [(kind.segment, kind.name) for kind in sent] == [("clean", "w0")]  # type: ignore[attr-defined]
    assert [each.name for each in client.subscriptions("flights")] == ["mailer"]
    with client.subscribe("flights", "mailer", segments=["clean"]) as again:
        event: Event = next(again)
    assert event.kind.name == "w1"  # type: ignore[union-attr]
    client.delete_job("flights", force=True)


def test_the_reader_that_builds_each_day_begins_with_a_build_that_failed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/howto/orchestrators.md: each complete day is built in its turn, other ends start nothing."""
    [*_, program] = blocks("docs/howto/orchestrators.md", "dbt: build a day when it is complete", "python")
    client = TrackerClient(server.address)
    client.define_job(JobSpec(job="flights", deployment="d1", segments={"clean": []}))
    with client.open_producer("flights", "p", "1") as producer:
        for name, report in zip(("2013-01-01", "2013-01-02", "2013-01-03"), producer.epochs(), strict=False):
            report.close("JFK", name) if name != "2013-01-02" else report.sent("clean", "JFK", name, 1)
            report.report(commit=True)
    client.abandon("flights", "JFK", "2013-01-02")
    built: list[str] = []

    def build(command: list[str], check: bool) -> None:
        built.append(command[-1])
        if len(built) > 1:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", build)
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            exec(program.replace("tracker:7654", server.address), {})
    days = ['{"day": "2013-01-01"}', '{"day": "2013-01-03"}', '{"day": "2013-01-03"}']
    assert built == days
    client.delete_job("flights", force=True)


def test_reports_and_waits_in_an_event_loop_need_no_pool_thread(server: Server) -> None:
    """docs/concepts/substreams.md: every thread of the default pool is taken until all batches are done."""
    [program] = blocks("docs/concepts/substreams.md", "In an event loop", "python")
    client = TrackerClient(server.address)
    client.define_job(JobSpec(job="thumbnails", deployment="d1", segments={"images": []}))
    batches, order, all_done = [f"batch {number}" for number in range(60)], list[str](), threading.Event()

    def hold() -> None:
        all_done.wait(60)
        order.append("a thread is free")

    async def run(main: Callable[[list[str]], Coroutine[None, None, None]]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(6))
        held = [loop.run_in_executor(None, hold) for _ in range(6)]
        await main(batches)
        all_done.set()
        await asyncio.gather(*held)

    with client.open_producer("thumbnails", "source", "1") as producer:
        said = {"client": client, "producer": producer, "label": label, "print": lambda *words: order.append(words[0])}
        exec(program, said)
        asyncio.run(run(said["main"]))  # type: ignore[arg-type]
    assert sorted(order[:60]) == sorted(batches)
    assert order[60:] == ["a thread is free"] * 6
    client.delete_job("thumbnails")


def test_one_job_on_several_servers(server: Server, tmp_path: Path) -> None:
    [program] = blocks("docs/howto/scale.md", "One job on several servers", "python")[:1]
    other = Server(tmp_path, "memory")
    servers = f"{server.address},{other.address}"
    known: dict[str, object] = {"spec": spec("flights", ordering="scope")}
    exec(program.replace("tracker-{0..3}.tracker:7654", servers), known)
    report = known["report"]
    report.sent("raw", "s", "n", 1)  # type: ignore[attr-defined]
    report.report(commit=True)  # type: ignore[attr-defined]
    assert ShardedClient(servers, ordering="scope").job("flights").in_flight == 1
    other.stop()


@pytest.mark.thorough
def test_the_commands_that_look_at_a_tracker(server: Server) -> None:
    """docs/howto/operations.md: each is carried out on a job that has what they ask for."""
    client = TrackerClient(server.address)
    client.define_job(spec("looked-at", progress=True))
    with client.open_producer("looked-at", "p", "1") as producer:
        report = producer.epoch()
        report.sent("raw", "SCOPE", "NAME", 1)
        report.report(commit=True)
    [block] = blocks("docs/howto/operations.md", "Watching it", "sh")
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(lines) > 5
    for words in lines:
        if words[1] == "watch":  # it never ends; the tests of the command line see it
            continue
        arguments = [{"JOB": "looked-at", "SEGMENT": "raw"}.get(word, word) for word in words[1:]]
        waits = ["--timeout", "0.1"] if words[1] == "wait" else []
        ran = subprocess.run(
            [*TRACKER, *arguments[:5], *waits, "--server", server.address],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == (1 if waits else 0), (words, ran.stderr)


def run_pytest(path: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run tests as a user would who has the package installed."""
    (path / "test_shop.py").write_text(program)
    options = ["-p", "tracker.testing.plugin", "-p", "no:cacheprovider", "--rootdir", str(path), "-q"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(path)], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.thorough
def test_the_tests_of_a_users_job(tmp_path: Path) -> None:
    """docs/howto/testing.md: its first test and the one with a clock pass; without the cook, the first is explained."""
    _, program = FENCE.findall((ROOT / "docs/howto/testing.md").read_text())[0]
    [clocked] = blocks("docs/howto/testing.md", "Time that the test moves", "python")
    ran = run_pytest(tmp_path, program + clocked)
    assert "2 passed" in ran.stdout, ran.stdout
    without_cook = "".join(line for line in program.splitlines(keepends=True) if "cook." not in line)
    ran = run_pytest(tmp_path, without_cook.replace("elements=1)", "elements=1, timeout=0.5)"))
    explained, *_ = (
        text for language, text in FENCE.findall((ROOT / "docs/howto/testing.md").read_text()) if not language
    )
    expected = explained.replace("within 10 s", "within 0.5 s").splitlines()
    assert [line.removeprefix("E").strip() for line in ran.stdout.splitlines() if line.startswith("E  ")] == [
        "AssertionError: " + expected[0],
        *expected[1:],
    ]


def test_a_tracker_without_fixtures(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = blocks("docs/howto/testing.md", "Without pytest's fixtures", "python")
    exec(program, {})
    assert capsys.readouterr().out.endswith(" []\n")


@pytest.mark.slow
@pytest.mark.spark
def test_the_tests_of_a_spark_job() -> None:
    """docs/howto/testing.md shows one of them as it is in the example."""
    [shown] = blocks("docs/howto/testing.md", "A job on Spark", "python")
    example = ROOT / "examples/testing/test_job.py"
    body = shown.partition(":\n")[2]
    assert body in example.read_text()
    options = ["-p", "tracker.testing.plugin", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(example)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stdout[:2]) == (0, ".."), ran.stdout
