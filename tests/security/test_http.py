"""The status page and the metrics of a tracker with TLS and tokens, and of one on loopback without any."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.security.authority import Authority
from tests.security.secured import Secured
from tests.server.processes import Server, Servers, StartFailedError
from tracker.contract.refusal import Refused
from tracker.security.http import _check_host


@pytest.fixture(scope="module")
def site(servers: Servers, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    site = Secured(servers, authority, tmp_path_factory.mktemp("site"), "--metrics", "127.0.0.1:0")
    client = site.client(site.all)
    client.define_job(spec("shop"))
    client.define_job(spec("mail"))
    site.add("everything", ["watch"])
    site.add("reporter", ["report"])
    site.add_known("shopkeeper", ["watch"], ("shop",))
    return site


def fetch(
    site: Secured | Server, path: str, token: str = "", host: str = "", ca: Path | None = None
) -> tuple[int, str]:
    """Fetch the status and the text of an answer."""
    server = site.server if isinstance(site, Secured) else site
    scheme, _, address = server.metrics.partition("://")
    context = ssl.create_default_context(cafile=str(ca)) if ca else ssl._create_unverified_context()
    connection = (
        http.client.HTTPSConnection(address, timeout=30, context=context)
        if scheme == "https"
        else http.client.HTTPConnection(address, timeout=30)
    )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", path, headers=headers | ({"Host": host} if host else {}))
    answer = connection.getresponse()
    found = answer.status, answer.read(1 << 16).decode()
    connection.close()
    return found


def token(site: Secured, name: str) -> str:
    return (site.directory / f"{name}.token").read_text().strip()


def test_health_and_the_pages_files_are_open_by_tls(site: Secured) -> None:
    for path in ("/healthz", "/readyz", "/", "/static/main.js"):
        assert fetch(site, path, ca=site.authority.ca)[0] == 200, path


@pytest.mark.parametrize(
    "path", ["/metrics", "/api/jobs", "/api/server", "/api/explain?job=shop", "/api/live/jobs", "/else"]
)
def test_everything_else_needs_a_token(site: Secured, path: str) -> None:
    assert fetch(site, path)[0] == 401
    assert fetch(site, path, "trk_wrong")[0] == 401
    status, text = fetch(site, path, token(site, "reporter"))
    assert status == 403
    assert "needs the scope watch, and has report" in json.loads(text)["error"]


def test_metrics_need_every_job(site: Secured) -> None:
    assert "tracker_" in fetch(site, "/metrics", token(site, "everything"))[1]
    status, text = fetch(site, "/metrics", token(site, "shopkeeper"))
    assert (status, 'needs jobs = ["*"]' in json.loads(text)["error"]) == (403, True)


def test_the_page_shows_the_jobs_of_the_tokens_patterns(site: Secured) -> None:
    names = {
        name: {job["job"] for job in json.loads(fetch(site, "/api/jobs", token(site, name))[1])["jobs"]}
        for name in ("everything", "shopkeeper")
    }
    assert names == {"everything": {"shop", "mail"}, "shopkeeper": {"shop"}}
    for path in ("/api/substreams", "/api/explain", "/api/events", "/api/live/job"):
        assert fetch(site, f"{path}?job=mail", token(site, "shopkeeper"))[0] == 403, path


def test_a_live_view_ends_when_its_client_was_removed(site: Secured) -> None:
    site.add_known("guest", ["watch"])
    address = site.server.metrics.partition("://")[2]
    connection = http.client.HTTPSConnection(address, timeout=120, context=ssl._create_unverified_context())
    connection.request("GET", "/api/live/job?job=shop", headers={"Authorization": f"Bearer {token(site, 'guest')}"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"event: hello")
    site.remove("guest")
    while answer.readline():  # it ends, within its time between two signs of life
        pass
    connection.close()


def test_the_certificate_of_https_is_replaced_without_a_restart(servers: Servers, tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    own = Secured(servers, first, tmp_path, "--metrics", "127.0.0.1:0")
    assert fetch(own, "/healthz", ca=first.ca)[0] == 200
    second.sign("tracker")
    own.until(lambda: fetch(own, "/healthz", ca=second.ca)[0] == 200)


def test_it_is_not_served_beyond_the_machine_without_protection(servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(StartFailedError, match="to serve the status page and the metrics there needs TLS"):
        servers.start(tmp_path, "memory", "--metrics", "0.0.0.0:0")


# ---------------------------------------------------------------- loopback


@pytest.fixture(scope="module")
def plain(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return servers.start(tmp_path_factory.mktemp("plain"), "memory", "--metrics", "127.0.0.1:0")


def test_on_loopback_the_page_is_open_to_its_own_names_only(plain: Server) -> None:
    port = plain.metrics.rpartition(":")[2]
    for host in ("", f"localhost:{port}", f"127.0.0.1:{port}", "dev.localhost"):
        assert fetch(plain, "/api/jobs", host=host)[0] == 200, host
    for host in (
        f"evil.example:{port}",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
    ):
        for path in ("/api/jobs", "/metrics", "/"):
            status, text = fetch(plain, path, host=host)
            assert (status, json.loads(text)["reason"]) == (403, "PERMISSION_DENIED"), host


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "[::1]", "[::1]:80", "127.9.9.9:80", "a.localhost.:1"])
def test_a_host_of_this_machine(host: str) -> None:
    _check_host(host)


@pytest.mark.parametrize("host", ["", ":80", "[::2]:80", "example", "localhost@evil", "0x7f.1", "[::1", "local host"])
def test_another_host(host: str) -> None:
    with pytest.raises(Refused):
        _check_host(host)
