"""How the code is laid out: which part may know of which."""
