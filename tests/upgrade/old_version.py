"""Earlier versions as they were: their code from the git history, and programs run with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMIT = "560686def1d764889b07728eecf4fcca1245f85a"  #: release 0.1


def is_there(commit: str = COMMIT) -> bool:
    """Return whether this clone has the commit: one that is shallow has not, and a source archive has no history."""
    done = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def checked_out(directory: Path, commit: str = COMMIT) -> Iterator[Path]:
    """Check out the work tree of release 0.1, or of another commit."""
    tree = directory / "earlier"
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), commit], cwd=ROOT, check=True)
    try:
        yield tree
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def environment(tree: Path) -> dict[str, str]:
    """Return Python's environment in which the old packages come before the installed ones."""
    return {**os.environ, "PYTHONPATH": str(tree)}


def run(tree: Path, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python with the old code."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


class OldServer:
    """A real server of release 0.1, with a journal in a file."""

    def __init__(self, tree: Path, journal: Path, *options: str) -> None:
        self.log = journal.with_suffix(".log")
        command = [sys.executable, "-m", "tracker.cli.main", "serve", "--listen", "127.0.0.1:0"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--journal", f"sqlite:{journal}", *options],
                cwd=tree,
                env=environment(tree),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), self.log.read_text()
        self.address = line.split()[-1]

    def end(self, number: signal.Signals) -> None:
        """End the server by a signal, and wait."""
        self._process.send_signal(number)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
