"""Stores of files: directories, buckets, and what fsspec knows."""
