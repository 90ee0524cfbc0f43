"""An object store with the interface of S3, from Maven's jars: S3Proxy, whose objects are files.

Of several writers that create one object at once, it lets one through, which is what a tracker's journal needs. Of
several that change one under the condition If-Match it may let several through; the journal never asks for that.

>>> with S3(Path("/tmp/s3")) as store:                                                       # doctest: +SKIP
...     print(store.journal)
"""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from examples.services import jars
from examples.services.processes import Service, free_port

_BUCKET = "state"
_LOGGING = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %msg%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""
_KEY, _SECRET = "tracker", "tracker-secret"


class S3(Service):
    """A store in a directory of its own, with one bucket.

    Args:
        directory: for its objects, configuration and log.
        certificate: of a server that encrypts, and its key: files.

    Attributes:
        endpoint: its URL.
        environment: the variables with which programs may use it.

    Raises:
        MissingError: its jars or Java are.
    """

    def __init__(self, directory: Path, certificate: tuple[Path, Path] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "s3.log")
        self._logging = directory / "logback.xml"
        self._jvm = jars.jvm(jars.objects(), f"-Dlogback.configurationFile={self._logging}")
        self.port = free_port()
        self.endpoint = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        self.environment = {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_REGION": "us-east-1"}
        self.objects = directory / "objects" / _BUCKET  #: the directory with the bucket's objects
        self.objects.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "s3.properties"
        self._properties.write_text(
            f"""\
{_listening(self.endpoint, certificate, directory / "store.p12")}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={_KEY}
s3proxy.credential={_SECRET}
s3proxy.ignore-unknown-headers=true
jclouds.provider=filesystem
jclouds.filesystem.basedir={self.objects.parent}
"""
        )
        self._logging.write_text(_LOGGING)

    @property
    def journal(self) -> str:
        """The address of a tracker's journal in it."""
        return f"s3://{_BUCKET}/tracker?endpoint={self.endpoint}"

    def start(self) -> None:
        self._launch([*self._jvm, "org.gaul.s3proxy.Main", "--properties", str(self._properties)])
        self._await("the object store")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=10):
            return True  # it listens once it can answer
        return False


def _listening(endpoint: str, certificate: tuple[Path, Path] | None, store: Path) -> str:
    """Return the settings for where it listens; the certificate goes into a store, as Java wants it."""
    if certificate is None:
        return f"s3proxy.endpoint={endpoint}"
    cert, key = map(str, certificate)
    command = ["openssl", "pkcs12", "-export", "-in", cert, "-inkey", key, "-out", str(store)]
    subprocess.run([*command, "-passout", f"pass:{_SECRET}"], check=True)
    return f"s3proxy.secure-endpoint={endpoint}\ns3proxy.keystore-path={store}\ns3proxy.keystore-password={_SECRET}"
