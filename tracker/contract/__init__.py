"""The values of the contract: what a tracker is asked and what it answers, declared once for core, server and client.

`commands` and the `promises` in them are what a tracker can be told, `answers` what it answers, `events` what it
announces, `status` what can be asked about a job, `refusal` why a command was not carried out. They count times and
durations in nanoseconds and are what a journal and a snapshot are made of. `callers` has the values whose form for
programs is another: moments and lengths of time as `datetime` and `timedelta`. `values` has the enumerations and
numbers that all of them use, and `bounds` how large a number may be.

Everything here is a plain value: nothing does I/O, knows the time, or imports anything else of the tracker.
"""
