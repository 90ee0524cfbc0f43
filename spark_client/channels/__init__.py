"""Channels between queries, one file a kind, and what they share."""
