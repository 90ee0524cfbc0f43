"""The manifest of a sealed batch: whose reports the engine has kept.

Each attempt of a task reports under a name of its own, and says so in an accumulator. Spark adds up those of successful
attempts only, so what is in it when the batch's work is done is what counts: one attempt a partition, the last one to
succeed, as a stage that is run again replaces what it gave before.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import Accumulator, AccumulatorParam, SparkContext

Kept = tuple[int, tuple[str, ...]]  #: an attempt, and the units that it has reported
Units = dict[str, Kept]  #: by probe and partition


class _Latest(AccumulatorParam[Units]):
    def zero(self, value: Units) -> Units:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: Units, value2: Mapping[str, Kept]) -> Units:  # noqa: N802
        merged = dict(value1)
        for place, (attempt, units) in value2.items():
            before, reported = merged.get(place, (attempt, ()))
            # A task can have several partitions, and give its own number to those without rows.
            merged[place] = (attempt, (*reported, *units) if before == attempt else units)
        return merged


class Manifest:
    """Collects the units of one query's batches, one batch after the other.

    A query that does not seal uses it to find out whether all partitions of a batch have been read.

    >>> manifest = Manifest(spark.sparkContext)                                           # doctest: +SKIP
    >>> manifest.begin()                                                                  # doctest: +SKIP
    >>> manifest.units                                                                    # doctest: +SKIP
    ['received:clean/0#17', 'received:clean/1#18']
    """

    def __init__(self, context: SparkContext) -> None:
        self.kept: Accumulator[Units] = context.accumulator({}, _Latest())  #: for the tasks, which only add to it

    def begin(self) -> None:
        """Another batch begins: what the last one has left is forgotten."""
        self.kept.value = {}

    def has(self, place: str, partitions: int) -> bool:
        """Return whether all partitions of a probe are in it.

        Args:
            place: the probe's.
            partitions: how many there are.
        """
        kept = self.kept.value
        return all(f"{place}/{partition}" in kept for partition in range(partitions))

    @property
    def units(self) -> list[str]:
        """What has been kept since."""
        return sorted(unit for _, units in self.kept.value.values() for unit in set(units))
