"""The journals of the servers that are measured: each gets one of its own, which is gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.services.redis import Redis, RedisMissingError


@contextmanager
def journal(kind: str, directory: Path, name: str) -> Iterator[str]:
    """Gives a journal of a kind.

    Args:
        kind: ``memory``; ``sqlite``: a file in `directory`; ``redis``, or with options ``redis?durability=memory``: a
            server that is started for it, and syncs each write; or an address as `tracker serve --journal` takes it.
        directory: where files may be.
        name: of the files.

    Yields:
        The journal's address.
    """
    plain, _, options = kind.partition("?")
    if plain == "sqlite":
        yield f"sqlite:{directory / f'{name}.db'}"
    elif plain == "redis":
        try:
            server = Redis(directory / name)
        except RedisMissingError as missing:
            raise SystemExit(str(missing)) from None
        with server:
            yield f"{server.journal}?{options}"
    else:
        yield kind
