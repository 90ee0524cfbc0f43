"""The tracked pipeline as a reader of the replay: what has it released, and when?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from examples.flights.pipeline import Pipeline
from examples.flights.replay import Replay
from examples.flights.truth import KEY, VALUES

_PATIENCE = 10.0  # seconds for which a release that is due is waited for before the replay goes on without it


class TrackedRun:
    """A watcher of what the pipeline releases, file by file of the replay."""

    def __init__(self, running: Pipeline, table: Path, clock: Replay, due: Sequence[int]) -> None:
        """Watch a pipeline.

        Args:
            running: the pipeline.
            table: where it releases to: a directory for each epoch.
            clock: the replay.
            due: how many windows each file of the replay completes, with those before it. It only says how long to
                look: a window that comes out later is released by the later file.
        """
        self._running = running
        self._table = table
        self._clock = clock
        self._due = due
        self._files: dict[Path, int] = {}  # which file of the replay brought an epoch's results out
        self.windows = 0

    def forward(self) -> None:
        """Let the first query do all that it can with what has been published; the second goes on with it."""
        self._running.clean.processAllAvailable()

    def settle(self) -> None:
        """Let the second query do all that it can."""
        self._running.daily.processAllAvailable()
        patience = time.monotonic() + _PATIENCE
        self._look()
        while self.windows < self._due[self._clock.latest] and time.monotonic() < patience:
            self._running.tracking.check()
            time.sleep(0.02)
            self._look()

    def hand_over(self, timeout: float) -> None:
        """Stop all queries between batches; the days that are open stay so."""
        self._running.tracking.hand_over(timeout)
        self._look()

    def go_on(self, running: Pipeline) -> None:
        """Watch the next deployment."""
        self._running = running

    def drain(self, timeout: float) -> None:
        """Let everything end, and stop both queries between batches."""
        self._running.tracking.drain(timeout)
        self._look()

    @property
    def released(self) -> pd.DataFrame:
        """The table as it is on the disk: `KEY`, `VALUES` and `file`, the number of the replay file of its release."""
        epochs = [_read(epoch).assign(file=file) for epoch, file in self._files.items()]
        return pd.concat(epochs, ignore_index=True)[[*KEY, *VALUES, "file"]]

    def _look(self) -> None:
        for epoch in self._table.glob("epoch=*"):
            if epoch not in self._files:
                self._files[epoch] = self._clock.latest
                self.windows += len(_read(epoch))


def _read(epoch: Path) -> pd.DataFrame:
    rows = pd.concat([pd.read_parquet(part) for part in sorted(epoch.glob("*.parquet"))], ignore_index=True)
    return rows.assign(day=pd.to_datetime([window["start"] for window in rows["window"]], utc=True))
