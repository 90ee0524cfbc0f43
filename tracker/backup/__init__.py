"""Backups of a tracker: one file with the whole state, and the places where such files are kept."""
