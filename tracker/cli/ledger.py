"""`tracker ledger`: what became of every row of each substream, added up from receipts. It needs no tracker."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracker.cli.declarations import WrongUsageError, command, new_commands
from tracker.cli.options import micros, needs
from tracker.cli.output import Form, print_json, print_line, print_rows

if TYPE_CHECKING:
    from tracker.client.ledger import Aside

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
    from tracker.cli.views import columns
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


# ---------------------------------------------------------------- files of receipts; Spark is not needed


_EXPECTED = ("job", "segment", "scope", "name", "elements", "rows", "seq")


def read_receipts(directory: Path) -> Iterator[dict[str, Any]]:
    """Read the receipts in a directory and those below it; what an old one lacks is None.

    Args:
        directory: with ``.parquet`` files, as a release writes them, or ``.json`` and ``.jsonl`` files with a receipt a
            line. Names that begin with an underscore or a dot are passed over, as by all readers of such tables.

    Raises:
        WrongUsageError: there are none, one is damaged, or PyArrow is not installed.
    """
    from tracker.client.ledger import NEEDED

    found = False
    for path in sorted(directory.rglob("*")):
        inner = path.relative_to(directory).parts
        if path.suffix in (".parquet", ".json", ".jsonl") and not any(part[0] in "._" for part in inner):
            found = True
            partitions = dict(part.split("=", 1) for part in inner[:-1] if "=" in part)
            for row in _of_parquet(path, NEEDED) if path.suffix == ".parquet" else _of_json(path):
                receipt = {**partitions, **row}
                yield {**{name: receipt.get(name) for name in NEEDED}, "end_time": _micros(receipt.get("end_time"))}
    if not found:
        raise WrongUsageError(f"{directory} has no receipts: neither .parquet files nor .json ones, one receipt a line")


def read_asides(table: Path) -> list[Aside]:
    """Read how many rows a query has set aside."""
    from tracker.client.ledger import COUNTS, asides_of

    notes = sorted((table / COUNTS).glob("[0-9-]*.json"))
    return [aside for note in notes for aside in asides_of(json.loads(note.read_text(encoding="utf-8")))]


def _of_parquet(path: Path, needed: Collection[str]) -> list[dict[str, Any]]:
    with needs("ledger", "ledger"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in needed]
            rows: list[dict[str, Any]] = file.read(columns=names).to_pylist()
            return rows
    except pa.ArrowException as damaged:
        raise WrongUsageError(f"{path} cannot be read: {damaged}") from damaged


def _of_json(path: Path) -> Iterator[dict[str, Any]]:
    # Lines end with a line feed alone: names may have any of the other characters that text is split at.
    for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), 1):
        try:
            row = json.loads(line)
        except ValueError as damaged:
            raise WrongUsageError(f"{path}, line {number} is not JSON: {damaged}") from damaged
        if not isinstance(row, dict):
            raise WrongUsageError(f"{path}, line {number} is not a receipt: it is no object of JSON")
        if absent := [each for each in _EXPECTED if each not in row]:
            raise WrongUsageError(f"{path}, line {number} is not a receipt: it has no {absent[0]!r}")
        yield row


def _micros(time: object) -> int | None:
    """Return a time as microseconds since 1970."""
    return micros(time) if isinstance(time, str | datetime) else time if isinstance(time, int) else None
