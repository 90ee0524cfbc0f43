"""Releases: state, events, results, and what comes late; each result once."""
