"""A program that moves states between journals, is killed at every step in turn, and shows what a tracker finds.

    python -m tests.backup.interrupting DIRECTORY file|objects|REDIS_PORT restore|import

The program prints a line for each step: what was about to be done, and the jobs of the journal, or the refusal, after
the kill and once the command was repeated. An import has both for the journal that it moves, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from functools import partial
from pathlib import Path

import redis

from tracker.cli.main import main
from tracker.contract.commands import DefineJob
from tracker.journal import JournalError, Record, open_journal
from tracker.server.replayable import recover
from tracker.wire.codec import Method, read_command
from tracker.wire.gen import tracker_pb2 as wire

_CHANGES = {"open", "os.rename", "os.remove", "os.link", "sqlite3.connect", "os.truncate", "os.chmod"}


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


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
            state = recover(journal, 1, 3).state
            return f"serves {state.tracker.jobs()}"
    except JournalError as error:
        return f"refuses: {error}"


def in_child(work: Callable[[], str], step: int = 0, marker: str = "") -> tuple[bool, str]:
    """Do work in a child, whose libraries start threads of their own, that is killed before a step.

    Args:
        work: what is to be done.
        step: the number of the step; 0: it is not killed.
        marker: what is in the paths of files whose changes are steps.

    Returns:
        True if the process was killed; and the step, or what the work returned.
    """
    reader, writer = os.pipe()
    if not (child := os.fork()):
        if step:
            _count_steps(step, marker, lambda what: os.write(writer, what.encode()[:200]))
        try:
            os.write(writer, work().encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        what = said.read()
    assert os.waitstatus_to_exitcode(status) in (0, 9), f"the work failed by itself at step {step}: {what}"
    return os.waitstatus_to_exitcode(status) == 9, what


def _count_steps(step: int, marker: str, last: Callable[[str], object]) -> None:
    """End this process before its step of that number: a change of a file, or a request to Redis."""
    left = [step]

    def count(what: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            last(what)
            os._exit(9)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        reads = event == "open" and isinstance(arguments[2], int) and not arguments[2] & _WRITES
        if event in _CHANGES and not reads and marker in str(arguments) and "/trial/" not in str(arguments):
            count(f"{event} {arguments[:2]}")

    sys.addaudithook(hook)
    send = redis.connection.AbstractConnection.send_packed_command

    def send_packed_command(self: object, command: object, check_health: bool = True) -> object:
        if not any(hello in str(command)[:30] for hello in ("HELLO", "CLIENT")):
            count(f"redis {str(command)[:60]}")
        return send(self, command, check_health)  # type: ignore[arg-type]

    redis.connection.AbstractConnection.send_packed_command = send_packed_command  # type: ignore[method-assign]


def play_restore(directory: Path, kind: str) -> None:
    """Kill a restore over a journal at each step until there is none left."""
    backup = str(directory / "backup")
    make(f"sqlite:{directory}/other.db", "new")
    _done(["backup", backup, "--journal", f"sqlite:{directory}/other.db"])
    step, going = 0, True
    while going:
        step += 1
        (directory / f"j{step}").mkdir()
        where = journal_of(directory, kind, step)
        restore = ["restore", backup, "--journal", where]
        make(where, "old")
        restore.append("--replace")
        restored = partial(_done, restore)
        going, what = in_child(restored, step, f"j{step}")
        _, first = in_child(partial(found, where))
        if first.startswith("refuses"):
            in_child(restored)
        _, again = in_child(partial(found, where))
        print(f"{step}\t{what}\t{first}\t{again}", flush=True)


def play_import(directory: Path, kind: str) -> None:
    """Kill an import into an empty journal at each step until there is none left."""
    step, going = 0, True
    while going:
        step += 1
        (directory / f"j{step}").mkdir()
        where, into = f"file://{directory}/j{step}/driver?lease=1", journal_of(directory, kind, step)
        make(where, "shop")
        moved = partial(_done, ["import", where, "--into", into, "--moved-to", "tracker:7654"])
        going, what = in_child(moved, step, f"j{step}")
        first = [in_child(partial(found, each))[1] for each in (where, into)]
        in_child(moved)
        again = [in_child(partial(found, each))[1] for each in (where, into)]
        print("\t".join([str(step), what, *first, *again]), flush=True)


def journal_of(directory: Path, kind: str, step: int) -> str:
    """Return the address of a step's own journal."""
    return {
        "file": f"sqlite:{directory}/j{step}/tracker.db",
        "objects": f"file://{directory}/j{step}/journal?marks={directory}/j{step}/marks&lease=1",
    }.get(kind, f"redis://127.0.0.1:{kind}/0?prefix=j{step}&lease=1&durability=memory")


def _done(command: list[str]) -> str:
    with redirect_stdout(sys.stderr):
        assert main(command) == 0
    return ""


if __name__ == "__main__":
    {"restore": play_restore, "import": play_import}[sys.argv[3]](Path(sys.argv[1]), sys.argv[2])
