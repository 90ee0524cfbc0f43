"""Substream tracking: knows exactly when a substream of a streaming job has ended."""

__version__ = "0.2.0"
