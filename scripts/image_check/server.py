"""The tracker's image: a server, from its first start to its last, and a relay."""

from __future__ import annotations

import json

from .engine import Container, expect, running

#: The containers of this check share a network with nothing else.
INSECURE = ("--env", "TRACKER_SERVE_INSECURE=true")
#: Reports one element, sent and received, and prints how many the substream had when it ended.
REPORT = """
from tracker.client import JobSpec, TrackerClient, label
client = TrackerClient("127.0.0.1:7654")
client.define_job(JobSpec(job="image", deployment="d1", segments={"work": []}))
epoch = client.open_producer("image", producer="check", run="1").epoch()
epoch.sent("work", "scope", "name", label("element"))
epoch.received("work", "scope", "name", label("element"))
epoch.close("scope", "name")
epoch.report(commit=True)
"""
ENDED = """
from tracker.client import TrackerClient
print(TrackerClient("127.0.0.1:7654").wait_for_end("image", "work", "scope", "name", timeout=30).elements)
"""
#: Prints the rights of a process of the container: its user, its capabilities, and where it can write.
RIGHTS = """
import json, os, pathlib
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/1/status").read_text().splitlines())
writable = []
for place in ("/", "/etc", "/opt/tracker", "/tmp", "/usr", "/var", "/var/lib/tracker"):
    try:
        open(f"{place}/probe", "x").close()
        os.unlink(f"{place}/probe")
        writable.append(place)
    except OSError:
        pass
print(json.dumps({"uid": status["Uid"].split()[0], "gid": status["Gid"].split()[0], "capabilities": status["CapEff"],
                  "no_new_privileges": status["NoNewPrivs"], "writable": writable}))
"""


def check_server() -> None:
    """Check a server in a container, from its first start to its last."""
    server = Container("image-check-server", options=(*INSECURE, "--volume", "/var/lib/tracker"))
    with running(server):
        server.await_healthy()
        print("ok  the server starts on a read-only root, and its health check passes", flush=True)
        rights = json.loads(server.python(RIGHTS))
        expect((rights["uid"], rights["gid"]), ("10001", "10001"), "it runs as user and group 10001")
        expect(rights["capabilities"].strip("0"), "", "it has no capability")
        expect(rights["no_new_privileges"], "1", "it can get no privilege")
        expect(rights["writable"], ["/var/lib/tracker"], "it can write only to its journal's folder")
        server.python(REPORT)
        expect(server.python(ENDED), "1", "a report is taken, and its substream ends")
        expect(server.stop("TERM"), 0, "it exits with 0 after SIGTERM")
        server.start()
        server.await_healthy()
        expect(server.python(ENDED), "1", "the state is there after a stop and a start")
        expect(server.stop("KILL"), 137, "it is killed by SIGKILL")
        server.start()
        server.await_healthy()
        expect(server.python(ENDED), "1", "the state is there after SIGKILL and a start")
        check_relay(server)


def check_relay(server: Container) -> None:
    """Check a relay of the same image, which reaches the server and serves its clients."""
    arguments = ("relay", "--server", "127.0.0.1:7654", "--listen", "127.0.0.1:7655")
    relay = Container("image-check-relay", *arguments, network=f"container:{server.name}")
    with running(relay):
        relay.await_logged("listening on 127.0.0.1:7655")
        jobs = relay.run("tracker", "jobs", "--server", "127.0.0.1:7655")
        expect("image" in jobs.stdout, True, "the same image runs a relay")


def check_health_fails() -> None:
    """Check that the health check fails in a container without a server."""
    idle = Container("image-check-idle", "60", options=("--entrypoint", "sleep"))
    with running(idle):
        expect(idle.healthy(), False, "the health check fails where no server answers")
