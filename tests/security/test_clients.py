"""Clients with tokens: files that are replaced, clients that are removed, and secrets that stay where they are."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.client.conftest import spec
from tests.security.secured import Secured
from tracker.client import Credentials, CredentialsError, ShardedClient, TrackerClient, TrackerError
from tracker.client.credentials import TOKEN_VARIABLE, VARIABLES


def end(client: TrackerClient, job: str, run: str, name: str) -> None:
    """Begin and end a substream."""
    report = client.open_producer(job, "p", run).epoch()
    report.sent("raw", "s", name, 1)
    report.received("raw", "s", name, 1)
    report.close("s", name)
    report.report(commit=True)


def test_a_client_does_everything_over_tls_with_its_token(shared: Secured, job: str) -> None:
    with shared.client(shared.all) as client:
        client.define_job(spec(job))
        with client.watch(job) as events, client.subscribe(job, "reader") as subscription:
            end(client, job, "1", "a")
            assert client.wait_for_end(job, "raw", "s", "a").elements == 1
            event = next(events)
            assert next(subscription).seq == event.seq
            assert subscription.ack(event, timeout=20) == event.seq


def test_a_sharded_client_takes_credentials(shared: Secured, job: str) -> None:
    client = ShardedClient(shared.address, credentials=shared.credentials(shared.all))
    assert client.define_job(spec(job)).created
    assert pickle.loads(pickle.dumps(client)).job(job).spec.job == job


def test_a_client_reads_its_new_token_and_its_old_one_fails(own: Secured, job: str) -> None:
    file = own.add_known("shop", ["admin"])
    client = own.client(file)
    client.define_job(spec(job))
    old = own.directory / "old.token"
    old.write_text(file.read_text())
    own.add("shop", ["admin"])  # writes the token file, too, as whoever replaces a token does
    own.until(lambda: client.jobs() == [job])
    with pytest.raises(TrackerError, match="the server does not know this token"):
        own.client(old).jobs()


def test_a_watch_gets_nothing_after_its_client_was_removed(own: Secured, job: str) -> None:
    everything = own.client(own.all)
    everything.define_job(spec(job))
    with own.client(own.add_known("reader", ["watch"])).watch(job) as events:
        end(everything, job, "1", "a")
        assert next(events).seq
        own.remove("reader")
        own.until(lambda: _refused(own))
        end(everything, job, "2", "b")
        with pytest.raises(TrackerError, match="does not know this token"):
            next(events)


def _refused(own: Secured) -> bool:
    try:
        own.client(own.directory / "reader.token").jobs()
    except TrackerError:
        return True
    return False


@pytest.mark.parametrize("text", ["", "\n", "a b", "trk_ä", "a\nb"])
def test_a_token_file_with_something_else_is_told_without_it(shared: Secured, tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(CredentialsError, match=f"the token file {file} has to hold a token and nothing else"):
        shared.client(file).jobs()
    with pytest.raises(CredentialsError, match="missing cannot be read: No such file"):
        shared.client(tmp_path / "missing").jobs()


# ---------------------------------------------------------------- options and variables


@pytest.fixture
def shell(shared: Secured) -> Shell:
    shell = Shell(shared.address)
    shell.environment |= {VARIABLES["ca"]: str(shared.authority.ca), VARIABLES["token_file"]: str(shared.all)}
    return shell


def test_the_environment_has_the_credentials(shell: Shell, shared: Secured) -> None:
    assert "limits" in shell("info", "--json")
    del shell.environment[VARIABLES["token_file"]]
    assert "the call carries no token" in shell("jobs", status=1)
    shell.environment[TOKEN_VARIABLE] = shared.all.read_text().strip()
    assert shell("jobs", "--json")


def test_options_have_the_credentials_before_and_after_the_command(shared: Secured) -> None:
    shell = Shell(shared.address)
    files = ["--tls-ca", str(shared.authority.ca), "--token-file", str(shared.all)]
    assert shell("jobs", "--json", *files) == shell(*files, "jobs", "--json")


def test_a_context_has_the_credentials(shared: Secured, tmp_path: Path) -> None:
    shell = Shell("")
    del shell.environment["TRACKER_SERVER"]
    shell.environment["TRACKER_CONFIG"] = str(tmp_path / "config.toml")
    files = ["--tls-ca", str(shared.authority.ca), "--token-file", str(shared.all)]
    shell("context", "set", "secured", "--server", shared.address, *files)
    assert shell("jobs", "--json")
    assert "--tls-ca FILE" in shell("jobs", "--server", shared.address, "--retry-for", "0", status=3)


def test_a_token_is_made_and_used(own: Secured, tmp_path: Path) -> None:
    shell = Shell(own.address)
    made = tmp_path / "shop.token"
    printed = shell("token", "new", "shop", "--scope", "watch", "--job", "*", "--out", str(made))
    assert made.read_text().strip() not in printed
    assert made.stat().st_mode & 0o777 == 0o600
    own.tokens.write_text(own.tokens.read_text() + "\n" + printed)
    own.until(lambda: own.client(made).jobs() == [])
    assert "may hold a token that is in use" in shell(
        "token", "new", "shop", "--scope", "watch", "--job", "*", "--out", str(made), status=2
    )


# ---------------------------------------------------------------- secrets


def test_no_secret_is_printed_pickled_or_raised(shared: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    token = shared.all.read_text().strip()
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    monkeypatch.setenv(VARIABLES["ca"], str(shared.authority.ca))
    for client in (shared.client(shared.all), TrackerClient(shared.address)):
        assert client.server_info().version
        shown = [repr(client), repr(client.credentials), str(vars(client)), repr(pickle.dumps(client))]
        try:
            client.job("no-such-job")
        except TrackerError:
            shown.append(traceback.format_exc())
        assert not [text for text in shown if token in text]


def test_no_secret_is_in_the_log_or_among_the_processes(shared: Secured, tmp_path: Path) -> None:
    token, wrong = shared.all.read_text().strip(), "trk_wrong-and-secret"
    (tmp_path / "wrong").write_text(wrong)
    with pytest.raises(TrackerError) as refused:
        shared.client(tmp_path / "wrong").jobs()
    program = "import sys; from tracker.cli.main import main; sys.exit(main())"
    environment = os.environ | {"TRACKER_SERVER": shared.address, VARIABLES["ca"]: str(shared.authority.ca)}
    environment[VARIABLES["token_file"]] = str(shared.all)
    watching = subprocess.Popen([sys.executable, "-c", program, "wait", "j", "s", "x", "y", "--timeout", "60"],
                                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    try:
        lines = [(Path("/proc") / pid / "cmdline").read_bytes() for pid in (str(shared.server.pid), str(watching.pid))]
    finally:
        watching.kill()
        watching.communicate()
    places = [shared.server.log, str(refused.value), *map(repr, lines)]
    assert not [place for place in places if token in place or wrong in place]


def test_a_client_in_an_error_of_python_shows_no_secret(shared: Secured) -> None:
    program = f"""
import faulthandler, os
from tracker.client import Credentials, TrackerClient
client = TrackerClient({shared.address!r}, credentials=Credentials(ca={str(shared.authority.ca)!r},
                       token_file={str(shared.all)!r}))
client.jobs()
faulthandler.dump_traceback(all_threads=True)
client.job("no-such-job")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "UNKNOWN_JOB" in ran.stderr
    assert shared.all.read_text().strip() not in ran.stderr + ran.stdout


# ---------------------------------------------------------------- hostile names

HOSTILE = [
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "'; DROP TABLE journal; --",
    'a"b',
    "a\nlevel=error fake",
    "a\r\nset-cookie: a=b",
    "{job} %s {0}",
    "<script>alert(1)</script>",
    "\x1b[2Ja",
    "‮evil",
    "a*",
    "[a-z]",
    "a" * 512,
    "\x00",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_a_name(own_shared: Secured, name: str, job: str) -> None:
    """As the name of everything: one line of the log each, nothing but its own files, and a round trip."""
    client = own_shared.client(own_shared.all)
    before = set(own_shared.directory.rglob("*"))
    with pytest.raises(TrackerError, match="is not a valid name; use 1 to 128 letters"):
        client.define_job(spec(name))
    client.define_job(spec(job, segments={name: []}))
    producer = client.open_producer(job, name, name)
    report = producer.epoch()
    report.sent(name, name, name, 1)
    report.received(name, name, name, 1)
    report.close(name, name)
    report.report(commit=True)
    assert client.wait_for_end(job, name, name, name).elements == 1
    assert client.list_events(job).events[0].kind.segment == name  # type: ignore[union-attr]
    client.drain(job, "d1", name)
    client.delete_job(job, force=True)
    assert set(own_shared.directory.rglob("*")) == before
    for line in own_shared.server.log.splitlines():
        assert line.startswith("ts=")
        assert line.isprintable()


@pytest.fixture(scope="module")
def own_shared(servers, authority, tmp_path_factory) -> Secured:  # type: ignore[no-untyped-def]
    return Secured(servers, authority, tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_as_a_name(shared: Secured, name: str, tmp_path: Path) -> None:
    """It gets into the text of a refusal, and so into a header; the pattern of a client is no part of it."""
    file = shared.directory / "narrow.token"
    if not file.exists():
        shared.add_known("narrow", ["admin"], ("no-*",))
    with pytest.raises(TrackerError) as refused:
        shared.client(file).job(name)
    assert refused.value.reason == "PERMISSION_DENIED"
    assert "\n" not in str(refused.value)


def test_credentials_are_values() -> None:
    one, other = Credentials(ca="a.pem"), Credentials(ca=str(Path("a.pem").absolute()))
    assert one == other == pickle.loads(pickle.dumps(one))
    with pytest.raises(ValueError, match="belong together"):
        Credentials(cert="a.pem")
