"""`tracker ledger`: what became of every row of each substream, added up from receipts. It needs no tracker."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from tracker.cli.declarations import WrongUsageError, command, new_commands
from tracker.cli.forms import Form
from tracker.cli.output import print_json, print_line, print_rows

commands = new_commands()


@command(commands, "ledger", "tracker ledger /data/receipts --late /cp/daily/tracker/late --wrong")
def ledger(
    form: Form,
    receipts: Annotated[
        Path, typer.Argument(metavar="RECEIPTS", help="a directory of receipts: Parquet, or JSON with one a line")
    ],
    late: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="a query's table of late rows: tracker/late in its checkpoint; repeatable"),
    ] = None,
    job: Annotated[str, typer.Option(metavar="JOB", help="only this job")] = "",
    scope: Annotated[list[str] | None, typer.Option(metavar="SCOPE", help="only this scope; may be repeated")] = None,
    segments: Annotated[bool, typer.Option("--segments", help="also a line for each segment")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="only substreams that do not add up")] = False,
) -> int:
    """Add up what became of every row: released, given up, filtered, late, quarantined, or missing.

    The exit status is 0 only if every substream adds up. Of others it prints the segment, and how many rows are missing
    there or too many.
    """
    from tracker.cli.receiptfiles import read_asides, read_receipts
    from tracker.cli.views.events import columns
    from tracker.client.ledger import ledger_of

    for path in [receipts, *(table.parent for table in late or [])]:  # a table is made when something is set aside
        if not path.is_dir():
            raise WrongUsageError(f"{path} is not a directory")
    found = ledger_of(read_receipts(receipts), (aside for table in late or [] for aside in read_asides(table)))
    scopes = {*(scope or [])}
    chosen = [
        lines
        for lines in found
        for key in [lines[0].key]
        if (not job or key.job == job) and (not scopes or key.scope in scopes)
    ]
    if (job or scopes) and not chosen:
        raise WrongUsageError(f"{receipts} has no receipt of {_wanted(job, scopes)}: a name may be misspelt")
    off = [lines for lines in chosen if any(line.wrong or line.missing for line in lines)]
    shown = [line for lines in (off if wrong else chosen) for line in lines if segments or line.segment is None]
    if form is Form.JSON:
        for line in shown:
            print_json(line)
        return 1 if off else 0
    if shown:
        print_rows(columns(segments), shown, form)
    for line in shown:
        if line.segment is None:
            for text in line.wrong:
                print_line(f"{line.key.job}, {line.key.scope!r}, {line.key.name!r}: {text}", style="red")
    number = f"{len(chosen)} {'substream' if len(chosen) == 1 else 'substreams'}"
    print_line(f"{number}: {len(off)} do not add up" if off else f"{number}: the receipts add up")
    return 1 if off else 0


def _wanted(job: str, scopes: Collection[str]) -> str:
    names = [f"job {job!r}"] if job else []
    return " and ".join([*names, *(["scopes " + ", ".join(map(repr, sorted(scopes)))] if scopes else [])])
