"""The probe that the image's health check runs."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from tracker.web.listening import application, listening


async def _nothing() -> Collector:
    return CollectorRegistry()


def probe(reason: str, tls: ssl.SSLContext | None = None) -> tuple[int | None, str]:
    """Return the exit status and output of a probe of an application that is not ready for this reason, or ready."""

    async def run() -> tuple[int | None, str]:
        async with listening(application(_nothing, lambda: reason), "127.0.0.1:0", tls) as url:
            return await _probe(url.partition("://")[2])

    return asyncio.run(run())


async def _probe(*arguments: str) -> tuple[int | None, str]:
    command: Sequence[str] = [sys.executable, "-m", "tracker.web.probe", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    printed, _ = await process.communicate()
    return process.returncode, printed.decode().strip()


def test_a_ready_server_passes_and_an_unready_one_fails_with_its_reason() -> None:
    assert probe("") == (0, "ready")
    assert probe("the journal fails") == (1, "the journal fails")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """Return a certificate of another name than the probe's address, as in a cluster."""
    key, file = (str(tmp_path_factory.mktemp("tls") / name) for name in ("tls.key", "tls.crt"))
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=tracker.shop"]
    command = ["openssl", "req", "-x509", *made, "-keyout", key, "-out", file, "-days", "1"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return context


def test_a_server_with_tls_is_asked_by_https(certificate: ssl.SSLContext) -> None:
    assert probe("", certificate) == (0, "ready")
    assert probe("recovering", certificate) == (1, "recovering")


def test_no_server_is_a_failure_that_names_the_option() -> None:
    status, printed = asyncio.run(_probe("127.0.0.1:1"))
    assert status == 1
    assert printed.startswith("no answer from 127.0.0.1:1: ")
    assert "--metrics" in printed


def test_the_probe_loads_nothing_but_the_standard_library() -> None:
    program = "import sys, tracker.web.probe; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"starlette", "uvicorn", "prometheus_client", "grpc", "numpy"} & set(loaded)


def test_the_path_of_the_probe_is_a_module(tmp_path: Path) -> None:
    """It is started from any folder, as an engine does."""
    command = [sys.executable, "-m", "tracker.web.probe", "127.0.0.1:1"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
