"""A proxy in the environment is for the way out: this machine's own addresses are reached without it."""

from __future__ import annotations

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server, Silence
from tracker.client import TrackerClient, TrackerUnavailable


@pytest.mark.parametrize("variable", ["grpc_proxy", "http_proxy", "https_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_needs_no_proxy(
    variable: str, host: str, shared_server: Server, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    with Silence() as proxy:
        monkeypatch.setenv(variable, f"http://{proxy.address}")
        port = shared_server.address.rpartition(":")[2]
        # Another spelling for each case: channels of one address are shared.
        with TrackerClient(f"{host}:{port}", timeout=5, retry_for=0) as client:
            client.define_job(spec(f"{job}-{variable}-{host}"))
        assert proxy.callers == 0


def test_who_is_not_reached_over_a_proxy_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    client = TrackerClient("tracker.invalid:7654", timeout=2, retry_for=0)
    with pytest.raises(TrackerUnavailable, match=r"http_proxy=http://127\.0\.0\.1:1.*no_proxy"):
        client.server_info()
