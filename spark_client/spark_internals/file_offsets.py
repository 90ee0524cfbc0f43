"""How the place of Spark's own source of files is told from the place of a source of this package.

Relies on ``FileStreamSourceOffset``, which Spark writes into a checkpoint as ``{"logOffset": N}``: so 0.1 left it, and
so it stays there. Fails open: another form would be taken for a place of this package. Since Spark 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

OF_FILES: Final = "logOffset"  #: the one field of such a place


def is_of_files(offset: Mapping[str, Any]) -> bool:
    """Return whether a place in a checkpoint is one of Spark's source of files.

    >>> is_of_files({"logOffset": 3}), is_of_files({"5f0c": 3})
    (True, False)
    """
    return set(offset) == {OF_FILES}
