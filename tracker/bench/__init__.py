"""`tracker bench`: how fast the tracker is, beside floors measured in the same run.

It tells figures and judges none: machines are shared, so only what was measured together may be compared. It may
import the core, which nothing else around a client does, because that is one of the things it measures.
"""
