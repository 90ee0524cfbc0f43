"""A store's files appear whole, and one of several that create a file succeeds, whatever the store is."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples.services.s3 import S3
from tests.journal.object_stores import OWN, s3  # noqa: F401 - a fixture
from tracker.store import RefusedError, StoreError, open_store
from tracker.store.directory import DirectoryStore
from tracker.store.foreign import ForeignStore


@pytest.fixture(params=["directory", "objects", "bucket", "foreign", *(["own"] if OWN else [])])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "directory":
        return open_store(str(tmp_path / "store"))
    if request.param == "foreign":
        pytest.importorskip("fsspec")
        return ForeignStore(f"memory://{uuid.uuid4().hex}/files", {})
    pytest.importorskip("obstore")
    if request.param == "objects":
        return open_store("memory:///files")
    if request.param == "own":
        return open_store(f"{OWN}/{uuid.uuid4().hex}")
    server: S3 = request.getfixturevalue("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return open_store(f"s3://state/{tmp_path.name}")


def test_a_file_is_read_as_it_was_put_last(store: Any) -> None:
    assert store.get("a/b") is None
    store.put("a/b", b"first")
    store.put("a/b", iter([b"se", b"cond"]))
    assert (store.get("a/b"), store.get("a/b", first=2)) == (b"second", b"se")
    assert b"".join(store.pieces("a/b")) == b"second"
    with pytest.raises(FileNotFoundError):
        next(iter(store.pieces("a/c")))


def test_one_of_several_writers_creates_a_file(store: Any) -> None:
    if isinstance(store, ForeignStore):
        pytest.skip("it has no conditions")
    with ThreadPoolExecutor(8) as writers:
        created = [*writers.map(lambda number: store.create("x/y", b"%d" % number), range(8))]
    assert sum(created) == 1
    assert store.get("x/y") == b"%d" % created.index(True)
    assert not store.create("x/y", b"later")


def test_a_file_whose_last_piece_is_missing_never_appears(store: Any) -> None:
    if isinstance(store, ForeignStore):
        pytest.skip("who writes several files there writes a last one that makes them count")

    def pieces() -> Iterator[bytes]:
        yield b"begun"
        raise LookupError("the rest is gone")

    with pytest.raises(LookupError):
        store.put("half", pieces())
    assert store.get("half") is None
    assert [*store.entries()] == []


def test_files_are_listed_in_order_and_removed(store: Any) -> None:
    for name in ("log/2", "log/1", "log/sub/3", "logs/4", "5"):
        store.put(name, b"content")
    assert [*store.entries()] == ["5", "log/", "logs/"]
    if not isinstance(store, ForeignStore):
        assert [*store.names("log")] == ["log/1", "log/2", "log/sub/3"]
        assert [*store.names("log", after="log/1")] == ["log/2", "log/sub/3"]
        assert [*store.names("nothing")] == []
    store.delete(["5", "6", "log/1"])
    assert store.get("log/1") is None
    store.remove("log")
    assert [*store.entries()] == ["logs/"]


def test_a_directory_hides_what_a_killed_writer_has_left(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for left in (".0123.unfinished", "00007#1"):  # the second one as obstore left it for earlier versions
        (tmp_path / "log" / left).write_bytes(b"half")
    store = DirectoryStore(tmp_path)
    store.put("log/00007", b"whole")
    assert [*store.names("log")] == ["log/00007"]
    store.remove("log")
    assert [*tmp_path.iterdir()] == []


def test_a_file_and_its_name_are_synced_before_a_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_relative_to(tmp_path):  # a tracker that an earlier test has embedded may be at work
            synced.append(path.name)
        fsync(descriptor)

    store = DirectoryStore(tmp_path / "store")
    store.put("log/first", b"")
    monkeypatch.setattr(os, "fsync", noted)
    assert store.create("log/second", b"content")
    assert synced[0].endswith(".unfinished")
    assert synced[-1] == "log"


def test_a_write_without_a_known_outcome_is_not_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    store.put("first", b"")

    def fails(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracker.store.directory.sync", fails)
    with pytest.raises(StoreError) as failed:
        store.create("second", b"content")
    assert not isinstance(failed.value, RefusedError), "the file has its name"


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="Not a directory"):
        open_store(str(tmp_path / "file")).put("x", b"")


_LIST = b"""<ListBucketResult><Name>b</Name><Prefix/><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents>
<Key>log/1</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"a"</ETag><Size>3</Size></Contents>
</ListBucketResult>"""


@pytest.mark.parametrize("call", ["names", "entries"])
def test_a_list_whose_answer_breaks_off_is_asked_for_again(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    lengths = iter([len(_LIST) // 2, len(_LIST)])

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(_LIST)))
            self.end_headers()
            self.wfile.write(_LIST[: next(lengths)])

    monkeypatch.setattr(Answers, "log_message", lambda *_: None)
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        assert getattr(open_store("s3://b"), call)("log") == (["log/1"] if call == "names" else ["1"])
        server.shutdown()
