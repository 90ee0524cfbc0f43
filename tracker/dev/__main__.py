"""Entry point of `python -m tracker.dev`, which runs `tracker dev` without options."""

from tracker.dev import dev

if __name__ == "__main__":
    dev()
