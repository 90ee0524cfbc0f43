"""Declarations: sources, streams, labels, and how files hold rows. Values and columns."""
