"""What Spark does not promise and spark_client relies on: each reliance, against the Spark that is installed.

A test here fails when a release of Spark does otherwise, and `scripts.test_matrix` runs all of them on every release
that is supported. What relies on it is in `spark_client/spark_internals`, or named in the test.
"""
