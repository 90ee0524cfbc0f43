"""Jobs spread over several trackers by name: everybody finds a job where everybody else does, and nobody makes a second
one of it elsewhere."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.cli.main import main
from tracker.client import ShardedClient, TrackerClient, TrackerError, TrackerUnavailable, label
from tracker.client.servers import choose, names

NAMES = [f"tracker-{number}.tracker:7654" for number in range(8)]
JOBS = [f"job-{number}" for number in range(4000)]


def listed(servers: list[Server]) -> str:
    return ",".join(server.address for server in servers)


def test_the_choice_is_the_same_in_every_version_and_process() -> None:
    assert [choose(NAMES, job) for job in JOBS[:4]] == [NAMES[number] for number in (5, 0, 4, 5)]


def test_the_choice_does_not_depend_on_the_order_of_the_list() -> None:
    shuffled = random.Random(1).sample(NAMES, len(NAMES))
    assert all(choose(NAMES, job) == choose(shuffled, job) for job in JOBS)


def test_jobs_are_spread_evenly() -> None:
    shares = Counter(choose(NAMES, job) for job in JOBS)
    assert set(shares) == set(NAMES)
    assert max(shares.values()) < 1.25 * min(shares.values())


def test_a_server_more_takes_its_share_and_moves_nothing_among_the_others() -> None:
    moved = [job for job in JOBS if choose(NAMES, job) != choose(NAMES[:-1], job)]
    assert {choose(NAMES, job) for job in moved} == {NAMES[-1]}
    assert 0.08 < len(moved) / len(JOBS) < 0.17


def test_a_stateful_sets_pods_are_named_whether_or_not_they_run() -> None:
    assert names("tracker-{0..7}.tracker:7654") == tuple(NAMES)


def test_a_hosts_addresses_are_as_many_as_it_was_said() -> None:
    assert names("1@localhost:7654") == ("127.0.0.1:7654",)
    with pytest.raises(TrackerUnavailable, match=r"resolves to 1 addresses .* not to 2"):
        names("2@localhost:7654")
    with pytest.raises(TrackerUnavailable, match="does not resolve"):
        names("2@no-such-host.invalid:7654")


@pytest.mark.parametrize("servers", ["a:1,a:1", "a:1,", "", "a-{0..1}:1,a-1:1"])
def test_a_list_that_says_nothing_clear_is_refused_at_once(servers: str) -> None:
    for client in (TrackerClient, ShardedClient):
        with pytest.raises(ValueError, match="name each server once"):
            client(servers)


def test_each_job_is_at_one_server_and_everybody_finds_it(three: list[Server], job: str) -> None:
    jobs = [f"{job}-{number}" for number in range(40)]
    with TrackerClient(listed(three)) as client:
        for name in jobs:
            client.define_job(spec(name))
            report = client.open_producer(name, "q", "r1").epoch(0)
            report.sent("raw", "s", "n", label(1))
            report.received("raw", "s", "n", label(1))
            report.close("s", "n")
            report.report(units=["u"], commit=True)
        own = [{name for name in TrackerClient(server.address).jobs() if name in jobs} for server in three]
        assert sum(map(len, own)) == len(set.union(*own)) == len(jobs)
        assert all(own)
        assert set(jobs) <= set(client.jobs())
    with pickle.loads(pickle.dumps(TrackerClient(listed(three[::-1])))) as other:
        for name in jobs:
            assert other.wait_for_end(name, "raw", "s", "n", timeout=60).elements == 1
            assert next(other.watch(name)).seq == 1


def test_a_list_that_misplaces_a_job_is_refused_at_its_definition(three: list[Server], job: str) -> None:
    jobs = [f"{job}-{number}" for number in range(40)]
    with TrackerClient(listed(three[:2])) as two:
        for name in jobs:
            two.define_job(spec(name))
    with TrackerClient(listed(three)) as all_three:
        moved = [name for name in jobs if choose(names(listed(three)), name) == three[2].address]
        assert moved
        for name in moved:
            with pytest.raises(TrackerError, match=rf"belongs to {three[2].address}, but .* has it.*delete-job {name}"):
                all_three.define_job(spec(name))
        assert not set(TrackerClient(three[2].address).jobs()) & set(jobs)
        for name in set(jobs) - set(moved):
            assert not all_three.define_job(spec(name)).created
        # The message's advice helps.
        for name in moved:
            with TrackerClient(listed(three[:2])) as two:
                two.delete_job(name)
            assert all_three.define_job(spec(name)).created


def test_two_lists_at_the_same_moment_make_no_job_twice(three: list[Server], job: str) -> None:
    # The same servers under other names, so the lists choose differently, and both clients can see every server.
    lists = [listed(three), listed(three).replace("127.0.0.1", "localhost")]
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        clients = [stack.enter_context(TrackerClient(servers)) for servers in lists]
        for number in range(40):
            name = f"{job}-{number}"
            for defined in [pool.submit(client.define_job, spec(name)) for client in clients]:
                with suppress(TrackerError):  # both may be refused: either can be asked again
                    defined.result()
            assert sum(name in TrackerClient(server.address).jobs() for server in three) <= 1


@pytest.mark.thorough
def test_while_a_server_is_away_only_its_jobs_wait(mortal: list[Server]) -> None:
    jobs = [f"job-{number}" for number in range(40)]
    with TrackerClient(listed(mortal)) as client:
        for name in jobs:
            client.define_job(spec(name))
    mortal[0].kill()
    with TrackerClient(listed(mortal), retry_for=0) as client:
        for name in jobs:
            if choose(names(listed(mortal)), name) == mortal[0].address:
                with pytest.raises(TrackerUnavailable):
                    client.define_job(spec(name))
            else:
                assert not client.define_job(spec(name)).created
        with pytest.raises(TrackerUnavailable):
            client.jobs()
        with pytest.raises(TrackerUnavailable):  # it might be at the one that is away
            client.define_job(spec(f"{jobs[0]}-new"))
        mortal[0].start()
    with TrackerClient(listed(mortal)) as client:
        assert set(client.jobs()) == set(jobs)


def test_the_command_line_takes_a_list(three: list[Server], job: str, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [f"{job}-{number}" for number in range(6)]
    with TrackerClient(listed(three)) as client:
        for name in jobs:
            client.define_job(spec(name))
    assert main(["jobs", "--server", listed(three), "--json"]) == 0
    assert set(jobs) <= {status["spec"]["job"] for status in json.loads(capsys.readouterr().out)}
    for name in jobs:
        assert main(["job", name, "--server", listed(three)]) == 0
