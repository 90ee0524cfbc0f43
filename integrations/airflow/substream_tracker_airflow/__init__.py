"""Airflow waits for substreams of a streaming job, and their ends start DAGs.

Sensors that give their slot back while they wait are in `sensors`, the trigger of an `AssetWatcher` is in `watching`,
keys and rollups of an asset's partitions are in `partitions`, and the connection type is in `hook`.
"""
