"""A file system of Hadoop, from Maven's jars: a name node and a data node in one JVM.

>>> with Hdfs(Path("/tmp/hdfs")) as files:                                                   # doctest: +SKIP
...     print(files.url)
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from examples.services import jars
from examples.services.processes import Service, free_port


class Hdfs(Service):
    """A file system in a directory of its own.

    Args:
        directory: for its blocks and its log.

    Attributes:
        url: its root.
        quick: settings of clients: a file that was just written is looked for at once, and one node does not come back
            while somebody waits.

    Raises:
        MissingError: its jars or Java are.
    """

    quick: ClassVar = {
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
        "ipc.client.connect.max.retries": "1",
    }

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "hdfs.log")
        self._directory = directory
        self._jvm = jars.jvm(jars.hdfs(), f"-Dtest.build.data={directory}")
        self._port = free_port()
        self.url = f"hdfs://127.0.0.1:{self._port}"
        self._details = directory / "details.json"

    def start(self) -> None:
        self._details.unlink(missing_ok=True)
        formats = [] if (self._directory / "dfs").exists() else ["-format"]
        options = ["-datanodes", "1", "-nnport", str(self._port), *formats, "-writeDetails", str(self._details)]
        self._launch([*self._jvm, "org.apache.hadoop.test.MiniDFSClusterManager", *options])
        self._await("the name node")

    def _answers(self) -> bool:
        return self._details.exists()  # written once both nodes run
