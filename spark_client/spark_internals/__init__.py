"""Internals of Spark: its plans, its checkpoints, its texts. No other room uses a private interface of Spark.

Each module states what it relies on, where in Spark that is, since which version, and how it fails where a release of
Spark has it otherwise: *closed*, so that nothing is taken for certain that is not known, at a price or with a refusal;
or *open*, so that it goes on without. `tests/spark_internals` has a test for each against a real Spark, and
``python -m scripts.test_matrix`` runs them on every release that is supported.

Other rooms rely on what Spark does, through public interfaces, and promises nowhere. The same tests hold Spark to it:

- texts of errors: an expression's ``raise_error`` and a task's exception are in the error that a query fails with
  (`windows.belonging`, `runtime.queries`), and so is why a length of time is refused (`windows.lengths`) and that
  there is no such source (`spark_internals.kafka`). Where they are not, a failure is shown as Spark words it;
- attempts: Spark collects the rows of successful ones only, and no two have one number (`counting.probes`). An
  attempt's number that came twice would be taken for the same work;
- ``noop`` reads all rows (`destinations.channel`). Where it did not, rows would be missing, and substreams stay open;
- a query's session is its own, and settings that a batch makes there hold (`runtime.batches`). Where they did not,
  there would be more and smaller files;
- keyed state: ``transformWithState`` keeps the key in hand while what its processor returns is read, and a batch that
  is repeated finds the state that it found before (`release.keyed`). Where it did not, state would be another key's, or
  have rows twice;
- progress: ``batchId``, ``observedMetrics``, ``numRowsDroppedByWatermark`` (`runtime.queries`). Where they are missing,
  the thread that follows the query ends it with an error;
- forms that outlive a release: Parquet with times of 96 bits (`counting.groups`), ``xxhash64`` in labels
  (`plan.labels`), sketches in a state (`aggregates.collections`). Where a hash came out otherwise, a replay under the
  new release would leave substreams open.
"""
