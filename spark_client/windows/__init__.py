"""How rows fall into substreams: what a substream is, and a module for each kind of windows of time."""
