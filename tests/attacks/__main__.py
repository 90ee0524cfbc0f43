"""Attacks a server and prints what another client notices: ``python -m tests.attacks [NAME…]``.

Each attack of `attacks.ATTACKS` runs against a server of its own for a while, again and again; beside it a client in
a process of its own sends one small committing report each 50 ms. The table says how the attack was answered, how
much memory the server took for it, and how long the other client's reports took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.attacks import clients
from tests.attacks.attacks import ATTACKS, Beside
from tests.server.processes import ROOT, Servers, launcher
from tracker.client.credentials import VARIABLES


class Seen(NamedTuple):
    """What came of an attack."""

    answers: Counter[str]
    seconds: float
    memory: int  #: MiB, the most beyond what the server had before
    journal: int  #: MiB that the journal has grown
    took: list[float]  #: ms, each of the other client's reports


def run(
    servers: Servers, directory: Path, name: str, scale: float, seconds: float, journal: str, quotas: bool = False
) -> Seen:
    """One attack, for at least so many seconds; with quotas on the attacker, if asked for."""
    attack = ATTACKS[name]
    limits = [argument for limit in attack.limits for argument in ("--limit", limit)]
    tokens = clients.write(directory) if quotas else []
    server = servers.start(directory, journal, *limits, *tokens)
    clients.use(server, directory if quotas else None)
    other = None
    try:
        prepared = attack.prepare(server, scale)
        other = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.good_client", server.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | ({VARIABLES["token_file"]: str(directory / "good.token")} if quotas else {}),
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        size = journal_size(directory)
        beside = Beside(server)
        started = time.monotonic()
        answers: Counter[str] = Counter()
        while time.monotonic() - started < seconds or not answers:
            answers += attack.strike(server, scale, prepared)
        took = time.monotonic() - started
        said, _ = other.communicate()
        assert other.returncode == 0, "the other client was not served"
        return Seen(answers, took, beside.stop(), (journal_size(directory) - size) >> 20, json.loads(said))
    finally:
        if other is not None and other.poll() is None:
            other.kill()
            other.wait()
        server.kill()


def journal_size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("tracker.db*") if file.exists())


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="attacks whose names contain one of these; none: all")
    parser.add_argument("--scale", type=float, default=1.0, help="1: as large as the names say")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack, at least")
    parser.add_argument("--journal", choices=["sqlite", "memory"], default="sqlite")
    parser.add_argument("--quotas", action="store_true", help="the attacker has a token with quotas")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; scale {given.scale}, {given.journal}\n")
    line = "{:<46} {:<34} {:>7} {:>7} {:>10} {:>7} {:>7} {:>5}"
    print(line.format("attack", "answers", "memory", "journal", "other: p50", "p99", "max", "n"))
    with launcher() as servers:
        for name in ATTACKS:
            if given.names and not any(part in name for part in given.names):
                continue
            with tempfile.TemporaryDirectory() as directory:
                seen = run(servers, Path(directory), name, given.scale, given.seconds, given.journal, given.quotas)
            answers = ", ".join(f"{answer} {count}" for answer, count in seen.answers.most_common(3))
            times = [quantile(seen.took, 0.5), quantile(seen.took, 0.99), max(seen.took)]
            shown = [f"{seen.memory} MiB", f"{seen.journal} MiB", *(f"{ms:.1f} ms" for ms in times)]
            print(line.format(name, answers, *shown, len(seen.took)), flush=True)


if __name__ == "__main__":
    main()
