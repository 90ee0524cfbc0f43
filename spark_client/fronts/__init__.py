"""Fronts: `front.py` has what all of the package sees of one; each kind is a file, with all that is known of it."""
