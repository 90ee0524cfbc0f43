"""`python -m tracker.dev`: the same as `tracker dev`, without options."""

from tracker.dev import dev

if __name__ == "__main__":
    dev()
