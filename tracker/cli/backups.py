"""`tracker backup` and `tracker restore`: the whole state of a tracker, as one file; `tracker import`: without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from tracker.backup import BackupError, Checked, Place, place
from tracker.cli.connection import Connection
from tracker.cli.declarations import WrongUsageError, command, ending_at, new_commands
from tracker.cli.options import need_server_python, needs
from tracker.cli.output import Form, print_json, print_line, print_pairs, progress

if TYPE_CHECKING:
    from tracker.backup import Header

commands = new_commands()
_MIB = 1 << 20


@command(commands, "backup", "tracker backup s3://bucket/tracker/ --keep 30")
def backup(
    at: Connection,
    form: Form,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="a file; a directory, in which each backup gets a name by its time; or an object store, such as "
            "s3://BUCKET/PATH/ (extra `object-store`)",
        ),
    ],
    journal: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help="read this journal, which no tracker uses now, as `tracker serve --journal` names it. Without it, the "
            "tracker is asked, and goes on meanwhile",
        ),
    ] = "",
    final: Annotated[
        bool,
        typer.Option(
            "--final",
            help="with --journal: end the journal, so that no tracker starts on it any more, and the backup may be "
            "restored with --same-log",
        ),
    ] = False,
    moved_to: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            show_default=False,
            help="with --final: the tracker that will continue; a program that still names the journal is referred to "
            "it",
        ),
    ] = "",
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", min=1, show_default=False, help="in a directory: remove older backups, except so many"
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="make none, but check this file, or the newest one of this directory")
    ] = False,
    max_age: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS", min=0, show_default=False, help="with --verify: fail if the backup is older than this"
        ),
    ] = None,
) -> int:
    """Make a backup of a whole tracker, with all jobs, while it runs or of its journal.

    The backup is checked while it is written, and appears only once it is whole. Exit status: 0 it is there; 1 it could
    not be made, or is damaged or too old; 3 no tracker could be reached.
    """
    if final and not journal:
        raise WrongUsageError("--final ends a journal: name it with --journal")
    if moved_to and not final:
        raise WrongUsageError("--moved-to is for --final")
    if verify and (journal or keep is not None):
        raise WrongUsageError("--verify only reads: leave out --journal and --keep")
    if max_age is not None and not verify:
        raise WrongUsageError("--max-age is for --verify")
    with ending_at(BackupError):
        where = place(to)
        if verify:
            return _verify(form, where, max_age)
        if keep is not None and where.file:
            raise WrongUsageError(f"--keep needs a directory, and {to} is a file: end its name with /")
        parts = _read_journal(journal, final, moved_to) if journal else at.single_client().backup()
        with _read(parts, "what the tracker has sent") as made:
            written = where.write(made)
        removed = [] if keep is None else where.keep(keep)
    if form is Form.JSON:
        print_json({"file": written, **asdict(made.header), "removed": removed}, indent=2)
        return 0
    print_line(f"{written} has {_described(made.header)}")
    for name in removed:
        print_line(f"{name} is removed")
    return 0


@command(commands, "restore", "tracker restore s3://bucket/tracker/ --journal redis://redis.internal:6379/0")
def restore(
    form: Form,
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="a backup's file, or a directory: then its newest backup")
    ],
    journal: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="the journal, of any kind, which must be empty, as `tracker serve --journal` names it",
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="set aside what is in the journal, under another name, and remove nothing")
    ] = False,
    same_log: Annotated[
        bool,
        typer.Option(
            "--same-log",
            help="keep the ids of the logs, and the open runs, so that clients go on as if nothing had happened: only "
            "for the last backup of a journal that ended with it (`tracker backup --final`)",
        ),
    ] = False,
) -> int:
    """Make a journal continue with a backup. Start a tracker on it afterwards.

    Every job's log gets a new id, and every open run is fenced: what clients know may be newer than the backup. So
    watchers get LOG_CHANGED and begin again, and reporters get FENCED, open a new run and learn which epochs count.
    Exit status: 0 done; 1 it was not, and the message has what to do.
    """
    need_server_python("restore")
    with needs("restore", "server"):
        from tracker.journal import JournalError
        from tracker.server import backups
    with ending_at(BackupError, JournalError):
        where = place(source)
        name = where.newest()
        with _read(where.parts(name), where.full(name)) as backup:
            done = backups.restore(journal, backup, replace, same_log)
    if form is Form.JSON:
        print_json({"file": where.full(name), "journal": journal, **asdict(done)}, indent=2)
        return 0
    print_line(f"{journal} continues with {where.full(name)}: {_described(done.header)}")
    if done.set_aside:
        print_line(f"what was there before is {done.set_aside}")
    if not same_log:
        print_line(
            f"every job's log has a new id, and open runs are fenced ({done.ended_runs}). Epochs committed after "
            f"{done.header.made} are not in it: let reporters repeat them"
        )
    return 0


@command(
    commands,
    "import",
    "tracker import file:///data/_tracker/shop --into sqlite:tracker.db --moved-to tracker.internal:7654",
)
def import_(
    form: Form,
    journal: Annotated[
        str, typer.Argument(metavar="JOURNAL", help="the journal of a tracker that is stopped, such as a driver's")
    ],
    into: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="the journal of the service, of any kind, which has no jobs"),
    ],
    moved_to: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="where the service will listen; a program that names JOURNAL is referred to it"
        ),
    ],
) -> int:
    """Move a tracker that ran in a driver to a service. Start the service on the journal afterwards.

    Clients go on as if nothing had happened: the ids of the logs and the open runs stay. No tracker starts on the old
    journal any more. If the command is interrupted, repeat it: until the old journal has ended, its tracker can go on,
    and the new one opens for nobody. Exit status: 0 done; 1 it was not, and the message has what to do.
    """
    need_server_python("import")
    with needs("import", "server"):
        from tracker.journal import JournalError
        from tracker.server import backups
    with ending_at(BackupError, JournalError):
        logs = backups.move(journal, into, moved_to)
    if form is Form.JSON:
        print_json({"journal": into, "moved_to": moved_to, "logs": logs}, indent=2)
        return 0
    print_line(f"{into} continues with {_jobs(logs)}, and {journal} has ended")
    print_line(f"start it: tracker serve --journal '{into}' --listen {moved_to}")
    return 0


def _read_journal(journal: str, final: bool, moved_to: str) -> Iterator[bytes]:
    need_server_python("backup --journal")
    with needs("backup --journal", "server"):
        from tracker.journal import JournalError, JournalLockedError
        from tracker.server import backups
    try:
        draft = backups.of_journal(journal, final, moved_to)
    except JournalLockedError as used:
        advice = (
            "Stop that tracker first, or the program that runs it"
            if final
            else "To back up a tracker that runs, leave out --journal"
        )
        raise BackupError(f"{used}. {advice}") from used
    except JournalError as failed:
        raise BackupError(str(failed)) from failed
    draft.seal()
    return draft.parts()


@contextmanager
def _read(parts: Iterable[bytes], name: str) -> Iterator[Checked]:
    """Yield a backup whose parts are shown as they are read."""
    total = 0

    def counted() -> Iterator[bytes]:
        done = 0
        for part in parts:
            done += len(part)
            show(done, total, f"{done / _MIB:,.1f} of {total / _MIB:,.1f} MiB")
            yield part

    with progress(quiet=True) as show:
        backup = Checked(counted(), name)
        total = backup.header.bytes
        yield backup


def _verify(form: Form, where: Place, max_age: float | None) -> int:
    name = where.newest()
    with _read(where.parts(name), where.full(name)) as found:
        for _ in found.state():
            pass
    age = (datetime.now(timezone.utc) - found.header.made_at).total_seconds() / 3600
    if form is Form.JSON:
        print_json({"file": where.full(name), "age_hours": round(age, 3), **asdict(found.header)}, indent=2)
    else:
        print_pairs(_pairs(where.full(name), found.header))
    if max_age is not None and age > max_age:
        raise BackupError(f"{where.full(name)} is {age:.1f} hours old, and {max_age:g} are allowed; make a new one")
    return 0


def _pairs(name: str, header: Header) -> list[tuple[str, object]]:
    jobs = [(f"job {job}", f"log {log.log_id}, {log.last_seq} events") for job, log in sorted(header.jobs.items())]
    return [
        ("backup", name),
        ("made", header.made),
        ("version", header.version),
        ("journal", header.journal),
        ("record", header.record),
        ("final", "yes" if header.final else "no"),
        ("state", f"{header.bytes / _MIB:,.1f} MiB, whole"),
        *jobs,
    ]


def _described(header: Header) -> str:
    return f"{_jobs(header.jobs)} as of record {header.record}, {header.made} ({header.bytes / _MIB:,.1f} MiB)"


def _jobs(jobs: Mapping[str, object]) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
