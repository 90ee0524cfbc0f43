"""What is declared: fronts, aggregates, labels, and how files hold rows. Values and columns."""
