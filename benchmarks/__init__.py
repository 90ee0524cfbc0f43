"""`python -m benchmarks`: how fast the tracker is on this machine, beside floors measured in the same run.

It prints figures and judges none: machines are shared, so only what was measured together may be compared. It measures
this repository and is not shipped; what a user's own tracker bears, `tracker load` finds out. `benchmarks.spark` is a
program of its own: Spark with tracking against Spark without.
"""
