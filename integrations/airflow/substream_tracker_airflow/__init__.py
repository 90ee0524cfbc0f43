"""Airflow waits for substreams of a streaming job.

Sensors that give their slot back while they wait are in `sensors`, and the connection type in `hook`.
"""
