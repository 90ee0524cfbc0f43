"""Queries while they run: their batches, how they start and stop, and drains."""
