"""A year of real flights, released airport by airport and day by day: exact, and as soon as the day is over.

`python -m examples.flights.demo` runs it (`make demo`). To learn how a PySpark job is tracked, read `pipeline.py`; it
is the only file a job of your own would need. The others make the demonstration:

| module | what it is for |
|---|---|
| `pipeline` | the two tracked queries |
| `replay` | the departures of 2013 as files, in the order in which they really happened |
| `baseline` | the same aggregation on Spark's own watermark |
| `truth` | the same aggregation as a batch, and the comparison that finds every missing, doubled or changed window |
| `agent` | the tracker as a process: started, killed, restarted |
| `spark` | the local Spark session |
| `picture` | release delay of every window, tracker against watermark |
| `demo` | all of it together |
| `price` | what the tracking costs: the two queries with and without it |
"""
