"""`tracker dev`: a tracker with its status page and an example job, to look around in the first five minutes."""
