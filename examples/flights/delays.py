"""The delay from a window's last row to its release: two weeks of flights in steps of one hour; `make demo-delays`.

The same pipeline, watermarks and kill as in `demo.py`. A file covers one hour here, so a release is timed to the hour:
from the departure of the last flight of the airport's day to the end of the hour that brought the window out. The two
weeks have the year's worst day for a short watermark, 19 April, when four flights left more than six hours late.

The program prints the table, and keeps it with the picture and with one line for each window (`windows.csv`). The exit
status is the demo's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from examples.flights import picture
from examples.flights.demo import Options, Result, run, summary
from examples.flights.outcome import COUNTS, DELAYS, table
from examples.flights.program import ARTIFACTS, carry_out, parser


def conclude(result: Result, options: Options, artifacts: Path) -> tuple[str, bool]:
    """Draw and keep the delays. Return the report for the reader, and whether the released table is exact."""
    outcomes = [result.tracked, *result.watermarks]
    text = f"""
Windows (airport, scheduled day, carrier) of {options.days} days, replayed in hourly steps:

{table(outcomes, [*COUNTS, *DELAYS])}

at once: released in the hour in which the last flight of the airport's day left;
median to longest: from that departure to the end of the hour of the release.

{summary(result)}
picture: {artifacts / "release-delay.png"}
"""
    pd.concat([each.windows.assign(released_by=each.name) for each in outcomes]).to_csv(
        artifacts / "windows.csv", index=False
    )
    picture.draw(outcomes, artifacts / "release-delay.png")
    return text, result.exact


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    default = Options("2013-04-08", 14, span=1)
    artifacts = ARTIFACTS.with_name("flights-delays")
    given = parser("examples.flights.delays", __doc__, default, artifacts).parse_args(arguments)
    options = Options(given.first_day, given.days, span=1)
    return carry_out(
        lambda directory, progress: run(options, directory, progress),
        given.artifacts,
        lambda result: conclude(result, options, given.artifacts),
    )


if __name__ == "__main__":
    sys.exit(main())
