"""Chaos: a job of real queries, real executors and a real tracker, in which anything is killed at any time.

``python -m tests.chaos --rounds 3 --seed 1`` plays rounds and prints what was injected and survived. A round is exact
when everything that was released equals a batch computation over all rows that were fed, and nothing is left over.
"""
