"""`python -m benchmarks.exactness`: what comes out of event-time windows, held against a batch.

The same rows go through Spark with its own watermark, through Spark with the tracker, and through other engines that
can be had from the registries, each with the means that its documentation recommends. Every result is held against a
batch computation over all rows: which windows are wrong, which never came, which came twice, how many rows are missing,
and how long after it was complete each window came out.

| module | what it is for |
|---|---|
| `nexmark` | events by the published rules of the Nexmark generator |
| `workload` | when they arrive: sites, partitions, outages, steps |
| `queries` | the four queries, and what a batch makes of them |
| `judge` | results against the truth |
| `engine` | what an engine is here |
| `stepwise`, `watermarks`, `tracked` | Spark, step by step; with its own watermark; with the tracker |
| `peers` | other engines: each runs a program of `programs` in an environment of its own |
| `faults`, `drains`, `replays` | what others' bug reports describe: as workloads, a drain, a kill |
| `flights` | rows of the table from the year of flights |
| `report` | the table, as text, as JSON and in the documentation |
"""
