"""Queries that Spark runs with its own stateful operators."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from spark_client.counting.runs import Run
from spark_client.runtime.queries import TrackedQuery
from spark_client.spark_internals.checkpoints import last_begun, last_commit
from spark_client.spark_internals.observations import observation_name
from tracker.client import Frontier

_log = logging.getLogger("spark_client")


class NativeQuery(TrackedQuery):
    """A query that Spark runs with its own stateful operators. Its promises ride in commits."""

    has_operators = True
    outlives_its_sources = True
    _last_promised: int | None = None  # the last batch whose promises have been made

    def _committed(self, run: Run) -> None:
        last = last_commit(self.checkpoint)
        if last is None or not self._owes(last) or self.query is None:
            return
        newest = self.query.lastProgress
        if newest is None or not self._owes(newest["batchId"]):
            return  # Spark tells of a batch a little after its commit
        alone = newest["batchId"] == last and (self._last_promised == last - 1 or run.resume_epoch == last)
        for progress in [newest] if alone else self.query.recentProgress:  # which are up to a hundred
            epoch = progress["batchId"]
            if epoch <= last and self._owes(epoch):
                run.expect(epoch)
                run.committed(epoch, self._promises(progress["observedMetrics"]))
                self._last_promised = epoch
                self._say_what_is_dropped(progress)

    def _say_what_is_dropped(self, progress: Any) -> None:
        dropped = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        if dropped:
            _log.warning(
                "query %s, batch %d: Spark has dropped %d rows, or rows made of several, which came later than their "
                "source had promised (numRowsDroppedByWatermark)",
                self.run.query,
                progress["batchId"],
                dropped,
            )

    def _promises(self, observed: Mapping[str, Any]) -> list[Frontier]:
        promises: list[Frontier] = []
        for stream, front in self.reads:
            metrics = observed.get(observation_name(stream.segment))
            if front is not None and metrics is not None:
                promises.extend(front.of_observed(metrics.asDict()).frontiers)
        return promises

    def settle(self) -> None:
        if self.query is None or not self.query.isActive:
            return
        self.query.processAllAvailable()
        last = last_commit(self.checkpoint)
        while last is not None and self._owes(last) and self.query.isActive:
            time.sleep(0.01)

    def halt(self) -> None:
        """Stop the query once the batch in hand is committed, and its promises are made.

        Spark may have begun another one by then. It was not committed, so it is read again.
        """
        begun = last_begun(self.checkpoint)
        while begun is not None and self.query is not None and self.query.isActive:
            last = last_commit(self.checkpoint)
            if last is not None and last >= begun and not self._owes(last):
                break
            time.sleep(0.01)
        self.stop()

    def _owes(self, epoch: int) -> bool:
        """Return whether the promises of a batch that this run has seen committed have still to be made."""
        return epoch >= self.run.resume_epoch and (self._last_promised is None or epoch > self._last_promised)

    def abandon(self) -> None:
        super().abandon()
        if self.query is not None:
            threading.Thread(target=self.query.stop, name="tracking-stop", daemon=True).start()
