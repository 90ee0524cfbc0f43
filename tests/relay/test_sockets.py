"""Owners of sockets: a relay takes none that is not its own, and a client believes none that is not its user's."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.relay.processes import Relay
from tests.relay.test_relay import relay_command, send, taken
from tracker.client import Outcome, TrackerClient
from tracker.client.relay import sockets, trusted
from tracker.relay.app import bound
from tracker.wire.addresses import CannotListenError
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerServicer, TrackerStub, add_TrackerServicer_to_server

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@contextmanager
def user(uid: int) -> Iterator[None]:
    """Make this process another user: a listener meanwhile is known as that one."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def listening(path: Path, kind: int = socket.SOCK_STREAM, backlog: int | None = 8) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, kind)
    found.bind(str(path))
    if backlog is not None and kind != socket.SOCK_DGRAM:
        found.listen(backlog)
    return found


def a_full_one(path: Path, stack: ExitStack) -> None:
    stack.enter_context(listening(path, backlog=0))
    for _ in range(3):
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.setblocking(False)
        try:
            waiting.connect(str(path))
        except BlockingIOError:
            return
    raise AssertionError("it takes every connection")


def an_own_dead_one(path: Path, stack: ExitStack) -> None:
    listening(path).close()


def a_dead_one_of_another(path: Path, stack: ExitStack) -> None:
    listening(path).close()
    os.chown(path, NOBODY, NOBODY)


def a_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def refusal(path: Path) -> str:
    """Return why nobody can listen at a path."""

    async def listen() -> str:
        with pytest.raises(CannotListenError) as refused, bound(grpc.aio.server(), f"unix:{path}", 0o660):
            pass
        return str(refused.value)

    return asyncio.run(listen())


THERE: dict[str, Callable[[Path, ExitStack], object]] = {
    "a live socket": lambda path, stack: stack.enter_context(listening(path)),
    "one that does not listen yet": lambda path, stack: stack.enter_context(listening(path, backlog=None)),
    "one that takes nobody": a_full_one,
    "of datagrams": lambda path, stack: stack.enter_context(listening(path, socket.SOCK_DGRAM)),
    "of packets": lambda path, stack: stack.enter_context(listening(path, socket.SOCK_SEQPACKET)),
    "a file": lambda path, _: path.write_text("precious"),
    "a directory": lambda path, _: path.mkdir(),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a link to nothing": lambda path, _: a_link(path, path.with_name("nothing")),
    "a link to a live socket": lambda path, stack: (
        stack.enter_context(listening(path.with_name("live"))),
        a_link(path, path.with_name("live")),
    ),
    "a link to a dead socket": lambda path, stack: (
        an_own_dead_one(path.with_name("dead"), stack),
        a_link(path, path.with_name("dead")),
    ),
}


@pytest.mark.parametrize("there", [*THERE, pytest.param("a dead socket of another user", marks=as_root)])
@pytest.mark.parametrize("lock", ["no lock", "a lock"])
def test_what_is_not_its_own_stays(there: str, lock: str, tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    if lock == "a lock":  # as a relay leaves it behind that was there before
        (tmp_path / "relay.sock.lock").touch(0o600)
    with ExitStack() as stack:
        (THERE | {"a dead socket of another user": a_dead_one_of_another})[there](path, stack)
        before = path.lstat()
        assert f"cannot listen on {path}" in refusal(path)
        now = path.lstat()
        assert (now.st_ino, now.st_mode, now.st_uid) == (before.st_ino, before.st_mode, before.st_uid)
        if there == "a live socket":
            socket.socket(socket.AF_UNIX).connect(str(path))
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


LOCKS: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to(path.with_name("elsewhere")),
    "a directory": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("lock", [*LOCKS, pytest.param("another user's", marks=as_root)])
def test_a_lock_that_is_none_of_its_own_is_refused(lock: str, tmp_path: Path) -> None:
    def of_another(path: Path) -> None:
        path.touch()
        os.chown(path, NOBODY, NOBODY)

    (LOCKS | {"another user's": of_another})[lock](tmp_path / "relay.sock.lock")
    assert "cannot listen on" in refusal(tmp_path / "relay.sock")
    assert not (tmp_path / "elsewhere").exists()


def test_the_command_says_so_and_ends(tmp_path: Path) -> None:
    with listening(tmp_path / "relay.sock"):
        ran = relay_command("127.0.0.1:1", "--listen", f"unix:{tmp_path / 'relay.sock'}")
    assert ran.returncode == 1
    assert "another program uses the socket there" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("left", ["a lock", "a socket", "both", "a lock with something in it"])
def test_what_a_dead_relay_of_its_own_has_left_is_no_hindrance(left: str, tmp_path: Path) -> None:
    if left != "a lock":
        listening(tmp_path / "relay.sock").close()
    if left != "a socket":
        (tmp_path / "relay.sock.lock").write_text("4711\n" if "something" in left else "")
        (tmp_path / "relay.sock.lock").chmod(0o600)
    relay = Relay(tmp_path, "127.0.0.1:1")
    assert stat.S_ISSOCK((tmp_path / "relay.sock").lstat().st_mode)
    assert relay.stop() == 0
    assert [each.name for each in tmp_path.iterdir() if each.name not in ("relay.log", "relay.sock.lock")] == []


@pytest.mark.parametrize("by", ["a live socket", "a file", "a link to a live socket"])
def test_what_takes_its_sockets_place_while_it_runs_stays_when_it_stops(by: str, tmp_path: Path) -> None:
    relay = Relay(tmp_path, "127.0.0.1:1")
    path = tmp_path / "relay.sock"
    path.unlink()
    with ExitStack() as stack:
        THERE[by](path, stack)
        before = path.lstat().st_ino
        assert relay.stop() == 0
        assert path.lstat().st_ino == before
    assert "was replaced" in relay.log


# ---------------------------------------------------------------- whom clients believe


class Liar(TrackerServicer):
    """A relay that answers APPLIED to reports that nobody will ever see."""

    def __init__(self) -> None:
        self.swallowed = 0

    def Report(self, request: wire.ReportRequest, context: grpc.ServicerContext) -> wire.ReportResponse:  # noqa: N802
        self.swallowed += 1
        return wire.ReportResponse(outcome=wire.ReportResponse.APPLIED)


@contextmanager
def lying(path: Path, uid: int) -> Iterator[Liar]:
    """Yield a fake relay of another user, in a directory where everybody may write."""
    path.parent.chmod(0o1777)
    liar = Liar()  # type: ignore[abstract]
    server = grpc.server(ThreadPoolExecutor(1))
    add_TrackerServicer_to_server(liar, server)
    with user(uid):
        server.add_insecure_port(f"unix:{path}")
        server.start()
    try:
        yield liar
    finally:
        server.stop(None)


@pytest.fixture
def reporting(client: TrackerClient, job: str) -> Iterator[TrackerClient]:
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    with closing(client):
        yield client


def staged(client: TrackerClient, job: str) -> int:
    """Return how many elements the tracker has received."""
    client.producer(job, "q", "r1").commit(0)
    return client.job(job).in_flight


@pytest.fixture
def open_to_all(tmp_path: Path) -> Path:
    """Return a directory in which every user may put something."""
    tmp_path.chmod(0o1777)
    return tmp_path


def test_a_socket_at_which_nobody_listens_yet_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with listening(path, backlog=None) as starting:
        assert trusted(str(path)) is None
        starting.listen()
        assert str(trusted(str(path))).startswith("unix:/proc/self/fd/")


@as_root
@pytest.mark.parametrize("said", ["unix:{}", "unix://{}", "where it is looked for"])
def test_a_relay_of_another_user_is_not_believed(
    said: str,
    reporting: TrackerClient,
    job: str,
    open_to_all: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if said.startswith("unix"):
        path = open_to_all / "relay.sock"
        monkeypatch.setenv("TRACKER_RELAY", said.format(path))
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(open_to_all))
        path = open_to_all / "substream-tracker" / f"{reporting.address}.sock"
        path.parent.mkdir(mode=0o777)
    with lying(path, NOBODY) as liar:
        for unit in ("a", "b", "c"):
            assert send(reporting, job, unit) is Outcome.APPLIED
        assert liar.swallowed == 0
        assert caplog.text.count(f"user {NOBODY} listens there") == 1  # said once
        monkeypatch.setenv("TRACKER_RELAY_UIDS", f"1001, {NOBODY}")
        send(reporting, job, "d")  # now its user is trusted, and what it does is that user's
        assert liar.swallowed == 1
    assert staged(reporting, job) == 3


@pytest.mark.thorough
@as_root
@pytest.mark.parametrize("before", ["alive", "dead"])
def test_who_takes_a_trusted_relays_place_is_not_believed(
    before: str, reporting: TrackerClient, job: str, open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(open_to_all, reporting.address)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    assert send(reporting, job, "a") is Outcome.APPLIED
    if before == "dead":
        relay.kill()
    path = open_to_all / "relay.sock"
    path.unlink()
    with lying(path, NOBODY) as liar:
        for unit in ("b", "c"):
            assert send(reporting, job, unit) is Outcome.APPLIED
        assert liar.swallowed == 0
    more = 0
    if before == "dead":
        believed, until = False, time.monotonic() + 180
        while not believed:  # gRPC waits before it tries a socket again on which nobody listened
            assert time.monotonic() < until, "its successor is not believed"
            relay.start()
            for _ in range(12):
                assert send(reporting, job, f"d{more}") is Outcome.APPLIED
                more += 1
                time.sleep(0.5)
            believed = taken(relay) > 0
    else:
        relay.kill()
    assert staged(reporting, job) == 3 + more


def test_a_malformed_list_of_users_is_refused(
    reporting: TrackerClient, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(tmp_path, reporting.address)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    monkeypatch.setenv("TRACKER_RELAY_UIDS", "alice")
    with pytest.raises(ValueError, match="TRACKER_RELAY_UIDS='alice'"):
        send(reporting, job, "a")
    relay.kill()


# ---------------------------------------------------------------- all that it holds is bounded


def _refused(call: Callable[[], object]) -> str:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return f"{error.value.code().name} {error.value.details()}"


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["commits", "streams", "watches"])
def test_not_only_reports_count_against_what_it_may_hold(what: str, server: Server, tmp_path: Path) -> None:
    """The tracker stands still, and everybody goes on asking."""
    relay = Relay(tmp_path, server.address, "--max-pending", "0.1")
    units = [f"{number}{'x' * 500}" for number in range(80)]  # 40 kB
    server.freeze()
    with grpc.insecure_channel(relay.address) as channel, ThreadPoolExecutor(60) as pool:
        stub = TrackerStub(channel)

        def ask(number: int) -> str:
            commit = wire.CommitRequest(job="j", producer="p", run="r", epoch=number, units=wire.Units(names=units))
            report = wire.ReportRequest(job="j", producer="p", run="r", units=units)
            asked: dict[str, Callable[[], object]] = {
                "commits": lambda: stub.Commit(commit, timeout=3),
                "streams": lambda: list(stub.ReportStream(iter([report]), timeout=3)),
                "watches": lambda: list(stub.Watch(wire.WatchRequest(job=f"j{number}"), timeout=3)),
            }
            return _refused(asked[what])

        answers = list(pool.map(ask, range(60)))
    full = [each for each in answers if each.startswith("RESOURCE_EXHAUSTED LIMIT: limit max_pending_bytes=")]
    passed = [each for each in answers if each.startswith("DEADLINE_EXCEEDED")]
    assert full
    assert passed
    assert len(full) + len(passed) == 60, answers
    server.thaw()
    with TrackerClient(relay.address) as near:  # nothing of it is held any more
        near.define_job(spec("j"))
    assert relay.stop() == 0


def test_the_socket_of_a_tracker_with_a_standby_has_a_valid_path() -> None:
    pods = [f"shop-substream-tracker-{n}.shop-substream-tracker-headless.streaming.svc:7654" for n in range(3)]
    found = {str([*sockets(server)][-1]) for server in ("+".join(pods), "+".join(pods[:2]), "+".join(pods[1:]))}
    assert len(found) == 3
    assert all(len(path) < 108 for path in found)
    assert str([*sockets("a:7654+b:7654")][-1]).endswith("/a:7654_b:7654.sock")
