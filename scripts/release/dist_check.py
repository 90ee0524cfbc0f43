"""Builds the distributions, and tries each extra where nothing else of this project is.

    python -m scripts.release.dist_check              # all
    python -m scripts.release.dist_check server spark # only these extras; `base` is the package without any

1. The sdist is built from the files that git has, and the wheel from the sdist; both are left in `dist/`. twine checks
   their metadata; the wheel has every module and data file that git has, and nothing else.
2. Each extra is installed from the wheel into an environment of its own in `.cache/dist`, beside nothing else, and is
   used from an empty folder: clients without server and command line, the server without Spark, Spark's client without
   server, the load, the test kit with somebody's tests, each other extra with what it is for. Nothing is compiled.

The first run downloads the libraries, in the versions of constraints.txt; later ones need no network. Exit status: 0
everything holds; 1 something does not.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from .building import build, check_contents
from .environments import ROOT, Environment, ReleaseError, environment, with_extra
from .programs import MODULES, REPORT, SPARK, TESTS, USES

_SERVER_ONLY: Final = ("msgpack", "prometheus_client", "starlette", "uvicorn")
_SPARK_ONLY: Final = ("pandas", "py4j", "pyspark")
_CLI_ONLY: Final = ("rich", "tomlkit", "typer")


class Running:
    """A tracker that runs in an environment.

    Args:
        installed: an environment with the extra `server`.
        directory: where its journal is.
    """

    def __init__(self, installed: Environment, directory: Path) -> None:
        command = [str(installed.home / "bin" / "tracker"), "serve", "--listen", "127.0.0.1:0"]
        command += ["--metrics", "127.0.0.1:0", "--journal", f"sqlite:{directory / 'tracker.db'}"]
        self._log = (directory / "log").open("w+")
        self._process = subprocess.Popen(
            command, cwd=directory, env=environment(), stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        self.address = self._read("listening on ")
        self.metrics = self._read("metrics on ")

    def _read(self, beginning: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.startswith(beginning):
            self._log.seek(0)
            raise ReleaseError(f"the server does not start: {line}\n{self._log.read()[-3000:]}")
        return line.removeprefix(beginning)

    def stop(self) -> int:
        """End the process. Return its exit status."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        status = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
        return status


@contextmanager
def running(installed: Environment, directory: Path) -> Iterator[Running]:
    """Run a tracker that is stopped at the end, whatever happens."""
    server = Running(installed, directory)
    try:
        yield server
    finally:
        server.stop()


def expect(found: object, right: object, rule: str) -> None:
    """Print a rule that holds.

    Raises:
        ReleaseError: the rule does not hold.
    """
    if found != right:
        raise ReleaseError(f"{rule}: expected {right!r}, found {found!r}")
    print(f"  ok  {rule}", flush=True)


class Checks:
    """The checks of the extras.

    Args:
        wheel: what was built.
        home: an empty folder.
    """

    def __init__(self, wheel: Path, home: Path) -> None:
        self._wheel = wheel
        self._home = home
        self.all: dict[str, Callable[[], None]] = {
            "base": self.base,
            "cli": self.cli,
            "server": self.server,
            "load": self.load,
            "testing": self.testing,
            "spark": self.spark,
            **{extra: partial(self.used, extra) for extra in USES},
        }

    def _installed(self, extra: str, lacking: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> Environment:
        """Make an environment with an extra, which has the package from the wheel and lacks what other extras have."""
        installed = with_extra(extra, self._wheel, more)
        where, missing = installed.run("-c", MODULES, *lacking, directory=self._home).stdout.splitlines()
        expect(str(installed.home) in where and str(ROOT / "tracker") not in where, True, "the package is the wheel's")
        expect(missing.split(), list(lacking), f"it brings none of {', '.join(lacking)}" if lacking else "it is whole")
        return installed

    def _server(self) -> Environment:
        return with_extra("server", self._wheel)

    def _tracker(self, installed: Environment, *arguments: str, status: int = 0) -> str:
        """Run the command line. Return its output, or its stderr if it is to fail."""
        done = installed.run("-m", "tracker.cli.main", *arguments, directory=self._home, status=status)
        return done.stderr if status else done.stdout

    def base(self) -> None:
        """Check that a client alone reports, and sees the end."""
        client = self._installed("", (*_SERVER_ONLY, *_SPARK_ONLY, *_CLI_ONLY))
        with running(self._server(), self._home) as server:
            done = client.run("-c", REPORT, server.address, "dist-base", directory=self._home)
            expect(done.stdout, "1\n", "a client reports to a server, and sees the end")
        advice = "tracker: needs typer: pip install 'substream-tracker[cli]'\n"
        expect(self._tracker(client, "jobs", status=2), advice, "`tracker` names the extra that it needs")

    def cli(self) -> None:
        """Check that the command line asks a server, and names the extra where more is needed."""
        line = self._installed("cli", (*_SERVER_ONLY, *_SPARK_ONLY))
        with running(self._server(), self._home) as server:
            line.run("-c", REPORT, server.address, "dist-cli", directory=self._home)
            shown = self._tracker(line, "jobs", "--server", server.address)
            expect("dist-cli" in shown, True, "`tracker jobs` lists the job")
        refused = self._tracker(line, "serve", status=2)
        expect("pip install 'substream-tracker[server]'" in refused, True, "`tracker serve` names the extra")

    def server(self) -> None:
        """Check that a server runs without Spark, keeps its journal, and serves its page."""
        installed = self._installed("server", _SPARK_ONLY)
        with running(installed, self._home) as server:
            installed.run("-c", REPORT, server.address, "dist-server", directory=self._home)
            for path in ("/readyz", "/metrics", "/"):
                with urlopen(f"{server.metrics}{path}", timeout=30) as answered:
                    expect((answered.status, bool(answered.read())), (200, True), f"it serves {path}")
            expect(server.stop(), 0, "it stops with 0 after SIGTERM")
        with running(installed, self._home) as server:
            shown = self._tracker(installed, "jobs", "--server", server.address)
            expect("dist-server" in shown, True, "after a start, the state is there")
        self._dev(installed)

    def _dev(self, installed: Environment) -> None:
        """Check that `tracker dev`, started as `uvx --from …` does, prints what reaches it."""
        command = [
            str(installed.home / "bin" / "tracker"),
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
        ]
        with subprocess.Popen(command, cwd=self._home, env=environment(), stdout=subprocess.PIPE, text=True) as dev:
            assert dev.stdout is not None
            shown = list(iter(dev.stdout.readline, "  Ctrl-C stops everything.\n"))
            (client,) = [line.strip() for line in shown if "TrackerClient(" in line]
            program = f"import tracker.client\n{client}\nwhile not client.jobs(): pass\nprint(client.jobs())"
            done = installed.run("-c", program, directory=self._home)
            expect(done.stdout, "['example']\n", "`tracker dev` has its example job, and prints what reaches it")
            dev.send_signal(signal.SIGINT)
        expect(dev.returncode, 0, "it stops with 0 after Ctrl-C")

    def load(self) -> None:
        """Check that the load drives a server that is installed elsewhere."""
        installed = self._installed("load", (*_SERVER_ONLY, *_SPARK_ONLY))
        with running(self._server(), self._home) as server:
            arguments = ("load", "smoke", "--server", server.address, "--duration", "1")
            figure = self._home / "load.png"
            shown = self._tracker(installed, *arguments, "--plot", str(figure))
            right = "every substream was announced exactly once, with the right count, and none too early"
            expect(right in shown, True, "a load run is right")
            expect(figure.read_bytes()[:4], b"\x89PNG", "and it is drawn")

    def testing(self) -> None:
        """Check that somebody's tests get the fixtures, and fail with the reason."""
        installed = self._installed("testing", _SPARK_ONLY, ("pytest",))
        folder = self._home / "tests"
        folder.mkdir()
        (folder / "test_mine.py").write_text(TESTS)
        printed = installed.run("-m", "pytest", "-q", directory=folder, status=1).stdout
        expect("1 failed, 1 passed" in printed, True, "a right test passes, and a wrong one fails")
        expect("1 in flight" in printed, True, "with the reason")

    def spark(self) -> None:
        """Check that a Spark job runs without the server's libraries."""
        installed = self._installed("spark", (*_SERVER_ONLY, *_CLI_ONLY))
        folder = self._home / "spark"
        folder.mkdir()
        with running(self._server(), self._home) as server:
            done = installed.run("-c", SPARK, server.address, directory=folder)
            released = [line for line in done.stdout.splitlines() if line != "released []"]
            expect(released, ["released [2]"], "a Spark job releases a day, once")

    def used(self, extra: str) -> None:
        """Check that the packages of an extra work."""
        printed = self._installed(extra).run("-c", USES[extra], directory=self._home).stdout
        expect(printed.split()[-1:], ["1"], f"what needs {extra} works")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*Checks(Path(), Path()).all]
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"{', '.join(names)} (default: all)")
    chosen = parser.parse_args().extras or names
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no extra {', '.join(sorted(unknown))}")
    try:
        sdist, wheel = build()
        check_contents(sdist, wheel)
        print(f"  ok  {sdist.name} and {wheel.name} are built, and are what they should be", flush=True)
        for name in chosen:
            began = time.monotonic()
            print(f"--  {name}", flush=True)
            with tempfile.TemporaryDirectory() as home:
                Checks(wheel, Path(home)).all[name]()
            print(f"      {time.monotonic() - began:.0f} s", flush=True)
    except ReleaseError as failed:
        print(f"dist-check: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
