"""What is declared: substreams, fronts, aggregates, labels, and how files hold rows. Values and columns."""
