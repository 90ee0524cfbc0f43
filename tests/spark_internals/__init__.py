"""Reliances of spark_client on what Spark does not promise, each against the Spark that is installed.

A test here fails when a release of Spark does otherwise, and `scripts.test_matrix` runs all of them on every release
that is supported. The relying code is in `spark_client/spark_internals`, or named in the test.
"""
