"""Places where rows go, one file a kind: files, tables, topics, functions, sinks, and channels to other queries."""
