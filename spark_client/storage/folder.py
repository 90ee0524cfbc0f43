"""A place of a query's own in a store, on a local disk as in a bucket of objects.

Each file there is written once, under a name that nobody else uses, and counts as soon as a small file names it. So
nothing has to be renamed, and of several drivers that write at once each has its own files.

Versions of a query's own state are such small files, one after each batch: a batch, and each repetition of it, begins
with the one before. Nothing here knows what is in them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from spark_client.errors import TrackingError, UsageError, refused
from spark_client.storage.directories import (
    check_store,
    make,
    may_appear,
    publish,
    remove,
    sweep,
    sweep_beside,
    sync_all,
)
from tracker.store import ConditionalStore, FileStore, RefusedError, StoreError, open_store

#: Names of stores, as Spark has them, with those of journals.
STORES: Final = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "az", "abfss": "az"}
_S3A: Final = re.compile("s3[an]://")  #: obstore knows ``s3://``
_OWNER: Final = "_query.json"  #: names the query whose table it is
_ATTEMPTS: Final = "_attempts"  #: of what a folder publishes: each by one driver
_ATTEMPT: Final = re.compile(r"(.+)/[0-9a-f]{32}/")
_COPIES: Final = 16  #: at once
_DECIDED: Final = "_decided"  #: which attempt of each stands
_PUBLISHED: Final = "_published"  #: what is whole
_VERSION: Final = re.compile(r"version-(\d+)\.json")


class _Store(FileStore, ConditionalStore, Protocol):
    """Store of files, of which several drivers can agree on one; of objects, it copies them."""

    def copy(self, name: str, to: str) -> None: ...


class Folder:
    """A place in a store. Two with one location are equal. One on a disk is a `_Directory`, as `Path` is a `PosixPath`.

    Attributes:
        store: that it is in, for names that begin with those of the folder.

    Args:
        location: a path, or a URL as Spark takes it.
        settings: of the store, as obstore calls them; the environment has the others. See `folder_of`.
        within: a store that is open, and what names in it begin with; None: it is opened.

    Raises:
        UsageError: the URL is of no store that can be used here.

    >>> Folder("/data/shop") / "tracker" / "acts"
    Folder('/data/shop/tracker/acts')
    """

    def __new__(cls, location: str | os.PathLike[str], *_: object) -> Folder:
        return super().__new__(_Directory if cls is Folder and "://" not in os.fspath(location) else cls)

    def __init__(
        self,
        location: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        within: tuple[_Store, str] | None = None,
    ) -> None:
        self._location = os.fspath(location).rstrip("/") or "/"
        self._settings = dict(settings or {})
        self.store, self._prefix = within or (_opened(self._location, self._settings), "")

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.url(name), self._settings, (self.store, f"{self._prefix}{name}/"))

    def __reduce__(self) -> tuple[Any, ...]:
        # Connections stay in their process.
        within = None if self.path is not None or self.is_of_objects else (self.store, self._prefix)
        return Folder, (self._location, self._settings, within)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folder) and self._location == str(other)

    def __hash__(self) -> int:
        return hash(self._location)

    def __str__(self) -> str:
        return self._location

    def __repr__(self) -> str:
        return f"Folder({self._location!r})"

    @property
    def settings(self) -> Mapping[str, str]:
        """Those of its store that the environment lacks."""
        return self._settings

    @property
    def path(self) -> Path | None:
        """The directory that it is; None: it is in a store of objects."""
        return None

    @property
    def is_of_objects(self) -> bool:
        """True if it is in a store of objects, which each process reaches by itself."""
        return urlsplit(self._location).scheme in STORES

    @property
    def parent(self) -> Folder:
        """The folder that it is in.

        Raises:
            UsageError: it is a whole bucket.
        """
        parent = self._location.rpartition("/")[0]
        if parent.endswith("/"):  # of ``s3a://bucket``
            raise UsageError(f"{self}: is a whole bucket; give a path in it")
        if self._prefix:
            above, slash, _ = self._prefix.rstrip("/").rpartition("/")
            return Folder(parent, self._settings, (self.store, above + slash))
        return Folder(parent or "/", self._settings)

    @property
    def real(self) -> str:
        """Its location, on a disk with all links followed: two folders with the same one are the same."""
        return self._location

    @property
    def name(self) -> str:
        """The last part of its location."""
        return self._location.rpartition("/")[2]

    def url(self, name: str) -> str:
        """Return where Spark reads and writes what has a name here."""
        return f"{self._location}/{name}"

    def content(self, name: str) -> bytes | None:
        """Return the content of a file; None: there is no such file."""
        with self._asked(name):
            return self.store.get(self._prefix + name)

    def take(self, name: str, to: Path) -> None:
        """Move a file out of it, to a path on this machine's disk."""
        with self._asked(name), to.open("wb") as file:
            file.writelines(self.store.pieces(self._prefix + name))
        self.delete([name])

    def read(self, name: str) -> Any:
        """Return the content of a small file of JSON; None: there is no such file."""
        content = self.content(name)
        return None if content is None else json.loads(content)

    def put(self, name: str, content: Any) -> None:
        """Write a small file of JSON, of bytes, or of pieces of bytes, durable and in one step, in place of any that
        there is."""
        with self._asked(name):
            self.store.put(self._prefix + name, _encoded(content))

    def create(self, name: str, content: Any) -> Any:
        """Write a small file of JSON unless it is there, and return what stands."""
        with self._asked(name):
            created = self.store.create(self._prefix + name, _encoded(content))
        return content if created else self.read(name)

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is here, or in a folder here; those of folders end with ``/``."""
        with self._asked(folder):
            return list(self.store.entries((self._prefix + folder).rstrip("/")))

    def holds(self, name: str) -> bool:
        """Return whether there is a file of a name, or something in a folder of that name."""
        return self.content(name) is not None or bool(self.names(name))

    def below(self) -> list[str]:
        """Return the names of all files in it, and below it."""
        with self._asked(""):
            return [name[len(self._prefix) :] for name in self.store.names(self._prefix.rstrip("/"))]

    def files(self) -> list[str]:
        """Return the names of the files that Spark has written into it, and below it: of what was published by the note
        of them, without a list."""
        above, slash, own = self._prefix.rstrip("/").rpartition("/")
        noted = self._noted(f"{above}{slash}{_PUBLISHED}/{own}.json") if own else None
        return self.listed() if noted is None else noted

    def listed(self) -> list[str]:
        """Return the names of the files that are in it, and below it, by a list."""
        return [name for name in self.below() if name.rpartition("/")[2][0] not in "_." and "/_temporary/" not in name]

    def delete(self, names: Iterable[str]) -> None:
        """Remove small files, if they are there."""
        with self._asked(""):
            self.store.delete([self._prefix + name for name in names])

    def write(self, name: str, write: Filling) -> list[str]:
        """Write files by Spark into a folder that nobody else uses, and that is durable with the file that names it.

        Returns:
            The names of the files; none: all that the folder holds.
        """
        try:
            return list(write(self / name) or ())
        except BaseException:
            with suppress(Exception):
                self.remove(name)
            raise

    def publish(self, name: str, write: Filling) -> bool:
        """Write files by Spark into a folder that readers see whole or not at all, unless it is there already.

        On a disk a rename publishes them. In a store of objects the first attempt that is decided on stands, its files
        are copied under the name, and a note that all are there ends the publication. Spark's readers of the table
        pass over attempts and notes; who has to wait for all of a folder's files looks for the note.

        Args:
            name: of a folder, such as ``epoch=3``.

        Returns:
            True if this call has written it; False: an earlier attempt had published it.

        Raises:
            TrackingError: somebody has removed what was to be published.
        """
        attempts, own = self / _ATTEMPTS, None
        decided = self.read(f"{_DECIDED}/{name}.json")
        if decided is None:
            attempt = f"{name}/{uuid.uuid4().hex}"
            files = attempts.write(attempt, write) or (attempts / attempt).listed()
            own = {"attempt": attempt, "files": files}
            may_appear()
            decided = self.create(f"{_DECIDED}/{name}.json", own)
        elif self.is_published(name):
            return False
        tried = [f"{decided['attempt']}/{file}" for file in decided["files"]]

        def copy(file: str, source: str) -> None:
            with self._asked(name):
                self.store.copy(f"{self._prefix}{_ATTEMPTS}/{source}", f"{self._prefix}{name}/{file}")

        try:
            with ThreadPoolExecutor(_COPIES) as several:  # a store takes a while for each, however small
                list(several.map(copy, decided["files"], tried))
        except FileNotFoundError:
            if self.is_published(name):  # by another driver, which has removed it then
                return False
            raise TrackingError(
                f"of {attempts.url(decided['attempt'])} files are gone that are to be published as {name}: put them "
                "back, or start the job from the beginning, with new checkpoints and new paths"
            ) from None
        self.put(f"{_PUBLISHED}/{name}.json", {"files": decided["files"]})
        attempts.delete(tried)  # those that do not stand go with the next driver: see `sweep`
        return bool(own == decided)

    def is_published(self, name: str) -> bool:
        """Return whether a folder was published."""
        return self.content(f"{_PUBLISHED}/{name}.json") is not None

    def published(self) -> list[str]:
        """Return the names of the folders here that were published, in order."""
        return sorted(name.removesuffix(".json") for name in self.names(_PUBLISHED))

    def unpublish(self, name: str) -> None:
        """Remove a folder that was published, so that readers never see half of it."""
        note = f"{_PUBLISHED}/{name}.json"
        files = self._noted(self._prefix + note)
        self.delete([note])
        if files is None:  # nobody knows what is there
            self.remove(name)
        self.delete([*(f"{name}/{file}" for file in files or ()), f"{_DECIDED}/{name}.json"])

    def sweep_after(self, name: str) -> None:
        """Remove what processes that were killed have left of a folder that is published."""
        (self / _ATTEMPTS).remove(name)

    def sweep(self) -> None:
        """Remove what drivers that were killed have left half written. See `directories.sweep`."""
        attempts = self / _ATTEMPTS
        for name in {found[1] for each in attempts.below() if (found := _ATTEMPT.match(each))}:
            if self.is_published(name):  # else one of these attempts may stand
                attempts.remove(name)

    def remove(self, name: str) -> None:
        """Remove a folder with all that is in it, on a local disk so that readers never see half of it."""
        with self._asked(name):
            self.store.remove(self._prefix + name)

    def check(self, what: str) -> None:
        """Refuse a store that cannot do what is relied on here.

        Args:
            what: it is, for the message.
        """
        trial = f"_check.{uuid.uuid4().hex}"
        takes = (
            "It takes a store in which this process may read, write, list and delete, with keys from the environment "
            "(AWS_ACCESS_KEY_ID, …) or from Spark's settings"
        )
        with refused(f"{what} {self}", takes, StoreError):
            self.store.get(self._prefix + trial, soon=True)  # it is not there, or nobody answers
            created = [self.store.create(self._prefix + trial, b"{}") for _ in range(2)]
            self.store.delete([self._prefix + trial])
        if created != [True, False]:
            raise UsageError(
                f"{what} {self}: the store writes over a file that is there though it is asked not to "
                "(If-None-Match), so two drivers could both go on: choose another store"
            )

    def _noted(self, name: str) -> list[str] | None:
        """Return the files that a note in the store names; None: there is none, or it is older than such names."""
        with self._asked(name):
            content = self.store.get(name)
        files: list[str] | None = None if content is None else json.loads(content).get("files")
        return files

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise TrackingError(
                f"{self.url(name)}: {error}. Nothing of this batch counts: once the store answers and lets this user "
                "read and write there, start the query again with the same checkpoint"
            ) from error


class _Directory(Folder):
    """A directory, which is renamed in one step: what it publishes appears whole."""

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name)

    @property
    def path(self) -> Path:
        return Path(self._location)

    @property
    def real(self) -> str:
        return os.path.realpath(self.path)

    def put(self, name: str, content: Any) -> None:
        with self._asked(name):
            self.store.put(name, content if isinstance(content, Iterator) else _encoded(content))

    def take(self, name: str, to: Path) -> None:
        shutil.move(self.path / name, to)

    def holds(self, name: str) -> bool:
        return (self.path / name).exists()

    def write(self, name: str, write: Filling) -> list[str]:
        def durably(folder: Folder) -> Sequence[str] | None:
            files = write(folder)
            sync_all(self.path / name)  # Spark's writers leave that to the system
            return files

        make(self.path)
        return super().write(name, durably)

    def publish(self, name: str, write: Filling) -> bool:
        return publish(self.path / name, lambda path: write(Folder(path)))

    def is_published(self, name: str) -> bool:
        return (self.path / name).is_dir()

    def published(self) -> list[str]:
        return sorted(name[:-1] for name in self.names() if name[-1] == "/" and name[0] not in "_.")

    def unpublish(self, name: str) -> None:
        remove(self.path / name)

    def sweep_after(self, name: str) -> None:
        sweep_beside(self.path / name)

    def sweep(self) -> None:
        sweep(self.path)

    def remove(self, name: str) -> None:
        remove(self.path / name)
        super().remove(name)  # the store forgets the folder

    def check(self, what: str) -> None:
        check_store(self.path, what)


#: Fills a folder with files, and returns their names; None: all that the folder holds.
Filling: TypeAlias = Callable[[Folder], Sequence[str] | None]


def _opened(location: str, settings: Mapping[str, str]) -> _Store:
    if "://" in location:
        return _connected(location, tuple(settings.items()))
    local: _Store = cast(Any, open_store(location))
    return local


@cache  # tasks open the same one again and again
def _connected(location: str, settings: tuple[tuple[str, str], ...]) -> _Store:
    with refused(location, "It takes a path, or a URL such as s3a://bucket/prefix, gs://… or abfs://…", RefusedError):
        return cast(_Store, open_store(_S3A.sub("s3://", location), settings=dict(settings)))


def _encoded(content: Any) -> bytes:
    if isinstance(content, Iterator):  # whole: its pieces may come from obstore, which does not run in itself
        return b"".join(content)
    return content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()


class Backlog:
    """The folders of epochs that a driver publishes, and removes once later ones are there.

    They are listed once, when the driver begins: of all that is there from then on, it knows.

    Args:
        folder: that has them, each under a name with its epoch, and no other driver's that goes on.
        epoch_of: gives the epoch that a name has.
    """

    def __init__(self, folder: Folder, epoch_of: Callable[[str], int] = int) -> None:
        self._folder = folder
        self._epoch_of = epoch_of
        self._names: set[str] | None = None

    def before(self, epoch: int) -> list[str]:
        """Return the names of earlier epochs that are there, in order."""
        return sorted((name for name in self._known() if self._epoch_of(name) < epoch), key=self._epoch_of)

    def add(self, name: str) -> None:
        """Take in a folder that was published."""
        self._known().add(name)

    def discard(self, name: str) -> None:
        """Remove an epoch's folder."""
        self._folder.unpublish(name)
        self._known().discard(name)

    def sweep(self) -> None:
        """Remove what drivers before this one have left half written, and look again at what they have published."""
        self._folder.sweep()
        self._names = None

    def _known(self) -> set[str]:
        if self._names is None:
            self._names = set(self._folder.published())
        return self._names


def is_table_of(table: Folder, query: str) -> bool:
    """Return whether a table with a folder for each epoch is a query's: the first that asks has it for good."""
    return bool((table.read(_OWNER) or table.create(_OWNER, query)) == query)


def claim_table(table: Folder, query: str, what: str) -> None:
    """Take a table with a folder for each epoch for a query, or refuse one that another query has.

    Args:
        what: it has, for the message.
    """
    if not is_table_of(table, query):
        raise UsageError(
            f"{table} has the {what} of another query, or of this one with another checkpoint, whose epochs have the "
            "same numbers: give each query a path of its own"
        )


def write_numbered(folder: Folder, number: int, write: Filling) -> None:
    """Publish a folder, unless one of this number is there, and remove all before the last but one, which may be
    read."""
    folder.publish(f"moment-{number:012d}", write)
    for old in _numbered(folder)[:-2]:
        folder.unpublish(old)


def newest_of(folder: Folder) -> str | None:
    """Return where the newest of the numbered folders is; None: there is none."""
    found = _numbered(folder)
    return folder.url(found[-1]) if found else None


def _numbered(folder: Folder) -> list[str]:
    return [name for name in folder.published() if name.startswith("moment-")]


class Version(NamedTuple):
    """State after a batch."""

    epoch: int
    content: Any


class Versions:
    """The newest versions of one state.

    Args:
        folder: that has them, among others of that state.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._last: list[Version] = []  # those that are there, oldest first, as far as they were looked for

    def before(self, epoch: int) -> Version | None:
        """Return the newest version that an epoch can begin with, as the folder has it; None: there is none."""
        numbers = sorted(int(found[1]) for name in self._folder.names() if (found := _VERSION.fullmatch(name)))
        earlier = [number for number in numbers if number < epoch]
        content = self._folder.read(_version(earlier[-1])) if earlier else None
        self._last = [*(Version(number, None) for number in earlier[:-1]), *(Version(n, content) for n in earlier[-1:])]
        return self._last[-1] if earlier else None

    def put(self, epoch: int, content: Any) -> Any:
        """Publish the version after an epoch, and remove all but the one before, which it has begun with.

        Returns:
            The content of the one before; None: there is none.
        """
        self._folder.put(_version(epoch), content)
        earlier = [each for each in self._last if each.epoch < epoch]
        if old := earlier[:-1]:
            self._folder.delete(_version(each.epoch) for each in old)
        self._last = [*earlier[-1:], Version(epoch, content)]
        return earlier[-1].content if earlier else None


def _version(epoch: int) -> str:
    return f"version-{epoch:012d}.json"
