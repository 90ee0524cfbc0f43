"""Costs of metrics, and of TLS with tokens: entries per second, and the time from a promise to its `Ended`.

    python -m benchmarks.protection                 # ten minutes
    python -m benchmarks.protection --runs 2 --seconds 1 --rounds 100

Three servers run all the time: one alone, one whose metrics are scraped each second, and one with TLS, tokens and an
audit log. They are measured in turns, so whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import latency
from benchmarks.figures import HEADER, Figure, row
from benchmarks.processes import tracker
from benchmarks.sender import Prepare, Send
from benchmarks.served import Senders, open_substreams, started_senders
from examples.services.processes import free_port
from tracker.cli.output import print_pairs, print_table
from tracker.client.credentials import VARIABLES
from tracker.load.results import machine
from tracker.load.servers import Server
from tracker.security.identities import entry, new_token

_ENTRIES: Final = 10_000
_SUBSTREAMS: Final = 100_000
_SENDERS: Final = 2
_ALONE: Final = "alone"
_SCRAPE: Final = """
import sys, time, urllib.request
while True:
    time.sleep(1)
    urllib.request.urlopen(sys.argv[1], timeout=60).read()
"""


@dataclass
class _Subject:
    """A server, and what was measured of it."""

    name: str
    server: Server
    address: str
    environment: Mapping[str, str]
    senders: Senders
    rates: list[float] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)  #: entries for each second of the server's processor time
    medians: list[float] = field(default_factory=list)
    tails: list[float] = field(default_factory=list)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="turns of each server")
    parser.add_argument("--seconds", type=float, default=3.0, help="of reports in each turn")
    parser.add_argument("--rounds", type=int, default=500, help="promises in each turn")
    given = parser.parse_args()
    print_pairs(machine().items())
    print()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        subjects = [stack.enter_context(each) for each in _subjects(Path(directory))]
        for run in range(given.runs):
            for subject in subjects[run % 3 :] + subjects[: run % 3]:  # none is always the first
                _send(subject, given.seconds)
                _notify(subject, run, given.rounds)
            print(f"measured: turn {run + 1} of {given.runs}", file=sys.stderr)
    print_table(HEADER, map(row, _figures(subjects)))
    return 0


def _subjects(directory: Path) -> list:  # type: ignore[type-arg]
    tls, environment = _protection(directory)
    return [
        _subject(_ALONE, directory / "a", [], {}),
        _subject("with metrics", directory / "b", ["--metrics", f"127.0.0.1:{free_port()}"], {}),
        _subject("with TLS and a token", directory / "c", tls, environment),
    ]


@contextmanager
def _subject(name: str, directory: Path, options: list[str], environment: Mapping[str, str]) -> Iterator[_Subject]:
    directory.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(tracker("memory", *options))
        address = server.address.replace("127.0.0.1", "localhost") if environment else server.address
        if "--metrics" in options:
            stack.enter_context(_scraping(options[1]))
        senders = stack.enter_context(started_senders(_SENDERS, environment))
        with _environment(environment):
            ids = open_substreams(address, _SUBSTREAMS)
        file = directory / "ids.npy"
        np.save(file, ids.numbers)
        senders.prepare(Prepare(address, "sender", _SUBSTREAMS, _ENTRIES, str(file), ids.log_id, seed=1))
        yield _Subject(name, server, address, environment, senders)


def _send(subject: _Subject, seconds: float) -> None:
    spent = subject.server.processor_seconds()
    answered, lasted = subject.senders.send(Send(subject.address, False, seconds))
    spent = subject.server.processor_seconds() - spent
    subject.rates.append(answered * _ENTRIES / lasted)
    subject.capacities.append(answered * _ENTRIES / max(spent, 1e-9))


def _notify(subject: _Subject, run: int, rounds: int) -> None:
    with _environment(subject.environment), latency.over_client(subject.address, f"run-{run}") as one:
        taken = latency.times(one, rounds)
    subject.medians.append(float(np.percentile(taken, 50)))
    subject.tails.append(float(np.percentile(taken, 99)))


def _figures(subjects: list[_Subject]) -> Iterator[Figure]:
    alone = subjects[0]
    for subject in subjects:
        note = f"{len(subject.rates)} turns"
        floor = "the server alone"
        reports = f"{_ENTRIES:,} entries a report"
        yield Figure(f"{subject.name}: {reports}", "/s", subject.rates, alone.rates, floor, note)
        yield Figure(
            f"{subject.name}: the same, for a second of its processor",
            "/s",
            subject.capacities,
            alone.capacities,
            floor,
        )
        yield Figure(f"{subject.name}: promise to Ended, p50", "s", subject.medians, alone.medians, floor)
        yield Figure(f"{subject.name}: promise to Ended, p99", "s", subject.tails, alone.tails, floor)


@contextmanager
def _scraping(address: str) -> Iterator[None]:
    """Scrape metrics each second while the context lasts, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", _SCRAPE, f"http://{address}/metrics"])
    try:
        yield
    finally:
        assert process.poll() is None, "the metrics could not be scraped"
        process.terminate()
        process.wait()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have clients of this process take these credentials while the context lasts."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _protection(directory: Path) -> tuple[list[str], dict[str, str]]:
    """Make a certificate and a token: the server's options, and its clients' environment."""
    cert, key, tokens, token_file = (directory / name for name in ("tls.crt", "tls.key", "tokens.toml", "token"))
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    ]
    command += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    subprocess.run(command, check=True, capture_output=True)
    token = new_token()
    token_file.write_text(token)
    tokens.write_text(entry("benchmark", token, ["admin"], ["*"]))
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--tokens", str(tokens)]
    options += ["--audit", str(directory / "audit.jsonl")]
    return options, {VARIABLES["ca"]: str(cert), VARIABLES["token_file"]: str(token_file)}


if __name__ == "__main__":
    sys.exit(main())
