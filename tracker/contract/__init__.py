"""The values of the contract: requests, answers and events, declared once for core, server and client.

`commands` has the commands that a tracker takes, with the promises in them, and its answers. `events` has what it
announces, `status` how a job stands and what it waits for, and `refusal` why it did not carry a command out. They
count times and durations in nanoseconds; journals and snapshots are made of them, and properties give callers
`datetime` and `timedelta`. `values` has the enumerations and numbers that all of them use, and `bounds` how
large a number may be.

Everything here is a plain value: nothing does I/O, knows the time, or imports anything else of the tracker.
"""
