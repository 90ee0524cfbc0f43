"""A Spark Connect server as a process. Spark's Python package has its classes, and no script that starts one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyspark

from examples.services.processes import Service, free_port

_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}


class ConnectServer(Service):
    """A server on this machine, whose processes of Python find what this one imports.

    Args:
        settings: of Spark, beside the usual ones.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory / "connect.log")
        self._directory = directory
        self._settings = {**_SETTINGS, **(settings or {})}
        self.port = free_port()

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        settings = {**self._settings, "spark.connect.grpc.binding.port": str(self.port)}
        given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [str(home / "bin" / "spark-submit"), "--class", _MAIN, *given]
        self._launch([*command, "spark-internal"], cwd=self._directory, env=environment)
        self._await("Spark Connect")

    def queries(self) -> list[int]:
        """Return the processes in which queries have their batches."""
        assert self.process is not None
        group = os.getpgid(self.process.pid)
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                words = (each / "cmdline").read_bytes().split(b"\0")
                if os.getpgid(int(each.name)) == group and any(b"foreach_batch_worker" in word for word in words):
                    found.append(int(each.name))
            except OSError:
                continue
        return found

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False
