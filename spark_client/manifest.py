"""The manifest of a sealed batch: whose reports the engine has kept.

Each attempt of a task reports under a name of its own, and says so in an accumulator. Spark adds up those of successful
attempts only, so what is in it when the batch's work is done is what counts: one attempt a partition, the last one to
succeed, as a stage that is run again replaces what it gave before.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import Accumulator, AccumulatorParam, SparkContext

Units = dict[str, str]  #: by probe and partition: the unit that an attempt has reported


class _Latest(AccumulatorParam[Units]):
    def zero(self, value: Units) -> Units:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: Units, value2: Mapping[str, str]) -> Units:  # noqa: N802
        return {**value1, **value2}


class Manifest:
    """Collects the units of one query's batches, one batch after the other.

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

    @property
    def units(self) -> list[str]:
        """What has been kept since."""
        return sorted(self.kept.value.values())
