"""A Dagster sensor that requests a run for each substream that has ended: `sensor.substream_sensor`."""
