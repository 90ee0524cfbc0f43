"""A backup's file: what was written comes back, and any change to it is noticed."""

from __future__ import annotations

import hashlib
import json

import pytest

from tracker.backup import BackupError, Checked, Draft, JobLog

JOBS = {"flights": JobLog("a-1", 7)}
STATE: list[bytes | memoryview] = [b"the state", memoryview(b" in pieces")]


def written(final: bool = False) -> bytes:
    draft = Draft("0.2.0", "sqlite", 4711, 1_772_334_000.9, JOBS, STATE, final)
    size = draft.seal()
    parts = list(draft.parts(most=10))
    assert all(0 < len(part) <= 10 for part in parts[1:])
    assert size == len(b"".join(parts))
    return b"".join(parts)


def read(data: bytes, step: int = 7) -> tuple[Checked, bytes]:
    backup = Checked((data[at : at + step] for at in range(0, len(data), step)), "FILE")
    return backup, b"".join(backup.state())


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_was_written_comes_back(step: int) -> None:
    backup, state = read(written(final=True), step)
    assert state == b"the state in pieces"
    header = backup.header
    assert (header.version, header.journal, header.record, header.made) == (
        "0.2.0",
        "sqlite",
        4711,
        "2026-03-01T03:00:00Z",
    )
    assert (header.final, header.jobs) == (True, JOBS)


def test_the_first_line_tells_people_what_the_file_is() -> None:
    line = json.loads(written().split(b"\n")[0])
    assert line["tracker-backup"] == 1
    assert line["jobs"] == {"flights": {"log_id": "a-1", "last_seq": 7}}


def test_the_whole_file_is_passed_on_as_it_came() -> None:
    data = written()
    assert b"".join(Checked([data[:50], data[50:]], "FILE")) == data


@pytest.mark.parametrize("step", [7, 10_000])
def test_a_file_that_was_cut_anywhere_is_refused(step: int) -> None:
    data = written()
    for length in range(len(data)):
        with pytest.raises(BackupError, match=r"^FILE is (not a backup|damaged)"):
            read(data[:length], step)


def test_a_file_that_was_changed_anywhere_is_refused() -> None:
    data = written()
    for place in range(len(data)):
        with pytest.raises(BackupError, match=r"^FILE "):
            read(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(BackupError, match="more than the"):
        read(data + b"x")


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0" * 10, b"{}\n\n", b"[1]\n1\n", b"null\n\n", b"\xff" * 99])
def test_a_foreign_file_is_refused_by_what_it_is_not(data: bytes) -> None:
    with pytest.raises(BackupError, match=r"FILE is not a backup.*`tracker backup`"):
        read(data)


def test_a_newer_format_is_refused_with_the_version_that_reads_it() -> None:
    line = written().split(b"\n")[0].replace(b'"tracker-backup": 1', b'"tracker-backup": 2') + b"\n"
    with pytest.raises(BackupError, match=r"has format 2, and this version reads format 1; use version 0\.2\.0"):
        read(line + hashlib.sha256(line).hexdigest().encode() + b"\n")
