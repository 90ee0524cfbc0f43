"""Places for results, one file a kind, and the outputs of a query."""
