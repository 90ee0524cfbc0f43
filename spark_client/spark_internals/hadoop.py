"""Files of HDFS, through the client that Spark's JVM has of it, with Spark's configuration, user and tickets.

Relies on the JVM's gateway of a classic session, and on Hadoop's `FileContext`: a rename in HDFS is one step, which
fails where there is a file. So a file appears whole, and of several that create it one succeeds. Fails closed: on
another machine than the driver's, where tasks may run, the gateway is not reached. Since Spark 3.5.

A store that is pickled has the gateway's token with it, which opens nothing beyond the driver's machine.
"""

from __future__ import annotations

import posixpath
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from tracker.store import NoAnswerError, RefusedError

if TYPE_CHECKING:  # an application over Spark Connect may have no such package
    from py4j.java_gateway import JavaGateway

SCHEMES: Final = frozenset({"hdfs"})

_SMALL: Final = 256 << 10  #: bytes that go through the gateway, which is slow: more go through a file on this machine
_PIECE: Final = 8 << 20  #: bytes that are read at once
_UNFINISHED: Final = ".unfinished"
_REFUSALS: Final = (
    "AccessControlException",
    "InvalidPathException",
    "ParentNotDirectoryException",
    "UnsupportedFileSystemException",
)
_FULL: Final = ("QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException")


class HadoopStore:
    """The files of a file system below its root. See `tracker.store` for what its methods promise.

    Args:
        gateway: PySpark's, to Spark's JVM.
        url: of the file system, ``hdfs://namenode:8020``, or of a folder; ``hdfs://``: it is Hadoop's default.

    Raises:
        RefusedError: the default is another kind of file system.
    """

    def __init__(self, gateway: JavaGateway, url: str) -> None:
        self._gateway = gateway
        self._url = url
        with _asked():
            jvm: Any = gateway.jvm
            hadoop = jvm.org.apache.hadoop.fs
            settings = jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()
            default = str(settings.get("fs.defaultFS"))
            self._root = default.rstrip("/") if url.endswith("//") else url
            if not self._root.startswith(url):
                raise RefusedError(f"Hadoop's default file system is {default}: name the other one, {url}NAME/…")
            self._files = hadoop.FileContext.getFileContext(jvm.java.net.URI(self._root), settings)
            self._path: Callable[[str], Any] = hadoop.Path
            self._java_files = jvm.java.nio.file
            self._new = jvm.java.util.EnumSet.of(hadoop.CreateFlag.CREATE)
            self._usual = hadoop.permission.FsPermission.getDirDefault()
            self._in_folder = self._array(hadoop.Options.CreateOpts, hadoop.Options.CreateOpts.createParent())
            self._in_place = self._array(hadoop.Options.Rename, hadoop.Options.Rename.OVERWRITE)
            self._if_absent = self._array(hadoop.Options.Rename, hadoop.Options.Rename.NONE)
            self._no_options = self._array(self._java_files.CopyOption)
            self._no_more = self._array(jvm.java.lang.String)

    def __reduce__(self) -> tuple[Any, ...]:
        way = self._gateway.gateway_parameters
        return _elsewhere, (way.port, way.auth_token, self._url)

    def _array(self, kind: Any, *values: Any) -> Any:
        array = self._gateway.new_array(kind, len(values))
        for place, value in enumerate(values):
            array[place] = value
        return array

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:  # noqa: ARG002
        with suppress(FileNotFoundError):
            if not self._holds(name):  # to ask first is cheap: PySpark takes longer for an error than Hadoop for a file
                return None
            with self._open(name) as stream:
                content: bytes = stream.readNBytes(_SMALL if first is None else first)
                rest = self._rest(stream) if first is None and len(content) == _SMALL else ()
                return content + b"".join(rest)
        return None

    def pieces(self, name: str) -> Iterator[bytes]:
        with self._open(name) as stream:
            yield from self._rest(stream)

    def _rest(self, stream: Any) -> Iterator[bytes]:
        """Yield what a stream still has, by way of a file."""
        with tempfile.TemporaryDirectory() as own:
            with _asked():
                self._java_files.Files.copy(stream, self._here(f"{own}/rest"), self._no_options)
            with open(f"{own}/rest", "rb") as rest:
                while piece := rest.read(_PIECE):
                    yield piece

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        self._write(name, data, self._in_place)

    def create(self, name: str, data: bytes) -> bool:
        return self._write(name, data, self._if_absent)

    def copy(self, name: str, to: str) -> None:
        """Move a file, which nobody writes again, unless somebody has done so.

        Raises:
            FileNotFoundError: there is none of either name.
        """
        target = self._at(to)
        try:
            with _asked():
                self._files.mkdir(target.getParent(), self._usual, True)
                self._files.rename(self._at(name), target, self._if_absent)
        except FileExistsError:
            return
        except FileNotFoundError:
            if not self._holds(to):
                raise

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        def walk(top: str) -> Iterator[str]:
            for entry in self._listed(top):
                name = posixpath.join(top, entry)
                if name.endswith("/"):
                    yield from walk(name[:-1])
                else:
                    yield name

        return sorted(name for name in walk(folder) if name > after)

    def entries(self, folder: str = "") -> Sequence[str]:
        return sorted(self._listed(folder))

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, and folders that are empty then."""
        listed = list(names)
        for name in listed:
            with suppress(FileNotFoundError), _asked():
                self._files.delete(self._at(name), False)
        for folder in {posixpath.dirname(name) for name in listed}:
            with suppress(RefusedError, NoAnswerError, FileNotFoundError), _asked():  # somebody else was faster
                while folder and not self._files.listStatus(self._at(folder)).hasNext():
                    self._files.delete(self._at(folder), False)
                    folder = posixpath.dirname(folder)

    def remove(self, folder: str) -> None:
        with suppress(FileNotFoundError), _asked():
            self._files.delete(self._at(folder), True)

    def _fill(self, stream: Any, data: bytes | Iterable[bytes]) -> None:
        if isinstance(data, bytes) and len(data) <= _SMALL:
            stream.write(data)
            return
        with tempfile.NamedTemporaryFile() as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            self._java_files.Files.copy(self._here(file.name), stream)

    def _here(self, path: str) -> Any:
        return self._java_files.Paths.get(path, self._no_more)

    def _at(self, name: str) -> Any:
        return self._path(f"{self._root}/{name}")

    def _holds(self, name: str) -> bool:
        with _asked():
            return bool(self._files.util().exists(self._at(name)))

    def _listed(self, folder: str) -> list[str]:
        if not self._holds(folder):
            return []
        with suppress(FileNotFoundError), _asked():
            found = self._files.util().listStatus(self._at(folder))
            names = [each.getPath().getName() + "/" * each.isDirectory() for each in found]
            return [name for name in names if not name.endswith(_UNFINISHED)]
        return []

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        with _asked():
            stream = self._files.open(self._at(name))
            try:
                yield stream
            finally:
                stream.close()

    def _write(self, name: str, data: bytes | Iterable[bytes], rename: Any) -> bool:
        hidden = self._at(posixpath.join(posixpath.dirname(name), f".{secrets.token_hex(8)}{_UNFINISHED}"))
        try:
            with _asked():
                stream = self._files.create(hidden, self._new, self._in_folder)
                try:
                    self._fill(stream, data)
                    stream.hsync()
                finally:
                    stream.close()
                self._files.rename(hidden, self._at(name), rename)
        except BaseException as error:
            with suppress(Exception):
                self._files.delete(hidden, False)
            if isinstance(error, FileExistsError):
                return False
            raise
        return True


def _elsewhere(port: int, token: str, url: str) -> HadoopStore:
    """Return the store in another process of the driver's machine, as Spark starts for sources in Python."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    return HadoopStore(JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token)), url)


@contextmanager
def _asked() -> Iterator[None]:
    """Let failures of Hadoop become Python's, and those of `tracker.store`."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getSimpleName())
        problem = f"{kind}: {error.java_exception.getMessage()}".partition("\n")[0]
        if kind == "FileNotFoundException":
            raise FileNotFoundError(problem) from error
        if kind == "FileAlreadyExistsException":
            raise FileExistsError(problem) from error
        if kind in _REFUSALS or kind in _FULL:
            raise RefusedError(problem, kind in _FULL) from error
        raise NoAnswerError(problem) from error
    except PySparkException as error:  # what PySpark has a class of its own for: an illegal argument
        raise RefusedError(str(error).partition("\n")[0]) from error
    except (Py4JError, ConnectionError) as error:
        raise NoAnswerError(f"Spark's JVM does not answer on this machine: {error}") from error
