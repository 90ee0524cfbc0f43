"""Receipts, and the counts beside tables of late rows, from files; Spark is not needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from tracker.cli.declarations import WrongUsageError
from tracker.cli.options import needs
from tracker.client.ledger import COUNTS, NEEDED, Aside, asides_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

_EXPECTED = ("job", "segment", "scope", "name", "elements", "rows", "seq")


def read_receipts(directory: Path) -> Iterator[dict[str, Any]]:
    """Read the receipts in a directory and those below it; what an old one lacks is None.

    Args:
        directory: with ``.parquet`` files, as a release writes them, or ``.json`` and ``.jsonl`` files with a receipt a
            line. Names that begin with an underscore or a dot are passed over, as by all readers of such tables.

    Raises:
        WrongUsageError: there are none, one is damaged, or PyArrow is not installed.
    """
    found = False
    for path in sorted(directory.rglob("*")):
        inner = path.relative_to(directory).parts
        if path.suffix in (".parquet", ".json", ".jsonl") and not any(part[0] in "._" for part in inner):
            found = True
            partitions = dict(part.split("=", 1) for part in inner[:-1] if "=" in part)
            for row in _of_parquet(path) if path.suffix == ".parquet" else _of_json(path):
                receipt = {**partitions, **row}
                yield {**{name: receipt.get(name) for name in NEEDED}, "end_time": _micros(receipt.get("end_time"))}
    if not found:
        raise WrongUsageError(f"{directory} has no receipts: neither .parquet files nor .json ones, one receipt a line")


def read_asides(table: Path) -> list[Aside]:
    """Read how many rows a query has set aside."""
    notes = sorted((table / COUNTS).glob("[0-9-]*.json"))
    return [aside for note in notes for aside in asides_of(json.loads(note.read_text(encoding="utf-8")))]


def _of_parquet(path: Path) -> list[dict[str, Any]]:
    with needs("ledger", "ledger"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in NEEDED]
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
    if isinstance(time, str):
        time = datetime.fromisoformat(time.replace("Z", "+00:00"))
    if isinstance(time, datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    return time if isinstance(time, int) else None
