"""buildah and podman on the images and containers of this check, which nothing else on the machine sees."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "image"
IMAGE = "localhost/substream-tracker"
#: For machines that are containers themselves: they may raise no limits, and have no control groups to give.
MACHINE = ("--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")


class CheckError(Exception):
    """Something that the image promises does not hold."""


def engine(
    program: str, *arguments: str, given: str | None = None, may_fail: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run buildah or podman on the images of this check.

    Args:
        program: `buildah` or `podman`.
        arguments: their arguments.
        given: standard input; None: none.
        may_fail: whether another exit status than 0 is an answer.

    Raises:
        CheckError: it exited with another status than 0.
    """
    driver = os.environ.get("STORAGE_DRIVER", "overlay")
    command = [program, "--storage-driver", driver, "--root", f"{HOME}/storage", "--runroot", f"{HOME}/run"]
    if program == "podman":
        command += ["--cgroup-manager", "cgroupfs", "--events-backend", "none"]
    done = subprocess.run([*command, *arguments], input=given or "", capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise CheckError(f"{program} {' '.join(arguments[:3])} …: exit status {done.returncode}\n{done.stderr[-3000:]}")
    return done


class Container:
    """A container, as strict as an engine can make it. It shares the network of another, or has none."""

    def __init__(
        self, name: str, *arguments: str, network: str = "none", options: tuple[str, ...] = (), image: str = IMAGE
    ) -> None:
        self.name = name
        engine("podman", "rm", "--force", "--time=0", "--volumes", name, may_fail=True)
        strict = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"]
        where = [f"--network={network}", "--name", name, *options]
        engine("podman", "run", "--detach", *strict, *MACHINE, *where, image, *arguments)

    def run(self, *command: str, given: str | None = None, may_fail: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as the image's user."""
        return engine("podman", "exec", "--interactive", self.name, *command, given=given, may_fail=may_fail)

    def python(self, program: str) -> str:
        """Run a Python program inside. Return its output."""
        return self.run("python", "-", given=program).stdout.strip()

    def healthy(self) -> bool:
        """Return the answer of the image's own HEALTHCHECK."""
        return not engine("podman", "healthcheck", "run", self.name, may_fail=True).returncode

    def await_healthy(self) -> None:
        """Wait until the container is healthy, for a minute.

        Raises:
            CheckError: the container did not become healthy.
        """
        for _ in range(60):
            if self.healthy():
                return
            time.sleep(1)
        raise CheckError(f"{self.name} is not healthy after a minute")

    def await_logged(self, text: str, seconds: int = 60, times: int = 1) -> None:
        """Wait until the log has a text, or has it so many times, from all starts of the container.

        Raises:
            CheckError: the text did not come in time, or the container has ended before.
        """
        for _ in range(seconds):
            state = self.state()  # before its logs: what it logs last is seen
            if self.logs().count(text) >= times:
                return
            if not state.startswith("running"):
                raise CheckError(f"{self.name} is {state}, and has not logged {text!r} {times} times")
            time.sleep(1)
        raise CheckError(f"{self.name} has not logged {text!r} {times} times after {seconds} s")

    def state(self) -> str:
        """Return the container's state and its last exit status, such as ``exited 1``."""
        return engine(
            "podman", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", self.name
        ).stdout.strip()

    def described(self) -> str:
        """Return the container's state and the end of its log, to find out why something does not hold."""
        return f"--- {self.name}: {self.state()}\n{self.logs()[-3000:]}"

    def logs(self) -> str:
        """Return the container's log."""
        done = engine("podman", "logs", self.name)
        return done.stdout + done.stderr

    def stop(self, signal: str) -> int:
        """End the container by a signal. Return its exit status."""
        engine("podman", "kill", "--signal", signal, self.name)
        return int(engine("podman", "wait", self.name).stdout)

    def start(self) -> None:
        """Start the container again."""
        engine("podman", "start", self.name)

    def remove(self) -> None:
        """Remove the container, and its volumes."""
        engine("podman", "rm", "--force", "--time=0", "--volumes", self.name, may_fail=True)


@contextmanager
def running(*first: Container) -> Iterator[list[Container]]:
    """Yield a list of containers to add to. They are removed at the end; if a check fails, each is described.

    Raises:
        CheckError: with the state and the log of every container.
    """
    started = [*first]
    try:
        yield started
    except CheckError as failed:
        raise CheckError("\n".join([str(failed), *(each.described() for each in started)])) from failed
    finally:
        for each in reversed(started):
            each.remove()


def expect(found: object, expected: object, rule: str) -> None:
    """Print a rule that holds.

    Raises:
        CheckError: the rule does not hold.
    """
    if found != expected:
        raise CheckError(f"{rule}: expected {expected!r}, found {found!r}")
    print(f"ok  {rule}", flush=True)
