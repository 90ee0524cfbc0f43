"""The image of the Spark job: its executors report over a relay, as in deploy/compose.yaml."""

from __future__ import annotations

from .engine import ROOT, Container, engine, expect, running
from .server import INSECURE

SPARK = "localhost/substream-tracker-spark"
_SERVER = "127.0.0.1:7654"
_SOCKETS = "image-check-sockets"
_PATIENCE_S = 15 * 60  # a Spark session takes long to start on a small and busy machine; one that ends is seen at once


def check_spark() -> None:
    """Start the job beside a server and a relay, wait for what it releases, and start it again."""
    engine("podman", "volume", "rm", "--force", _SOCKETS, may_fail=True)
    sockets = ("--volume", f"{_SOCKETS}:/run/substream-tracker")
    server = Container("image-check-server", options=(*INSECURE, "--volume", "/var/lib/tracker"))
    network = f"container:{server.name}"
    with running(server) as started:
        server.await_healthy()
        relay = Container("image-check-relay", "relay", "--server", _SERVER, network=network, options=sockets)
        started.append(relay)
        relay.await_logged("listening on ")
        job = Container(
            "image-check-job",
            "/job.py",
            network=network,
            options=(
                *sockets,
                *("--volume", "/var/lib/job", "--volume", f"{ROOT}/deploy/spark/job.py:/job.py:ro"),
                *("--env", f"TRACKER_SERVER={_SERVER}", "--tmpfs", "/tmp"),
            ),
            image=SPARK,
        )
        started.append(job)
        job.await_logged("released in batch", _PATIENCE_S)
        print("ok  the Spark job releases windows, on a read-only root", flush=True)
        expect(job.stop("TERM"), 0, "it exits with 0 after SIGTERM")
        before = job.logs().count("released in batch")
        job.start()
        job.await_logged("released in batch", _PATIENCE_S, times=before + 1)
        printed = [line for line in job.logs().splitlines() if line.startswith("released in batch")]
        rows = [line.partition(": ")[2] for line in printed]
        expect(len(rows), len(set(rows)), "what is released before and after is released once")
    engine("podman", "volume", "rm", "--force", _SOCKETS, may_fail=True)
