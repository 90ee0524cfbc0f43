"""A year of real flights, released airport by airport and day by day: exact, and as soon as the day is over.

`python -m examples.flights.demo` runs it (`make demo`); `python -m examples.flights.delays` shows how soon results come
out (`make demo-delays`). To learn how a PySpark job is tracked, read `pipeline.py`; it
is the only file a job of your own would need. The others make the demonstration:

| module | what it is for |
|---|---|
| `pipeline` | the two tracked queries |
| `replay` | the departures of 2013 as files, in the order in which they really happened |
| `truth` | the same aggregation as a batch, and the comparison that finds every missing, doubled or changed window |
| `agent` | the tracker as a process: started, killed, restarted |
| `spark` | the local Spark session |
| `tracked`, `baseline` | who reads the replay: the pipeline, and Spark's own watermark behind its first query |
| `outcome`, `picture` | what each of them released and when, as a table and as a picture |
| `progress` | the line that says how far the replay is |
| `demo` | all of it together: a year, in steps of 61 hours |
| `dry_run` | which promise would have been right for the year: no Spark, no tracker |
| `delays` | the same for two weeks in steps of one hour, with every release timed |

`benchmarks.spark` measures the cost of tracking.
"""
