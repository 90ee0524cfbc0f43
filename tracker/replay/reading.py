"""Histories in files: Parquet, CSV, and tables of Delta. Of a row only its times and its scope are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tracker.replay.history import Columns, ReplayError

#: Units that whole numbers may count since 1970, by Arrow's names.
EPOCHS: Final = ("s", "ms", "us", "ns")
_FORMATS: Final = ("parquet", "csv")


@dataclass(frozen=True)
class Names:
    """Names of the columns that are read.

    Attributes:
        time: with the times of rows.
        arrived: with the time at which each came.
        scope: of rows; empty: they have none.
        epoch: what whole numbers count since 1970, one of `EPOCHS`; empty: whole numbers are refused.
    """

    time: str
    arrived: str
    scope: str = ""
    epoch: str = ""

    @property
    def all(self) -> list[str]:
        """The columns that are read, each once."""
        return [*dict.fromkeys([self.time, self.arrived, *([self.scope] if self.scope else [])])]


def read(path: Path, names: Names) -> Columns:
    """Read a history.

    Args:
        path: a Parquet or CSV file, a folder of such files, or a table of Delta.

    Raises:
        ReplayError: it is none of these or is damaged, a column is missing, or one has no times.
    """
    try:
        dataset = _dataset(path)
        collected = Collector(dataset.schema, names)
        for batch in dataset.to_batches(columns=names.all):
            collected.add(batch)
    except pa.ArrowException as damaged:
        raise ReplayError(f"{path} cannot be read: {damaged}") from damaged
    return collected.columns()


def _dataset(path: Path) -> Any:
    if not path.exists():
        raise ReplayError(f"{path} is not there: give a file, a folder of files, or a table of Delta")
    if (path / "_delta_log").is_dir():
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ModuleNotFoundError as missing:
            raise ReplayError(
                f"{path} is a table of Delta, which needs {missing.name}: pip install 'substream-tracker[lake]'"
            ) from missing
        try:
            return DeltaTable(str(path)).to_pyarrow_dataset()
        except DeltaError as damaged:
            raise ReplayError(f"{path} cannot be read as a table of Delta: {damaged}") from damaged
    for kind in _FORMATS:
        files = [path] if path.is_file() else sorted(path.rglob(f"*.{kind}"))
        files = [each for each in files if each.suffix == f".{kind}" and not _hidden(each, path)]
        if files:
            root = None if path.is_file() else str(path)
            partitions = ds.partitioning(flavor="hive")
            return ds.dataset([*map(str, files)], format=kind, partitioning=partitions, partition_base_dir=root)
    raise ReplayError(f"{path} has no files that end in {' or '.join(f'.{kind}' for kind in _FORMATS)}")


def _hidden(file: Path, path: Path) -> bool:
    """Return whether a file is passed over, as all readers of such folders do."""
    return any(part[0] in "._" for part in file.relative_to(path).parts)


class Collector:
    """The columns of a history, as its pieces come.

    Args:
        schema: of the pieces; it may have more columns.

    Raises:
        ReplayError: a column is missing, or has no times.
    """

    def __init__(self, schema: Any, names: Names) -> None:
        if absent := [name for name in names.all if name not in schema.names]:
            raise ReplayError(f"there is no column {absent[0]!r}; there are: {', '.join(schema.names)}")
        self._names = names
        self._types = [schema.field(name).type for name in (names.time, names.arrived)]
        for name, kind in zip((names.time, names.arrived), self._types, strict=True):
            _check_time(name, kind, names.epoch)
        if pa.types.is_date(self._types[1]):
            raise ReplayError(f"{names.arrived!r} has dates: give the column with the time of day of arrivals")
        zoned = [pa.types.is_timestamp(kind) and kind.tz is not None for kind in self._types]
        if zoned[0] != zoned[1] and all(map(pa.types.is_timestamp, self._types)):
            raise ReplayError(
                f"of {names.time!r} and {names.arrived!r} one has a time zone and the other has none, so no delay is "
                "known: give both one, or neither"
            )
        if names.scope and pa.types.is_nested(kind := schema.field(names.scope).type):
            raise ReplayError(f"{names.scope!r} is {kind}: a scope is one value, such as a text or a number")
        self._times: list[list[Any]] = [[], []]
        self._scopes: list[Any] = []
        self._nulls = 0

    def add(self, batch: Any) -> None:
        """Take a piece: a record batch of Arrow."""
        columns = [batch.column(name) for name in self._names.all]
        whole = pc.is_valid(columns[0])
        for column in columns[1:]:
            whole = pc.and_(whole, pc.is_valid(column))
        kept = batch.filter(whole)
        self._nulls += batch.num_rows - kept.num_rows
        for times, name in zip(self._times, (self._names.time, self._names.arrived), strict=True):
            times.append(_micros(kept.column(name), self._names.epoch))
        if self._names.scope:
            self._scopes.append(kept.column(self._names.scope).cast(pa.string()).dictionary_encode())

    def columns(self) -> Columns:
        """Return all that has come."""
        event, arrived = (np.concatenate([np.empty(0, np.int64), *times]) for times in self._times)
        scope, scopes = None, list[str]()
        if self._names.scope:
            kind = pa.dictionary(pa.int32(), pa.string())
            whole = pa.chunked_array(self._scopes, kind).unify_dictionaries().combine_chunks()
            scope, scopes = whole.indices.to_numpy().astype(np.int64), whole.dictionary.to_pylist()
        return Columns(event, arrived, scope, scopes, self._names.time, self._names.scope, self._nulls)


def _check_time(name: str, kind: Any, epoch: str) -> None:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or (pa.types.is_integer(kind) and epoch):
        return
    if pa.types.is_integer(kind):
        raise ReplayError(f"{name!r} has whole numbers: state what they count since 1970, {_listed(EPOCHS)} (--epoch)")
    raise ReplayError(f"{name!r} is {kind}: a time is a timestamp or a date, in CSV as in 2026-03-01T09:30:00Z")


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _micros(times: Any, epoch: str) -> Any:
    """Return times as microseconds since 1970; a date begins at midnight in UTC, and a wall clock counts as UTC's."""
    if pa.types.is_integer(times.type):
        times = times.cast(pa.int64()).cast(pa.timestamp(epoch))
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("s"))
    return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64()).to_numpy(zero_copy_only=False)
