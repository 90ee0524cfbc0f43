"""An archive is written below its directory, or refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from spark_client.errors import TrackingError
from spark_client.release.state_import import unpack
from spark_client.storage.folder import Folder


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> tarfile.TarFile:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as written:
        for info, content in members:
            info.size = len(content)
            written.addfile(info, io.BytesIO(content))
    data.seek(0)
    return tarfile.open(fileobj=data)


def of_type(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_files_and_directories_are_written(tmp_path: Path) -> None:
    members = (of_type("a", tarfile.DIRTYPE), b""), (tarfile.TarInfo("a/b/c"), b"one"), (tarfile.TarInfo("d"), b"")
    with archive(*members) as found:
        unpack(found, Folder(tmp_path))
    assert {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == {
        "a/b/c": b"one",
        "d": b"",
    }


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../out"),
        tarfile.TarInfo("/out"),
        of_type("link", tarfile.SYMTYPE, "/etc"),
        of_type("hard", tarfile.LNKTYPE, "a"),
        of_type("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name,
)
def test_what_leads_out_of_it_or_is_no_file_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    with archive((member, b"")) as found, pytest.raises(TrackingError, match="Take another copy"):
        unpack(found, Folder(tmp_path))
    assert list(tmp_path.iterdir()) == []
