"""A program that restores a backup over a journal, is killed at every step in turn, and shows what a tracker finds.

    python -m tests.backup.interrupting DIRECTORY [REDIS_PORT]

It prints a line for each step: what was about to be done, and the jobs of the journal, or the refusal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stdout, suppress
from pathlib import Path

import redis

from tracker.cli.main import main
from tracker.contract.commands import DefineJob
from tracker.journal import JournalError, Record, open_journal
from tracker.server.replayable import recover
from tracker.wire.codec import Method, read_command
from tracker.wire.gen import tracker_pb2 as wire

_CHANGES = {"open", "os.rename", "os.remove", "os.link", "sqlite3.connect", "os.truncate", "os.chmod"}


def make(where: str, job: str) -> None:
    """Make a journal with a job."""
    spec = wire.JobSpec(job=job, deployment="d", segments=[wire.Segment(name="a")], fronts=["f"])
    payload = wire.DefineJobRequest(spec=spec).SerializeToString()
    assert isinstance(read_command(Method.DEFINE_JOB, payload), DefineJob)
    with closing(open_journal(where)) as journal:
        recover(journal, 1, 1)
        journal.append([Record(Method.DEFINE_JOB, 2, payload)])


def found(where: str) -> str:
    """Return the jobs that a tracker would serve, or why none starts."""
    try:
        with closing(open_journal(where)) as journal:
            state, _ = recover(journal, 1, 3)
            return f"serves {state.tracker.jobs()}"
    except JournalError as error:
        return f"refuses: {error}"


def killed_at(step: int, work: Callable[[], object], marker: str) -> tuple[bool, str]:
    """Do work in a child that is killed before its step of that number; return whether it was, and the step."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        left = [step]

        def count(what: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.write(writer, what.encode()[:200])
                os._exit(9)

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in _CHANGES and marker in str(arguments):
                count(f"{event} {arguments[:2]}")

        sys.addaudithook(hook)
        send = redis.connection.AbstractConnection.send_packed_command

        def send_packed_command(self: object, command: object, check_health: bool = True) -> object:
            if not any(hello in str(command)[:30] for hello in ("HELLO", "CLIENT")):
                count(f"redis {str(command)[:60]}")
            return send(self, command, check_health)  # type: ignore[arg-type]

        redis.connection.AbstractConnection.send_packed_command = send_packed_command  # type: ignore[assignment]
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), suppress(SystemExit):
            os._exit(0 if work() == 0 else 1)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        what = said.read()
    assert os.waitstatus_to_exitcode(status) in (0, 9), f"the restore failed by itself at step {step}"
    return os.waitstatus_to_exitcode(status) == 9, what


def play(directory: Path, port: str) -> None:
    """Kill at each step until there is none left."""
    backup = str(directory / "backup")
    make(f"sqlite:{directory}/other.db", "new")
    with redirect_stdout(sys.stderr):
        assert main(["backup", backup, "--journal", f"sqlite:{directory}/other.db"]) == 0
    step, going = 0, True
    while going:
        step += 1
        if port:
            where = f"redis://127.0.0.1:{port}/0?prefix=j{step}&lease=1&durability=memory"
        else:
            (directory / f"j{step}").mkdir()
            where = f"sqlite:{directory}/j{step}/tracker.db"
        make(where, "old")
        restore = ["restore", backup, "--journal", where, "--replace"]
        going, what = killed_at(step, lambda: main(restore), f"j{step}")  # noqa: B023
        first = found(where)
        with redirect_stdout(sys.stderr):
            again = main(restore) if first.startswith("refuses") else 0
        print(f"{step}\t{what}\t{first}\t{'again: ' + found(where) if not again else 'again failed'}", flush=True)


if __name__ == "__main__":
    play(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
