"""Any store that fsspec knows, with what its own package takes as options. It cannot create files under a condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from .interface import NoAnswerError, RefusedError

_PIECE: Final = 8 << 20  # bytes that are read at once


class ForeignStore:
    """The files below a URL.

    Args:
        url: of the folder, with a scheme that fsspec knows, such as ``hdfs://name/path``.
        options: of fsspec's file system.

    Raises:
        RefusedError: fsspec, or what it needs for this URL, is not installed; or the URL cannot be used.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise RefusedError(
                "stores other than directories are reached by fsspec: pip install 'substream-tracker[snapshots]', and "
                "what fsspec needs for this one (s3fs, gcsfs, adlfs, …)"
            ) from error
        try:
            self._files, root = url_to_fs(url, **options)
        except (ImportError, ValueError, TypeError) as error:
            raise RefusedError(f"fsspec cannot open it: {error}") from error
        self._root = root.rstrip("/")

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        path = f"{self._root}/{name}"
        with _asked():
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)  # where a store has any
            if isinstance(data, bytes):
                self._files.pipe_file(path, data)
                return
            with self._files.open(path, "wb") as file:
                for piece in data:
                    file.write(piece)

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:  # noqa: ARG002
        with _asked():
            try:
                content: bytes = self._files.cat_file(f"{self._root}/{name}", end=first)
            except FileNotFoundError:
                return None
            return content

    def pieces(self, name: str) -> Iterator[bytes]:
        path = f"{self._root}/{name}"
        with _asked():
            size = self._files.size(path)
            for start in range(0, size, _PIECE):
                yield self._files.cat_file(path, start, min(start + _PIECE, size))

    def entries(self, folder: str = "") -> Sequence[str]:
        with _asked():
            self._files.invalidate_cache()
            try:
                found = self._files.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
            except FileNotFoundError:
                return []
            named = ((each["name"].rstrip("/").rpartition("/")[2], each["type"]) for each in found)
            return sorted(f"{name}/" if kind == "directory" else name for name, kind in named)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with _asked():
                try:
                    self._files.rm(f"{self._root}/{name}", recursive=True)
                except FileNotFoundError:
                    continue

    def remove(self, folder: str) -> None:
        self.delete([folder])


@contextmanager
def _asked() -> Iterator[None]:
    """Let failures of a request become those of `tracker.store`; a file that is missing stays so."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise RefusedError(str(error)) from error
    except OSError as error:
        raise NoAnswerError(str(error)) from error
