"""`python -m scripts.dashboards [--check]`: writes the dashboards, or prints which of them is not what the code gives.

Exit status: 0 written, or all are up to date; 1 one is not.
"""

from __future__ import annotations

import argparse
import sys

from .written import DIRECTORY, written


def main() -> int:
    """Write the dashboards, or compare them with the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; list what is not up to date")
    arguments = parser.parse_args()
    status = 0
    for name, text in written().items():
        path = DIRECTORY / name
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not up to date: python -m scripts.dashboards", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
