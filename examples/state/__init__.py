"""Keyed state over time: how many rows it has, and whether the results are right, by what ends it."""
