"""The journals of the servers that are measured: each gets one of its own, which is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.services.jars import MissingError
from examples.services.redis import Redis, RedisMissingError
from examples.services.s3 import S3


@contextmanager
def journal(kind: str, directory: Path, name: str) -> Iterator[str]:
    """Yield the address of a journal of a kind.

    Args:
        kind: ``memory``; ``sqlite``: a file in `directory`; ``file``: a directory of objects there; ``redis`` or
            ``s3``: a server that is started for it; with options, such as ``redis?durability=memory``; or an address
            as `tracker serve --journal` takes it.
        directory: where files may be.
        name: of the files.

    Yields:
        The journal's address.
    """
    plain, _, options = kind.partition("?")
    if plain == "sqlite":
        yield f"sqlite:{directory / f'{name}.db'}"
    elif plain == "file":
        yield f"file://{directory / name}?{options}"
    elif plain in ("redis", "s3"):
        try:
            server = Redis(directory / name) if plain == "redis" else S3(directory / name)
        except (RedisMissingError, MissingError) as missing:
            raise SystemExit(str(missing)) from None
        with server:
            if isinstance(server, S3):
                os.environ.update(server.environment)  # also of the trackers that are started
            yield f"{server.journal}{'&' if '?' in server.journal else '?'}{options}"
    else:
        yield kind
