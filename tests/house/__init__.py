"""The layout of the code: which part may know of which."""
