"""Experiments on what tracking costs: simulated dataflows, real tracker.

`traffic` repeats the experiments of the papers on substream management: how many messages, of how many bytes, until
how long after a substream is over, by punctuations and by a tracking agent. `dataflow` moves elements through a graph,
`reports` says when a machine speaks about them, `agent` puts what it says to the tracker's own core in the contract's
own messages, `relayed` does so through relays, `punctuations` does without an agent. `published` holds the papers'
figures; `cells` runs one configuration, `tables` and `plots` show the results. `sharded` has several trackers share one
job: a program of its own.

Nothing here is imported by the tracker or its clients.
"""
