"""Starts a tracker whose clock and store the checker can set, and which may have a planted fault.

python -m tests.checker.launcher --weather FILE --plant NAME -- serve --journal …

The product has no switch for any of that: this program changes its modules before it starts.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.checker.plants import PLANTS
from tests.checker.weather import Weather, tell_of_recoveries
from tracker.cli.main import main as cli
from tracker.server import app


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weather", type=Path, required=True)
    parser.add_argument("--plant", choices=("", *PLANTS), default="")
    parser.add_argument("arguments", nargs="+")
    given = parser.parse_args()
    if given.plant:
        PLANTS[given.plant].sow()
    weather = Weather(given.weather)
    weather.reach_the_store()
    tell_of_recoveries()
    app.run = partial(app.run, wall=weather.now)
    return cli(given.arguments)


if __name__ == "__main__":
    sys.exit(main())
