"""`tracker replay`: the files that it reads, what it refuses, and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tracker.cli.main import main

START = datetime(2026, 3, 1, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
ARGUMENTS = ("--time", "ts", "--arrived", "arrived_at", "--scope", "shop")


def orders() -> pa.Table:
    """Return a row a minute of two shops over ten hours; rome's come 50 minutes late every third time."""
    rows = [
        {"ts": START + n * MINUTE, "arrived_at": START + (n + 50 * (n % 3 == 0) * (n % 2)) * MINUTE, "shop": shop}
        for n in range(600)
        for shop in [("lima", "rome")[n % 2]]
    ]
    return pa.Table.from_pylist(rows)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    pq.write_table(orders(), tmp_path / "orders.parquet")
    return tmp_path / "orders.parquet"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command. Return its exit status and output."""

    def called(path: Path, *arguments: str) -> tuple[int, str]:
        status = main(["replay", str(path), *arguments])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return called


Run = Callable[..., tuple[int, str]]


def document(run: Run, path: Path, *arguments: str) -> dict[str, Any]:
    status, printed = run(path, *arguments, "--json")
    assert status == 0, printed
    found: dict[str, Any] = json.loads(printed)
    return found


def test_a_table_and_the_line_to_take_are_printed(run: Run, history: Path) -> None:
    status, printed = run(history, *ARGUMENTS, "--promise", "per-scope=5min", "--promise", "per-scope=1h")
    assert status == 0
    [short, long] = [line.split() for line in printed.splitlines() if line.startswith("per-scope=") and "," not in line]
    assert short[:3] == ["per-scope=5min", "20", "9"]
    assert long[:4] == ["per-scope=1h", "20", "0", "4"]
    assert "No promise was kept" in printed  # four of twenty windows were open at the end
    _, printed = run(history, *ARGUMENTS, "--promise", "per-scope=5min", "--promise", "wait=50min")
    line = 'tracking.source(raw, "events", scope="shop", window=("ts", "1 hour"), front=Schedule(lambda: Counts('
    assert line in printed


def test_the_wide_form_has_a_line_for_each_scope(run: Run, history: Path) -> None:
    _, printed = run(history, *ARGUMENTS, "--promise", "per-scope=5min", "--output", "wide")
    lines = [line.split()[:3] for line in printed.splitlines()[1:4]]
    assert lines == [["per-scope=5min", "20", "9"], ["lima", "10", "0"], ["rome", "10", "9"]]


def test_usual_promises_are_tried_if_none_is_given(run: Run, history: Path) -> None:
    found = document(run, history, *ARGUMENTS)
    assert {each["name"].partition("=")[0] for each in found["outcomes"]} == {
        "watermark",
        "per-scope",
        "wait",
        "least",
        "measured",
        "counts",
    }
    assert found["advice"][0]["name"] == "counts"


def as_csv(table: pa.Table, path: Path) -> Path:
    pa.csv.write_csv(table, path / "orders.csv")
    return path / "orders.csv"


def as_folder(table: pa.Table, path: Path) -> Path:
    for number in range(3):
        pq.write_table(table.slice(number * 200, 200), path / f"part-{number}.parquet")
    (path / "_SUCCESS").touch()
    (path / "_old").mkdir()
    pq.write_table(table, path / "_old" / "part.parquet")
    return path


def as_partitions(table: pa.Table, path: Path) -> Path:
    pq.write_to_dataset(table, path / "by-shop", partition_cols=["shop"])
    return path / "by-shop"


def as_delta(table: pa.Table, path: Path) -> Path:
    deltalake.write_deltalake(path / "delta", table.slice(0, 300))
    deltalake.write_deltalake(path / "delta", table.slice(300), mode="append")
    return path / "delta"


@pytest.mark.parametrize("write", [as_csv, as_folder, as_partitions, as_delta])
def test_every_form_of_a_history_gives_the_same(
    run: Run, history: Path, tmp_path: Path, write: Callable[[pa.Table, Path], Path]
) -> None:
    (tmp_path / "other").mkdir()
    other = write(orders(), tmp_path / "other")
    assert document(run, other, *ARGUMENTS) == document(run, history, *ARGUMENTS)


def changed(name: str, make: Callable[[pa.ChunkedArray], Any], both: bool = False) -> pa.Table:
    table = orders()
    for each in ["ts", "arrived_at"] if both else [name]:
        table = table.set_column(table.schema.get_field_index(each), each, make(table[each]))
    return table


def since(unit: str) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    return lambda times: times.cast(pa.timestamp(unit, "UTC")).cast(pa.int64())


@pytest.mark.parametrize(
    ("table", "more"),
    [
        (changed("", lambda times: times.cast(pa.timestamp("ns", "UTC")), both=True), []),
        (changed("", lambda times: times.cast(pa.timestamp("s", "Asia/Tokyo")), both=True), []),
        (changed("", lambda times: times.cast(pa.timestamp("us")), both=True), []),
        (changed("", since("s"), both=True), ["--epoch", "s"]),
        (changed("", since("ms"), both=True), ["--epoch", "ms"]),
        (changed("shop", lambda shops: shops.dictionary_encode()), []),
    ],
    ids=["nanoseconds", "another zone", "no zone", "seconds since 1970", "milliseconds", "dictionary"],
)
def test_times_of_every_type_are_the_same_instants(
    run: Run, history: Path, tmp_path: Path, table: pa.Table, more: list[str]
) -> None:
    pq.write_table(table, tmp_path / "other.parquet")
    assert document(run, tmp_path / "other.parquet", *ARGUMENTS, *more) == document(run, history, *ARGUMENTS)


def test_a_date_begins_at_midnight_in_utc(run: Run, tmp_path: Path) -> None:
    rows = [{"ts": date(2026, 3, day), "arrived_at": START + timedelta(days=day)} for day in (1, 2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "days.parquet")
    days = ("--time", "ts", "--arrived", "arrived_at", "--window", "1d", "--promise", "counts")
    [counts] = document(run, tmp_path / "days.parquet", *days)["outcomes"]
    assert counts["all"]["after_end"] == {"p50": 0, "p95": 0, "longest": 0}


def test_rows_with_a_null_are_left_out_and_counted(run: Run, tmp_path: Path) -> None:
    rows = orders().to_pylist()
    for number, name in enumerate(["ts", "arrived_at", "shop"]):
        rows[number][name] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "nulls.parquet")
    found = document(run, tmp_path / "nulls.parquet", *ARGUMENTS)
    assert (found["rows"], found["nulls"]) == (597, 3)


@pytest.mark.parametrize(
    ("table", "arguments", "reason"),
    [
        (orders(), ("--time", "at", *ARGUMENTS[2:]), "there is no column 'at'; there are: ts, arrived_at, shop"),
        (orders(), (*ARGUMENTS[:4], "--scope", "tenant"), "there is no column 'tenant'; there are: ts"),
        (changed("ts", since("s")), ARGUMENTS, "'ts' has whole numbers: state what they count since 1970"),
        (changed("ts", lambda times: times.cast(pa.string())), ARGUMENTS, "'ts' is string: a time is a timestamp"),
        (
            changed("arrived_at", lambda times: times.cast(pa.date32(), safe=False)),
            ARGUMENTS,
            "has dates: give the column",
        ),
        (changed("ts", lambda times: times.cast(pa.timestamp("us"))), ARGUMENTS, "give both one, or neither"),
        (
            changed("shop", lambda shops: pa.array([[each] for each in shops.to_pylist()])),
            ARGUMENTS,
            "a scope is one value",
        ),
        (orders().slice(0, 0), ARGUMENTS, "no rows with both times"),
        (orders(), (*ARGUMENTS, "--epoch", "days"), "--epoch days: whole numbers count s, ms, us, ns"),
        (orders(), (*ARGUMENTS, "--promise", "luck"), "'luck' is no promise: there are watermark, frontier"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_what_to_do(
    run: Run, tmp_path: Path, table: pa.Table, arguments: tuple[str, ...], reason: str
) -> None:
    pq.write_table(table, tmp_path / "history.parquet")
    status, printed = run(tmp_path / "history.parquet", *arguments)
    assert (status, reason in printed) == (2, True), printed


def test_files_that_are_no_history_are_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    for name, reason in {
        "nowhere": "is not there: give a file, a folder of files",
        "torn.parquet": "cannot be read: ",
        "empty": "has no files that end in .parquet or .csv",
        "delta": "cannot be read as a table of Delta",
    }.items():
        status, printed = run(tmp_path / name, *ARGUMENTS)
        assert (status, reason in printed) == (2, True), printed
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert "which needs deltalake: pip install 'substream-tracker[lake]'" in run(tmp_path / "delta", *ARGUMENTS)[1]


def test_a_page_that_cannot_be_written_is_named(run: Run, history: Path, tmp_path: Path) -> None:
    status, printed = run(history, *ARGUMENTS, "--html", str(tmp_path / "nowhere" / "report.html"))
    assert (status, "No such file or directory: " in printed) == (1, True), printed


def test_without_pyarrow_the_extra_is_named(run: Run, history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tracker.replay.reading", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, printed = run(history, *ARGUMENTS)
    assert (status, "needs pyarrow: pip install 'substream-tracker[replay]'" in printed) == (2, True), printed
