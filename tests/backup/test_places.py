"""Places of backups: each backup appears whole or not at all, and the oldest are removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.services.s3 import S3
from tests.journal.object_stores import s3  # noqa: F401 - a fixture
from tracker.backup import BackupError, Checked, Draft, Place, place


def backup(record: int, made: float = 0.0) -> list[bytes]:
    draft = Draft("0.2.0", "sqlite", record, 1_772_334_000 + made, {}, [b"state" * 100])
    draft.seal()
    return list(draft.parts(most=100))


@pytest.fixture(params=["directory", "memory", pytest.param("bucket", marks=pytest.mark.slow)])
def directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "directory":
        return place(f"{tmp_path / 'new'}/")
    pytest.importorskip("obstore")
    if request.param == "memory":
        return place("memory:///backups/")
    store: S3 = request.getfixturevalue("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return place(f"s3://state/{tmp_path.name}/")


def test_a_directory_gives_names_by_time_and_lists_the_newest_first(directory: Place) -> None:
    assert directory.names() == []
    with pytest.raises(BackupError, match=r"there is no backup in .*; `tracker backup .*` makes one"):
        directory.newest()
    for record, made in ((9, 0), (10, 0), (2, 3600)):
        directory.write(Checked(backup(record, made), "FILE"))
    assert directory.names() == [
        "tracker-20260301T040000Z-record-2.backup",
        "tracker-20260301T030000Z-record-10.backup",
        "tracker-20260301T030000Z-record-9.backup",
    ]
    assert b"".join(directory.parts(directory.newest())) == b"".join(backup(2, 3600))


def test_the_oldest_are_removed_and_nothing_else(directory: Place) -> None:
    for record in range(4):
        directory.write(Checked(backup(record, record), "FILE"))
    removed = directory.keep(3)
    assert [name.rpartition("/")[2] for name in removed] == ["tracker-20260301T030000Z-record-0.backup"]
    assert len(directory.names()) == 3
    assert directory.keep(3) == []


@pytest.mark.parametrize("what", ["cut", "changed", "broken off"])
def test_a_backup_that_is_not_whole_never_appears(directory: Place, what: str) -> None:
    good = backup(1)
    directory.write(Checked(good, "FILE"))

    def parts() -> Iterator[bytes]:
        later = backup(2, 60)
        yield from later[:-1]
        if what == "broken off":
            raise BackupError("the tracker has ended")
        if what == "changed":
            yield b"?" * len(later[-1])

    with pytest.raises(BackupError):
        directory.write(Checked(parts(), "FILE"))
    assert directory.names() == ["tracker-20260301T030000Z-record-1.backup"]


def test_a_file_is_replaced_only_by_a_whole_backup(tmp_path: Path) -> None:
    file = place(str(tmp_path / "nightly"))
    assert file.write(Checked(backup(1), "FILE")) == str(tmp_path / "nightly")
    with pytest.raises(BackupError):
        file.write(Checked(backup(2)[:-1], "FILE"))
    assert (tmp_path / "nightly").read_bytes() == b"".join(backup(1))
    file.write(Checked(backup(2), "FILE"))
    assert (tmp_path / "nightly").read_bytes() == b"".join(backup(2))
    assert os.listdir(tmp_path) == ["nightly"]
    assert (tmp_path / "nightly").stat().st_mode & 0o077 == 0


def test_what_a_killed_backup_has_left_is_removed_later(tmp_path: Path) -> None:
    old, young = tmp_path / ".a.unfinished", tmp_path / ".b.unfinished"
    for file in (old, young):
        file.write_bytes(b"")
    os.utime(old, (0, 0))
    place(f"{tmp_path}/").write(Checked(backup(1), "FILE"))
    assert (old.exists(), young.exists()) == (False, True)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackupError, match=rf"{tmp_path}/file/x cannot be written: Not a directory"):
        place(str(tmp_path / "file" / "x")).write(Checked(backup(1), "FILE"))
    with pytest.raises(BackupError, match="cannot be read: No such file"):
        list(place(str(tmp_path / "missing")).parts("missing"))


@pytest.mark.parametrize("text", ["s3://bucket", "s3://bucket/", "s3://bucket/path/"])
def test_a_bucket_is_a_directory(text: str) -> None:
    pytest.importorskip("obstore")
    found = place(text)
    assert (found.file, found.full("x")) == ("", f"{text.rstrip('/')}/x")


def test_an_object_store_that_nobody_knows_is_refused_with_what_to_write() -> None:
    pytest.importorskip("obstore")
    with pytest.raises(BackupError, match=r"is not a place for backups: [^\n]*; use s3://BUCKET/PATH/"):
        place("ftp://host/path/")
