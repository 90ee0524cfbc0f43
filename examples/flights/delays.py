"""How soon a window is released after its last row: two weeks of flights in steps of one hour; `make demo-delays`.

The same pipeline, watermarks and kill as in `demo.py`. A file covers one hour here, so a release is timed to the hour:
from the departure of the last flight of the airport's day to the end of the hour that brought the window out. The two
weeks have the year's worst day for a short watermark, 19 April, when four flights left more than six hours late.

It prints the table, and keeps it with the picture and with one line for each window (`windows.csv`). The exit status is
the demo's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from examples.flights import picture
from examples.flights.demo import ARTIFACTS, Options, Result, carry_out, summary, verdict
from examples.flights.outcome import COUNTS, DELAYS, table


def conclude(result: Result, options: Options, artifacts: Path) -> int:
    """Print, draw and keep the delays; the exit status."""
    outcomes = [result.tracked, *result.watermarks]
    text = f"""
Windows (airport, scheduled day, carrier) of {options.days} days, replayed in hourly steps:

{table(outcomes, [*COUNTS, *DELAYS])}

at once: released in the hour in which the last flight of the airport's day left;
median to longest: from that departure to the end of the hour of the release.

{summary(result)}"""
    print(text)
    (artifacts / "outcome.txt").write_text(text)
    pd.concat([each.windows.assign(released_by=each.name) for each in outcomes]).to_csv(
        artifacts / "windows.csv", index=False
    )
    picture.draw(outcomes, artifacts / "release-delay.png")
    print(f"picture: {artifacts / 'release-delay.png'}")
    return verdict(result)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    default = Options("2013-04-08", 14, span=1)
    parser = argparse.ArgumentParser(prog="python -m examples.flights.delays", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first-day", default=default.first_day, metavar="DATE", help=f"default {default.first_day}")
    parser.add_argument("--days", type=int, default=default.days, help=f"default {default.days}")
    artifacts = ARTIFACTS.with_name("flights-delays")
    parser.add_argument("--artifacts", type=Path, default=artifacts, help=f"default {artifacts}")
    given = parser.parse_args(arguments)
    return carry_out(Options(given.first_day, given.days, span=1), given.artifacts, conclude)


if __name__ == "__main__":
    sys.exit(main())
