"""`python -m tracker.dev`: the same as `tracker dev`, without options."""

from tracker.dev.run import dev

if __name__ == "__main__":
    dev()
