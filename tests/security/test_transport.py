"""TLS and mutual TLS with real certificates, which are replaced while calls run; and where it is required."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.security.authority import Authority
from tests.security.secured import Secured
from tests.server.processes import Servers, StartFailedError
from tracker.client import Credentials, CredentialsError, TrackerClient, TrackerError, TrackerUnavailable


def impatient(secured: Secured, credentials: Credentials, address: str = "") -> TrackerClient:
    return TrackerClient(address or secured.address, timeout=20, retry_for=0, credentials=credentials)


# ---------------------------------------------------------------- the server's certificate


def test_a_client_refuses_the_certificate_of_another_authority(shared: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises(TrackerUnavailable, match="Its certificate is not of the authorities in"):
        impatient(shared, Credentials(ca=str(other.ca))).server_info()


def test_a_client_refuses_the_certificate_of_another_name(
    servers: Servers, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.sign("elsewhere", "DNS:elsewhere.shop")
    server = servers.start(tmp_path, "memory", "--tls-cert", str(cert), "--tls-key", str(key))
    with pytest.raises(TrackerUnavailable):
        TrackerClient(server.address, retry_for=0, credentials=Credentials(ca=str(authority.ca))).server_info()


def test_a_client_without_tls_is_told_the_option(shared: Secured) -> None:
    with pytest.raises(TrackerUnavailable, match="--tls-ca FILE"):
        impatient(shared, Credentials()).server_info()


def test_a_client_with_tls_is_told_that_the_server_has_none(servers: Servers, shared: Secured, tmp_path: Path) -> None:
    plain = servers.start(tmp_path)
    with pytest.raises(TrackerUnavailable, match="It does not use TLS"):
        impatient(shared, shared.credentials(None), plain.address).server_info()


def test_a_new_certificate_is_used_without_a_restart_and_calls_go_on(
    servers: Servers, tmp_path: Path, job: str
) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    secured = Secured(servers, first, tmp_path)
    old = secured.client(secured.all)
    old.define_job(spec(job))
    failed: list[Exception] = []
    stop = threading.Event()

    def ask() -> None:
        try:
            while not stop.is_set():
                old.job(job)
        except Exception as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    with old.watch(job) as events:
        seen = threading.Thread(target=lambda: next(events, None))
        seen.start()
        asking.start()
        cert, key = second.sign("tracker")
        assert (cert, key) == (secured.cert, secured.key)
        with pytest.raises(TrackerUnavailable):
            impatient(secured, Credentials(ca=str(first.ca))).server_info()  # without a token: a connection of its own
        new = impatient(secured, Credentials(ca=str(second.ca), token_file=str(secured.all)))
        assert new.jobs() == [job]
        stop.set()
        asking.join()
        new.define_job(spec(job, deployment="d2"), force=True)
        new.drain(job, "d2", "stop")
        seen.join()  # the watch of before has the event
    assert not failed
    assert "the certificate was read again" in secured.server.log


def test_a_certificate_without_its_key_changes_nothing(servers: Servers, authority: Authority, tmp_path: Path) -> None:
    own = Authority(tmp_path, "own")
    secured = Secured(servers, own, tmp_path)
    other, _ = authority.sign("tracker")
    secured.cert.write_bytes(other.read_bytes())
    for number in range(2):  # each with a connection of its own
        token = tmp_path / str(number)
        token.write_text(secured.all.read_text())
        assert impatient(secured, secured.credentials(token)).jobs() == []
    assert secured.server.log.count("the certificate stays as it was") == 1
    assert "KEY_VALUES_MISMATCH" in secured.server.log


# ---------------------------------------------------------------- the clients' certificates


@pytest.fixture
def mutual(servers: Servers, authority: Authority, tmp_path: Path) -> Secured:
    """Return a tracker that asks for certificates, and has one client by that and others by tokens."""
    secured = Secured(servers, authority, tmp_path)
    secured.server.stop()
    known = '[clients.known]\ncertificate = "known"\nscopes = ["watch"]\njobs = ["*"]\n'
    secured.tokens.write_text(secured.tokens.read_text() + "\n" + known)
    tls = ["--tls-cert", str(secured.cert), "--tls-key", str(secured.key), "--tls-client-ca", str(authority.ca)]
    secured.server = servers.start(tmp_path, "memory", *tls, "--tokens", str(secured.tokens))
    secured.address = secured.server.address
    return secured


def shows(mutual: Secured, name: str, token: Path | None = None) -> Credentials:
    cert, key = mutual.authority.sign(name)
    return Credentials(str(mutual.authority.ca), str(cert), str(key), str(token) if token else None)


def test_a_certificate_stands_for_its_client(mutual: Secured) -> None:
    client = impatient(mutual, shows(mutual, "known"))
    assert client.jobs() == []
    with pytest.raises(TrackerError, match="client 'known' may not use DefineJob"):
        client.define_job(spec("a"))


def test_a_token_goes_before_a_certificate(mutual: Secured) -> None:
    assert impatient(mutual, shows(mutual, "known", mutual.all)).define_job(spec("a")).created


def test_a_certificate_that_no_client_has_is_told(mutual: Secured) -> None:
    with pytest.raises(TrackerError, match="no client of the server's tokens file has a certificate of the name 'odd'"):
        impatient(mutual, shows(mutual, "odd")).jobs()


def test_no_certificate_and_one_of_another_authority_get_no_connection(mutual: Secured, tmp_path: Path) -> None:
    with pytest.raises(TrackerUnavailable):
        impatient(mutual, Credentials(str(mutual.authority.ca), token_file=str(mutual.all))).jobs()
    (tmp_path / "other").mkdir()
    cert, key = Authority(tmp_path / "other").sign("known")
    with pytest.raises(TrackerUnavailable):
        impatient(mutual, Credentials(str(mutual.authority.ca), str(cert), str(key))).jobs()


def test_without_a_file_of_clients_a_certificate_is_enough(
    servers: Servers, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.sign("tracker")
    tls = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(authority.ca)]
    server = servers.start(tmp_path, "memory", *tls)
    cert, key = authority.sign("anyone")
    client = TrackerClient(server.address, credentials=Credentials(str(authority.ca), str(cert), str(key)))
    assert client.define_job(spec("a")).created


def test_a_client_uses_its_new_certificate_when_it_connects_again(mutual: Secured, tmp_path: Path) -> None:
    """The old one is of an authority that the server does not trust, so only the new one can have connected."""
    (tmp_path / "own").mkdir()
    cert, key = Authority(tmp_path / "own").sign("known")
    client = TrackerClient(
        mutual.address, retry_for=60, credentials=Credentials(str(mutual.authority.ca), str(cert), str(key))
    )
    with pytest.raises(TrackerUnavailable):
        impatient(mutual, client.credentials).jobs()
    good_cert, good_key = mutual.authority.sign("known")
    cert.write_bytes(good_cert.read_bytes())
    key.write_bytes(good_key.read_bytes())
    assert client.jobs() == []


# ---------------------------------------------------------------- where it is required


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "tracker.shop:0", "169.254.1.1:0"])
def test_a_server_without_protection_does_not_listen_beyond_its_machine(
    servers: Servers, tmp_path: Path, listen: str
) -> None:
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "memory", "--listen", listen)
    assert failed.value.status == 2
    assert "TLS (--tls-cert FILE --tls-key FILE) and clients (--tokens FILE" in failed.value.log
    assert "--insecure" in failed.value.log


def test_half_a_protection_is_not_enough(servers: Servers, shared: Secured, tmp_path: Path) -> None:
    tls = ["--tls-cert", str(shared.cert), "--tls-key", str(shared.key)]
    tokens = ["--tokens", str(shared.tokens)]
    for options, missing in ((tls, "needs clients ("), (tokens, "needs TLS (")):
        with pytest.raises(StartFailedError, match=missing.replace("(", r"\(")):
            servers.start(tmp_path, "memory", "--listen", "0.0.0.0:0", *options)
    for options in ([*tls, *tokens], [*tls, "--tls-client-ca", str(shared.authority.ca)], ["--insecure"]):
        servers.start(tmp_path, "memory", "--listen", "0.0.0.0:0", *options).stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tls-cert", "CERT"], "belong together"),
        (["--tls-client-ca", "CERT"], "--tls-client-ca needs --tls-cert"),
        (["--tls-cert", "CERT", "--tls-key", "CERT"], "cannot be used"),
        (["--tls-cert", "CERT", "--tls-key", "/nonexistent"], "/nonexistent cannot be read"),
        (["--tls-cert", "CERT", "--tls-key", "KEY", "--tls-client-ca", "KEY"], "the authorities"),
        (["--tokens", "/nonexistent"], "the tokens file /nonexistent cannot be read"),
        (["--tokens", "CERT"], "is not valid TOML"),
    ],
)
def test_what_cannot_be_used_ends_the_start(
    servers: Servers, shared: Secured, tmp_path: Path, options: list[str], told: str
) -> None:
    files = {"CERT": str(shared.cert), "KEY": str(shared.key)}
    with pytest.raises(StartFailedError, match=told) as failed:
        servers.start(tmp_path, "memory", *[files.get(option, option) for option in options])
    assert failed.value.status == 2
    assert "BEGIN" not in failed.value.log


def test_a_token_does_not_leave_the_machine_without_tls(shared: Secured) -> None:
    credentials = Credentials(token_file=str(shared.all))
    client = TrackerClient("tracker.invalid:7654", retry_for=0, credentials=credentials)
    with pytest.raises(CredentialsError, match=r"would go to tracker.invalid:7654 in plain text.*--tls-ca FILE"):
        client.jobs()


def test_on_loopback_tokens_work_without_tls(servers: Servers, shared: Secured, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--tokens", str(shared.tokens))
    known, unknown = Credentials(token_file=str(shared.all)), Credentials()
    assert impatient(shared, known, server.address).jobs() == []
    with pytest.raises(TrackerError, match="the call carries no token; name the file that holds it: --token-file FILE"):
        impatient(shared, unknown, server.address).jobs()
