"""Every command of docs/howto/runbook.md runs as it stands, on the tracker that docs/howto/security.md sets up."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples.services.processes import free_port
from tests.security.quick_start import QuickStart
from tests.security.secured import Secured
from tracker.client import Credentials, JobSpec, TrackerClient

_SETUP, _SECTIONS = (Path(__file__).parents[2] / "docs" / "howto" / "runbook.md").read_text().partition("\n## ")[::2]
_TOKEN, _EXPORT = re.findall(r"^```sh\n(.*)\n(export .*)\n```", _SETUP, re.M)[0]


def throw_away(client: TrackerClient, job: str) -> str:
    """Define a job with a front that has promised nothing, and a substream that cannot end."""
    client.define_job(JobSpec(job=job, deployment="d1", segments={"raw": []}, fronts=["eu"]))
    with client.open_producer(job, "source", "1") as producer:
        report = producer.epoch()
        report.sent("raw", "JFK", "2013-01-01", 1)
        report.report(commit=True)
    return job


@pytest.mark.thorough
def test_every_command_of_the_runbook_runs_with_tls_and_tokens(tmp_path: Path) -> None:
    http, relay = free_port(), free_port()
    start = QuickStart(
        tmp_path, TRACKER_SERVE_METRICS=f"127.0.0.1:{http}",
        TRACKER_SERVE_TLS_CERT="tls.crt", TRACKER_SERVE_TLS_KEY="tls.key", TRACKER_SERVE_TOKENS="tokens.toml",
    )  # fmt: skip
    (tmp_path / "backups").mkdir()
    filled = {
        "HOST:7654": f"localhost:{start.port}",
        "HOST:7660": f"localhost:{http}",
        "HOST:7661": f"localhost:{relay}",
        "DIRECTORY": "backups",
        "ADDRESS": "sqlite:new.db",
        "SCOPE": "JFK",
        "NAME": "2013-01-01",
        "FRONT": "eu",
    }

    def fill(command: str) -> str:
        return re.sub(r"\b(?:HOST:\d+|[A-Z]+)\b", lambda found: filled[found[0]], command)

    with ExitStack() as stack, ExitStack() as serving:
        serving.enter_context(start.tracker())
        assert start.run(_TOKEN).returncode == 0
        tls, export = str(tmp_path / "ca.pem"), fill(_EXPORT)
        Secured.until(lambda: start.run(f"{export} && tracker info").returncode == 0)  # it has read the new token
        assert start.run(f"{export} && tracker backup backups/").returncode == 0  # as is made regularly
        relaying = f"tracker relay --listen unix:{tmp_path}/relay --metrics {filled['HOST:7661']}"
        stack.enter_context(start.serving(f"{export} && exec {relaying}"))
        client = TrackerClient(
            filled["HOST:7654"], credentials=Credentials(ca=tls, token_file=str(tmp_path / "flights-job.token"))
        )
        commands = [span for span in re.findall(r"`([^`]+)`", _SECTIONS) if re.match(r"[a-z]\S*\s", span)]
        assert {command.split()[0] for command in commands} == {"tracker", "curl", "df"}
        for number, command in enumerate(commands):
            if command.startswith("tracker restore"):
                serving.close()
            elif command.startswith("tracker serve"):
                serving.enter_context(start.serving(f"exec {fill(command)} --listen 127.0.0.1:{start.port}"))
                continue
            else:
                filled["JOB"] = throw_away(client, f"flights-{number}")
            ran = start.run(f"{export} && {fill(command)}")
            assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
