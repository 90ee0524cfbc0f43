"""Real stores of objects for tests: a directory, and a server with the interface of S3."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.services.jars import MissingError
from examples.services.s3 import S3
from tracker.journal.objects import ObjectsAddress
from tracker.store import ConditionalStore

#: The URL of a folder of a store that whoever runs the tests has, such as ``az://container/tests``; empty: none.
OWN = os.environ.get("STORE", "")


@dataclass(frozen=True)
class Place:
    """Place of a test's journal."""

    base: str  #: the address, with options

    def address(self, options: str = "") -> str:
        """Return the journal's address; its lease is short."""
        return f"{self.base}&lease=1{options}"

    @property
    def objects(self) -> ConditionalStore:
        """The store, for a look at it."""
        return ObjectsAddress.parse(self.address()).open()

    def positions(self) -> list[int]:
        """Return the positions of the log's entries."""
        return [int(name.rpartition("/")[2]) for name in self.objects.names("log")]

    def groups(self) -> list[int]:
        """Return the positions of the groups of records."""
        return [each for each in self.positions() if not self.head(each)["holder"]]

    def head(self, position: int) -> dict[str, object]:
        """Return an entry's head."""
        content = self.objects.get(f"log/{position:020}")
        assert content is not None
        head: dict[str, object] = json.loads(content.split(b"\n")[1])
        return head

    def lose(self, *positions: int) -> None:
        """Lose entries of the store."""
        self.objects.delete([f"log/{each:020}" for each in positions])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    try:
        server = S3(tmp_path_factory.mktemp("s3"))
    except MissingError as missing:
        pytest.skip(str(missing))
    before = {name: os.environ.get(name) for name in server.environment}
    os.environ.update(server.environment)  # also of the processes that tests start
    with server:
        yield server
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def directory(tmp_path: Path) -> Place:
    return Place(f"file://{tmp_path}/journal?marks={tmp_path}/marks")


@pytest.fixture
def bucket(s3: S3, tmp_path: Path) -> Place:
    return Place(f"s3://state/{tmp_path.name}?endpoint={s3.endpoint}&marks={tmp_path}/marks")


@pytest.fixture
def own(tmp_path: Path) -> Place:
    return Place(f"{OWN}/{uuid.uuid4().hex}?marks={tmp_path}/marks")


@pytest.fixture(params=["bucket", pytest.param("directory", marks=pytest.mark.slow), *(["own"] if OWN else [])])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found
