"""Replaces the leader of two trackers again and again while clients work, and judges what came of it.

python -m tests.failover --faults 300                     # on a Redis that is started for it
python -m tests.failover --journal sqlite --faults 30
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.failover.pair import KINDS
from tests.failover.rounds import as_json, play, summary
from tests.journal.redis_server import RedisServer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", choices=("redis", "sqlite"), default="redis")
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", default="", help="of the address in Redis, such as durability=memory")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    given = parser.parse_args()
    random = Random(given.seed)
    # A process that sleeps keeps its lock on a file, so no standby could follow it.
    possible = KINDS if given.journal == "redis" else ("kill", "stop")
    kinds = [random.choice(possible) for _ in range(given.faults)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        redis = RedisServer(path / "redis") if given.journal == "redis" else None
        where = f"redis://127.0.0.1:{redis.port}?{given.options}" if redis else f"sqlite:{path / 'tracker.db'}"
        try:
            outcome = play(path / "trackers", where, kinds, lambda line: print(line, flush=True))
        finally:
            if redis is not None:
                redis.kill()
    print(summary(outcome))
    if given.json is not None:
        given.json.write_text(as_json(outcome))
    return int(bool(outcome.problems))


if __name__ == "__main__":
    sys.exit(main())
