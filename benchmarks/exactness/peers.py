"""Other engines: each runs a program in an environment of its own, which `make exactness-peers` installs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.exactness.engine import Run, Show, UnavailableError
from benchmarks.exactness.judge import Emitted
from benchmarks.exactness.queries import QUERIES, Key
from benchmarks.exactness.workload import Workload
from examples.services import jars
from examples.services.kafka import Kafka, topic_name

_ROOT = Path(__file__).parents[2]
_PROGRAMS = Path(__file__).with_name("programs")
_ANY = str(2**63 - 1)


@dataclass(frozen=True)
class Peer:
    """An engine with a program in Python.

    Attributes:
        name, configured, queries: see `Engine`.
        environment: below `.cache/exactness`; the program is `on_<environment>.py`.
        options: of the program.
        kafka: whether it is fed by a broker.
    """

    name: str
    configured: str
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kafka: bool = False
    queries: Sequence[str] = tuple(QUERIES)

    def run(self, workload: Workload, queries: Sequence[str], directory: Path, show: Show) -> Mapping[str, Run]:
        """See `Engine`."""
        given, out = directory / "workload.json", directory / "results.jsonl"
        workload.write(given)
        out.touch()
        with self._broker(directory, workload) as where:
            options = json.dumps({"queries": list(queries), **self.options, **where})
            command = [*self._command(directory), str(given), str(out), options]
            errors = directory / "errors.txt"
            with errors.open("w") as stderr:
                program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
                try:
                    assert program.stdout is not None
                    for line in program.stdout:
                        show(line.strip())
                    status = program.wait()
                finally:
                    program.kill()
                    program.wait()
        if status != 0:
            raise RuntimeError(f"{self.name} has ended with status {status}:\n{errors.read_text()[-3000:]}")
        return results(out, queries)

    def _command(self, directory: Path) -> list[str]:  # noqa: ARG002 - other peers put files there
        python = _ROOT / ".cache" / "exactness" / self.environment / "bin" / "python"
        if not python.exists():
            raise UnavailableError(f"{self.environment} is not installed: make exactness-peers")
        return [str(python), str(_PROGRAMS / f"on_{self.environment}.py")]

    @contextmanager
    def _broker(self, directory: Path, workload: Workload) -> Iterator[dict[str, Any]]:
        """Yield the options that lead to a broker of its own, if it has one."""
        if not self.kafka:
            yield {}
            return
        try:
            found = sorted(str(jar) for jar in jars.of_peer(self.environment).glob("*.jar"))
            # Rows of a fast clock are to reach the engine: by default a broker refuses what is an hour ahead.
            broker = Kafka(directory / "kafka", settings={"log.message.timestamp.after.max.ms": _ANY})
        except jars.MissingError as error:
            raise UnavailableError(str(error)) from error
        with broker:
            events, out = topic_name("events"), topic_name("results")
            broker.create(events, workload.partitions)
            broker.create(out, 1)
            yield {"servers": broker.servers, "events": events, "results": out, "jars": found}


class Streams(Peer):
    """Kafka Streams: a program in Java, compiled when it runs."""

    def _command(self, directory: Path) -> list[str]:
        path = f"{jars.of_peer(self.environment)}/*"
        classes = directory / "classes"
        source = _PROGRAMS / "OnStreams.java"
        try:
            compiled = subprocess.run(
                ["javac", "-nowarn", "-cp", path, "-d", str(classes), str(source)], capture_output=True, text=True
            )
        except FileNotFoundError as error:
            raise UnavailableError("javac is missing: apt-get install openjdk-17-jdk-headless") from error
        if compiled.returncode != 0:
            raise RuntimeError(compiled.stderr)
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [jars.java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", quiet, "-cp", f"{path}:{classes}", "OnStreams"]


def results(out: Path, queries: Sequence[str]) -> dict[str, Run]:
    """Return the results that a program has written, by query."""
    runs = {query: Run() for query in queries}
    for text in out.read_text().splitlines():
        line = json.loads(text)
        run = runs[line["query"]]
        if "late" in line:
            run.aside = (run.aside or 0) + line["late"]
            continue
        key = Key(line["tenant"], line["entity"], line["begin"], line["end"])
        run.emitted.append(Emitted(line["step"], key, (line["bids"], line["volume"], line["highest"])))
    return runs


def flink(delay: int, idle: int | None) -> Peer:
    """Return Flink SQL.

    Args:
        delay: minutes of `WATERMARK FOR ts AS ts - INTERVAL …`; 0: a millisecond.
        idle: minutes after which a partition is not waited for; None: never.
    """
    silent = f"idle after {idle} minutes" if idle else "no idle timeout"
    setting = "`table.exec.source.idle-timeout`" if idle else "no `table.exec.source.idle-timeout` (the default)"
    # Its documentation's way for times that ascend: with no interval at all, a row of the newest time is late.
    interval = f"'{delay}' MINUTE" if delay else "'0.001' SECOND"
    return Peer(
        f"Flink, delay of {_length(delay)}, {silent}",
        f"PyFlink 2.2.1, Flink SQL over Kafka: `WATERMARK FOR ts AS ts - INTERVAL {interval}`, by partition; {setting}",
        "flink",
        {"interval": interval, "idle": idle and idle / 2},  # a step of two minutes takes a second
        kafka=True,
    )


def bytewax(wait: int) -> Peer:
    """Return Bytewax, with minutes of `wait_for_system_duration`."""
    return Peer(
        f"Bytewax, wait of {_length(wait)}",
        f"Bytewax 0.21.1: `EventClock` by key, `wait_for_system_duration` of {_length(wait)}, on the workload's clock",
        "bytewax",
        {"delay": wait},
    )


def _length(minutes: int) -> str:
    return f"{minutes} minutes" if minutes < 60 else "1 hour" if minutes == 60 else f"{minutes // 60} hours"


def beam(delay: int) -> Peer:
    """Return Beam's direct runner, with a delay of minutes."""
    return Peer(
        f"Beam, delay of {_length(delay)}",
        f"Beam 2.77.0, direct runner, `TestStream` with the watermark of `CustomTimestampPolicyWithLimitedDelay`: "
        f"a delay of {_length(delay)} by partition, idle ones follow the clock; default trigger, no allowed lateness",
        "beam",
        {"delay": delay},
    )


def streams(grace: int) -> Peer:
    """Return Kafka Streams, with minutes of grace."""
    return Streams(
        f"Kafka Streams, grace of {_length(grace)}",
        f"Kafka Streams 4.1.1: windows with a grace period of {_length(grace)}, `suppress(untilWindowCloses)`",
        "streams",
        {"delay": grace},
        kafka=True,
    )
