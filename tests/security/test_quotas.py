"""Quotas: the arithmetic with a clock that the test moves, and a real tracker whose clients wait as long as asked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

from tests.client.conftest import spec
from tests.security.secured import Secured
from tests.security.test_clients import end
from tracker.client import TrackerClient, TrackerError
from tracker.client.calls import Backoff
from tracker.contract.refusal import Refused
from tracker.security.guard import Guard
from tracker.security.identities import Bucket, Quotas, TokensFileError, Usage, parse_clients
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

# ---------------------------------------------------------------- arithmetic

_STEPS = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 50)), min_size=1, max_size=60)


@given(rate=st.floats(0.1, 1000), steps=_STEPS)
def test_a_bucket_gives_no_more_than_its_rate_and_a_burst(rate: float, steps: list[tuple[float, float]]) -> None:
    bucket, now, taken, largest = Bucket(rate, 0), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause
        wait = bucket.take(amount, now)
        if not wait:
            taken += amount
            largest = max(largest, amount)
        else:
            assert bucket.take(0, now + wait * 1.001) == 0, "after that time it gives again"
            now += wait * 1.001
    assert taken <= rate * (2 + now) + largest + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(10, 100)
    assert bucket.take(25, 100) == 0
    assert bucket.take(1, 0) > 0
    assert bucket.take(1, 100.4) == pytest.approx(0.1)


def test_names_count_against_what_is_open_and_against_their_rate() -> None:
    now = [0.0]
    usage = Usage("shop", Quotas(names_per_second=10, open_substreams=100), lambda: now[0])
    usage.take_names(0, lambda: 1000)  # a report that names nothing new always passes
    usage.take_names(100, lambda: 0)
    with pytest.raises(Refused, match=r"quota open_substreams=100 of client 'shop' exceeded: its job would have 101"):
        usage.take_names(1, lambda: 100)
    with pytest.raises(Refused, match=r"quota names_per_second=10 of client 'shop' exceeded: retry in 8 s") as refused:
        usage.take_names(1, lambda: 0)
    assert refused.value.retry_after == 8
    now[0] = 8.01
    usage.take_names(1, lambda: 0)


def test_what_lasts_is_counted_while_it_does_and_when_quotas_change() -> None:
    usage = Usage("shop", Quotas(watchers=2), lambda: 0.0)
    with usage.watching(), usage.watching():
        with pytest.raises(Refused, match="quota watchers=2"), usage.watching():
            pass
        usage.use(Quotas(watchers=3))
        with usage.watching():
            pass
    assert usage.watchers == 0


_ENTRY = '[clients.a]\ncertificate = "a"\nscopes = ["watch"]\njobs = ["*"]\n'


def test_quotas_are_read_from_the_file() -> None:
    text = f"[quotas]\nwatchers = 5\n{_ENTRY}[clients.a.quotas]\ncalls_per_second = 0.5\n"
    text += _ENTRY.replace("clients.a", "clients.b").replace('"a"', '"b"')
    clients = parse_clients(text).by_certificate
    assert clients["a"].quotas == Quotas(calls_per_second=0.5)
    assert clients["b"].quotas == Quotas(watchers=5)


@pytest.mark.parametrize(
    "line",
    [
        "watchers = 0",
        "watchers = 1.5",
        'watchers = "5"',
        "watchers = nan",
        "calls_per_second = true",
        "calls_per_second = inf",
        "entries_per_second = -1",
        "calls = 1",
    ],
)
def test_a_quota_that_means_nothing_is_refused(line: str) -> None:
    with pytest.raises(TokensFileError, match=r"\[clients.a.quotas\] (has 'calls'|watchers|calls_|entries_)"):
        parse_clients(f"{_ENTRY}[clients.a.quotas]\n{line}\n")


def test_each_client_has_a_quota_of_its_own(tmp_path: Path) -> None:
    file, now = tmp_path / "tokens.toml", [0.0]
    quotas = "[clients.%s.quotas]\ncalls_per_second = 1\n"
    texts = [_ENTRY.replace("clients.a", f"clients.{name}").replace('"a"', f'"{name}"') for name in "ab"]
    file.write_text("".join(text + quotas % name for name, text in zip("ab", texts, strict=True)))
    guard = Guard(file, certificates=True, now=lambda: now[0])

    def call(name: str) -> None:
        guard.caller("GetJob", [], lambda: {"x509_common_name": [name.encode()]}).usage.take_call()

    for _ in range(3):  # two at once, and one on credit
        call("a")
    with pytest.raises(Refused, match="QUOTA"):
        call("a")
    call("b")
    now[0] = 1.5
    call("a")


# ---------------------------------------------------------------- a real tracker


def limited(own: Secured, **quotas: float) -> TrackerClient:
    lines = "\n".join(f"{name} = {number}" for name, number in quotas.items())
    return own.client(own.add_known("limited", ["admin"], more=f"\n[clients.limited.quotas]\n{lines}"), retry_for=120)


def test_a_client_beyond_its_rate_waits_and_gets_its_answers(own: Secured, job: str) -> None:
    client = limited(own, calls_per_second=20)
    client.define_job(spec(job))
    began, calls = time.monotonic(), 100
    for _ in range(calls):
        client.job(job)
    # A machine may be slow, so only the lower bound holds: two seconds' worth at once, and one on credit.
    assert time.monotonic() - began > (calls - 42) / 20


def often(client: TrackerClient) -> None:
    for _ in range(5):
        client.server_info()


def test_a_client_that_may_not_wait_gets_the_quota_alone(own: Secured, job: str) -> None:
    limited(own, calls_per_second=0.01)
    client = own.client(own.directory / "limited.token", retry_for=0)
    with pytest.raises(TrackerError, match=r"QUOTA: quota calls_per_second=0.01 of client 'limited'") as refused:
        often(client)
    assert (refused.value.code, refused.value.reason) == ("RESOURCE_EXHAUSTED", "QUOTA")
    assert own.client(own.all).define_job(spec(job)).created


def test_the_wire_has_the_time_after_which_to_try_again(own: Secured) -> None:
    limited(own, calls_per_second=0.01)
    token = (own.directory / "limited.token").read_text().strip()
    with grpc.secure_channel(own.address, grpc.ssl_channel_credentials(own.authority.ca.read_bytes())) as channel:
        call, refused = TrackerStub(channel).GetServerInfo, None
        while refused is None:
            try:
                call(wire.GetServerInfoRequest(), metadata=(("authorization", f"Bearer {token}"),))
            except grpc.RpcError as error:
                refused = error
    info = RetryInfo()
    assert any(detail.Unpack(info) for detail in rpc_status.from_call(refused).details)
    assert 0 < info.retry_delay.seconds <= 300
    assert Backoff().after(refused) >= info.retry_delay.seconds, "the client waits for so long"


def test_a_client_that_does_not_wait_is_held_back(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(f"{_ENTRY}[clients.a.quotas]\ncalls_per_second = 0.1\n")
    guard = Guard(file, certificates=True, now=lambda: 0.0)

    async def call() -> Refused | None:
        caller = guard.caller("GetJob", [], lambda: {"x509_common_name": [b"a"]})
        try:
            async with caller.usage.calling(lasts=False):
                return None
        except Refused as refused:
            return refused

    async def many() -> tuple[list[Refused | None], set[asyncio.Task[Refused | None]]]:
        assert await call() is None
        calls = [asyncio.create_task(call()) for _ in range(30)]
        await asyncio.sleep(0)
        at_once = {each for each in calls if each.done()}
        return [await each for each in calls], at_once

    answers, at_once = asyncio.run(many())
    assert len(at_once) == 10, "the others are held"
    waits = sorted(answer.retry_after or 0.0 for answer in answers if answer is not None)
    assert waits == pytest.approx([7.0] * 20 + [8.0] * 10), "what was held need not wait for it again"


def test_entries_and_names_are_bounded(own: Secured, job: str) -> None:
    client = limited(own, entries_per_second=0.1, open_substreams=50)
    client.define_job(spec(job))
    client.open_producer(job, "p", "1")
    impatient = own.client(own.directory / "limited.token", retry_for=0)

    def report(unit: str, names: int) -> None:
        report = impatient.producer(job, "p", "1").epoch(0)
        for name in range(names):
            report.sent("raw", "s", f"{unit}-{name}", name)
        report.report(units=[unit])

    with pytest.raises(TrackerError, match=r"quota open_substreams=50 .* would have 60"):
        report("a", 60)
    with pytest.raises(TrackerError, match=r"quota entries_per_second=0.1 "):
        report("b", 1)


def test_watches_are_bounded(own: Secured, job: str) -> None:
    client = limited(own, watchers=1)
    client.define_job(spec(job))
    end(client, job, "1", "a")
    impatient = own.client(own.directory / "limited.token", retry_for=0)
    with impatient.watch(job) as first, impatient.watch(job) as second:
        assert next(first).seq
        with pytest.raises(TimeoutError):  # it tries again until then
            impatient.wait_for_end(job, "raw", "s", "other", timeout=1)
        with pytest.raises(TrackerError, match="quota watchers=1 "):
            next(second)
