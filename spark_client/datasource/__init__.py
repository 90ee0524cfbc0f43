"""Data for Spark from the tracker: the source ``tracker`` and the exact watermark."""
