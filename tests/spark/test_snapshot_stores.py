"""Places of snapshots: a directory, and stores that fsspec knows; each holds only what is whole."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.services import jars
from examples.services.s3 import S3
from spark_client import TrackingError, UsageError
from spark_client.storage import snapshots
from spark_client.storage.folder import Folder
from spark_client.storage.snapshots import Place


@pytest.fixture(params=["directory", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "directory":
        yield Place.at(tmp_path / "snapshots")
        return
    pytest.importorskip("fsspec")
    if request.param == "memory":
        yield Place.at(f"memory://{uuid.uuid4().hex}/snapshots")
        return
    obstore = pytest.importorskip("obstore.fsspec")
    obstore.register("s3")
    try:
        service = S3(tmp_path / "s3")
    except jars.MissingError as error:
        pytest.skip(str(error))
    with service:
        options = {
            "config": {
                "endpoint": service.endpoint,
                "access_key_id": service.environment["AWS_ACCESS_KEY_ID"],
                "secret_access_key": service.environment["AWS_SECRET_ACCESS_KEY"],
                "region": "us-east-1",
            },
            "client_options": {"allow_http": True},
        }
        yield Place.at("s3://state/snapshots", options)


def content(path: Path, text: str) -> Path:
    """Return a directory with two files, one of them in a directory of its own."""
    (path / "table").mkdir(parents=True)
    (path / "table" / "part.parquet").write_text(text)
    (path / "position.json").write_text("{}")
    return path


def test_one_that_is_whole_is_found_read_and_in_the_end_removed(place: Place, tmp_path: Path) -> None:
    assert snapshots.complete(place) == []
    made = [
        snapshots.write(place, content(tmp_path / name, name), {"job": "j"}) for name in ("first", "second", "third")
    ]
    assert [each.name for each in snapshots.complete(place)] == [each.name for each in reversed(made)]
    assert [each.number for each in made] == [1, 2, 3]
    newest = snapshots.complete(place)[0]
    newest.fetch("table", Folder(tmp_path / "copy"))
    assert (tmp_path / "copy" / "part.parquet").read_text() == "third"

    place.files.delete([f"{made[1].name}/{snapshots.MARK}"])  # as if it had never been completed
    assert [each.number for each in snapshots.complete(place)] == [3, 1]
    place.files.put(f"{made[0].name}/{snapshots.MANIFEST}", b"{}")  # the mark is of another one
    assert [each.number for each in snapshots.complete(place)] == [3]
    snapshots.keep(place, 1)
    assert [*place.files.entries()] == [f"{newest.name}/"]

    place.files.put(f"{newest.name}/table/part.parquet", b"THIRD")
    with pytest.raises(TrackingError, match=r"table/part\.parquet is not what was written"):
        newest.fetch("", Folder(tmp_path / "again"))
    place.files.delete([f"{newest.name}/table/part.parquet"])
    with pytest.raises(TrackingError, match=r"table/part\.parquet is missing"):
        newest.fetch("", Folder(tmp_path / "once more"))


def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="storage_options are for a URL"):
        Place.at(tmp_path, {"key": "x"})
    with pytest.raises(UsageError, match="fsspec cannot open it"):
        Place.at("nosuchstore://bucket/x")
