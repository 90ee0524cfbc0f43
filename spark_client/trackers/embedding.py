"""Where the tracker of a job is: a service, or in this process, by the name of its journal: see `tracker.embedded`."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote, unquote, urlencode, urlsplit

from spark_client.errors import TrackingError, UsageError, refused
from spark_client.storage.folder import STORES, Folder
from tracker.store.address import lend

_JOURNALS: Final = ("sqlite:", "file:", "s3:", "gs:", "az:")
_IN_ADDRESS: Final = ("endpoint", "region")  #: settings of a store that are no secret
_FOLDER: Final = "_tracker"  #: beside checkpoints: sources of files pass over such names
_UNSTARTED: Final = "runs-once-a-query-has-started"  #: shown by errors of calls that come before


def is_journal(server: str) -> bool:
    """Return whether an address is a journal's, and not a tracker's.

    >>> is_journal("file:///data/journal"), is_journal("file:7654")
    (True, False)
    """
    return server.startswith(_JOURNALS) and not server.partition(":")[2].isdigit()


class Service:
    """A tracker that runs by itself, at an address.

    Attributes:
        address: where it is called, from the beginning.
        name: what a user may give as ``server`` to reach it; empty: not known before the first query.
    """

    def __init__(self, address: str) -> None:
        self.address = self.name = address

    def start(self, checkpoint: Folder) -> None:
        """Make sure that it runs, before a query with this checkpoint starts; refuse one that cannot be the query's."""


class Embedded:
    """A tracker in this process, or in another one of the same user and machine that was first to ask for its journal.

    Raises:
        UsageError: the address of the journal has another form, or the packages of a server are missing.
        TrackingError: the journal cannot be used.
    """

    def __init__(self, journal: str) -> None:
        self.name = journal
        self.address = _embed(journal)

    def start(self, checkpoint: Folder) -> None:  # noqa: ARG002
        _embed(self.name)  # the process that ran it may have ended


class Beside:
    """An embedded tracker whose journal is in the folder of the queries' checkpoints, in the same store.

    The first query that starts shows where that is. The address is a name until then, which leads to the tracker's own.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        directory = tempfile.mkdtemp(prefix="tracker-")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._link = Path(directory, _UNSTARTED)
        self.address = f"unix:{self._link}"
        self.name = ""

    def start(self, checkpoint: Folder) -> None:
        journal = journal_beside(str(checkpoint), self._job, checkpoint.settings)
        if self.name not in ("", journal):
            raise UsageError(
                f"checkpointLocation {str(checkpoint)!r}: the tracker of job {self._job!r} is {self.name}, in the "
                "folder of its first query's checkpoint. Put the checkpoints of all its queries there, or name the "
                f"tracker: Tracking(…, server={self.name!r})"
            )
        address = _embed(journal)
        if not self.name:
            self._link.symlink_to(address.removeprefix("unix:"))
        self.name = journal


JobTracker: TypeAlias = Service | Embedded | Beside


def tracker_of(server: str | None, job: str) -> JobTracker:
    """Return the place of the tracker that a user names: by its address, by its journal's, or not at all.

    Raises:
        UsageError: the address of a journal has another form, or the packages of a server are missing.
        TrackingError: a journal cannot be used.
    """
    if server is None:
        return Beside(job)
    if is_journal(server):
        return Embedded(server)
    return Service(server)


def journal_beside(checkpoint: str, job: str, settings: Mapping[str, str] | None = None) -> str:
    """Return the journal of a job one of whose queries has a checkpoint, and lend this process the keys for it.

    Args:
        settings: of the checkpoint's store, that the environment lacks.

    Raises:
        UsageError: the checkpoint is in a store in which journals cannot be.

    >>> journal_beside("/data/shop/daily", "shop"), journal_beside("s3a://bucket/shop/daily/", "shop")
    ('file:///data/shop/_tracker/shop', 's3://bucket/shop/_tracker/shop')
    >>> journal_beside("abfss://box@account.dfs.core.windows.net/daily", "shop")
    'az://box/_tracker/shop?account=account'
    >>> journal_beside("s3a://bucket/daily", "80% of #1?")
    's3://bucket/_tracker/80%25%20of%20%231%3F'
    """
    url, name = urlsplit(checkpoint), quote(job, safe="")
    if url.scheme in ("", "file"):
        path = unquote(url.path) if url.scheme else checkpoint
        return f"file://{quote(os.path.dirname(os.path.realpath(path)).rstrip('/'))}/{_FOLDER}/{name}"
    if url.scheme not in STORES:
        raise UsageError(
            f"checkpointLocation {checkpoint!r}: a tracker keeps no journal in {url.scheme}://: name one in another "
            "place, Tracking(…, server='file:///DIRECTORY'), or run a service (`tracker serve`) and give its address"
        )
    bucket, _, host = url.netloc.partition("@")
    folder = url.path.rstrip("/").rpartition("/")[0]
    given = dict(settings or {})
    options: dict[str, str] = {name: given.pop(name) for name in _IN_ADDRESS if name in given}
    if host:
        options["account"] = host.partition(".")[0]
    scheme = STORES[url.scheme]
    lend(scheme, bucket, given)
    shown = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{bucket}{folder}/{_FOLDER}/{name}{shown}"


def _embed(journal: str) -> str:
    here = f"without the address of a service this process runs the tracker, in {journal}"
    with refused(here, "pip install 'substream-tracker[server]'", ModuleNotFoundError):
        # Loaded when used: where a service runs, no server is installed.
        from tracker.embedded import JournalError, embed
    try:
        with refused(f"the tracker's journal {journal!r}", errors=ValueError):
            return embed(journal)
    except (JournalError, OSError) as error:
        raise TrackingError(f"the tracker's journal {journal!r}: {error}") from error
