"""Rows of state over time, by what ends it: the tracker, a time to live, a watermark; `make demo-state`.

Six tenants' visits are counted by tenant, hour and user, in Spark's state store. One tenant's rows come three hours
late, one delivers nothing for four hours and then all of it. Times to live are of the machine's clock, so the replay
takes some minutes. The exit status is 0 if the tracker's results are those of a count over all rows, and its state is
empty at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from examples.flights.agent import TrackerProcess
from examples.flights.spark import local_session
from examples.state.picture import draw
from examples.state.replay import Replay
from examples.state.ways import by_times_to_live, by_tracker, by_watermark

_ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts" / "state"
_STATE = "org.apache.spark.sql.execution.streaming.state"
_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",  # RocksDB's files need it
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.state.demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--step-seconds", type=float, default=6.0, help="of half an hour for times to live; default 6")
    parser.add_argument("--artifacts", type=Path, default=_ARTIFACTS, help=f"default {_ARTIFACTS}")
    given = parser.parse_args(arguments)
    replay = Replay()
    truth = replay.truth
    with tempfile.TemporaryDirectory(prefix="state-", ignore_cleanup_errors=True) as directory:
        places = iter(Path(directory, str(number)) for number in range(9))

        def place() -> Path:
            path = next(places)
            path.mkdir()
            return path

        with TrackerProcess(place()) as tracker, local_session(place(), _SETTINGS) as spark:
            outcomes = [by_tracker(spark, replay, place(), tracker.address)]
            outcomes += [by_watermark(spark, replay, place(), hours) for hours in (1, 5)]
            outcomes += by_times_to_live(spark, replay, place(), (1, 5), given.step_seconds)
    given.artifacts.mkdir(parents=True, exist_ok=True)
    for outcome in outcomes:
        rows = outcome.rows
        print(
            f"{outcome.name:24} {outcome.wrong(truth):4} of {len(truth)} results wrong; rows of state: "
            f"{sum(rows) / len(rows):5.0f} on average, {max(rows):4} at most, {rows[-1]:4} at the end"
        )
    draw(outcomes, truth, replay.open_entries(), given.artifacts / "state-rows.png")
    print(f"picture: {given.artifacts / 'state-rows.png'}")
    return int(outcomes[0].wrong(truth) > 0 or outcomes[0].rows[-1] > 0)


if __name__ == "__main__":
    sys.exit(main())
