"""Part of the standard library since Python 3.11, for Python 3.10, on which some executors still run.

It goes when 3.10 does. The server needs Python 3.11; clients, the Spark client among them, do not.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """An enumeration whose members are strings, and print as them."""

        def __str__(self) -> str:
            return str(self.value)


__all__ = ["StrEnum"]
