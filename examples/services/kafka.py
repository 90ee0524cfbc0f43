"""A Kafka broker of one node (KRaft), from Maven's jars.

>>> with Kafka(Path("/tmp/kafka")) as kafka:                                                # doctest: +SKIP
...     kafka.create("orders", partitions=3)
...     spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from examples.services import jars
from examples.services.processes import Service, free_port

_CLUSTER = "c3Vic3RyZWFtLXRyYWNrZQ"  # any 16 bytes
_STARTED = b"Kafka Server started"


class Kafka(Service):
    """A broker in a directory of its own.

    Attributes:
        servers: its address, for clients' ``bootstrap.servers``.

    Args:
        directory: for its data, configuration and log.
        through: says how clients get to the address that it is given: through a proxy, say.
        settings: of the broker, beside those that it needs.
    """

    def __init__(
        self,
        directory: Path,
        through: Callable[[str], str] = lambda address: address,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "kafka.log")
        self._jars = jars.broker()
        controller = free_port()
        listening = f"127.0.0.1:{free_port()}"
        self.servers = through(listening)
        self._properties = directory / "server.properties"
        self._data = directory / "data"
        self._seen = 0
        self._properties.write_text(
            f"""\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{listening},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{self.servers}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={self._data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.cleaner.enable=false
"""
            + "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        )

    def start(self) -> None:
        if not self._data.exists():
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties))
        self._seen = self.log.stat().st_size if self.log.exists() else 0
        self._launch([*jars.jvm(self._jars), "kafka.Kafka", str(self._properties)])
        self._await("the Kafka broker")

    def create(self, topic: str, partitions: int = 2) -> None:
        """Make a topic."""
        given = ["--bootstrap-server", self.servers, "--create", "--topic", topic, "--partitions", str(partitions)]
        self._java("org.apache.kafka.tools.TopicCommand", *given)

    def size(self, topic: str) -> int:
        """Return the number of records that were written to a topic."""
        said = self._java("org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", self.servers, "--topic", topic)
        return sum(int(line.rpartition(":")[2]) for line in said.splitlines())

    def _answers(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._seen)
            return _STARTED in log.read()

    def _java(self, main: str, *arguments: str) -> str:
        command = jars.jvm(self._jars, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        run = subprocess.run([*command, main, *arguments], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"{main} {' '.join(arguments)}: {run.stdout}{run.stderr}")
        return run.stdout


def topic_name(what: str) -> str:
    """Return the name of a topic that nobody else has."""
    return f"{what}-{uuid.uuid4().hex[:8]}"
