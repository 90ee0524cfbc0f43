"""Shadow mode: what a job on Spark's watermark has lost, beside what really ended; the job is only read."""
