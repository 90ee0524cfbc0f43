"""What Spark reads of the tracker: the source ``tracker`` and the exact watermark."""
