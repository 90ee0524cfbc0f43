"""Whole trackers in one process: journals, standbys, recoveries, backups and clients, simulated on a virtual clock.

`schedule` runs every thread one at a time, as a seed draws it, and can end a process wherever it waits. `stores` and
`files` hold the stores that delay, fail, and lose what they had. `program` is a tracker, `clients` and `operating` use
it, `judging` has what no answer may contradict, and `world` all of it together.
"""
