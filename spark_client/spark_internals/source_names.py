"""What a source written in Python is called, so that Spark takes the name for one.

Relies on what Spark does with the name that ``format(…)`` is given (``DataSource.lookupDataSource``): one with signs
such as ``.`` or ``/`` it may take for a class, a package or a path. Spark 4.0.5 and 4.3.0 take any name that is
registered, and nothing promises it. Fails closed: under a name that Spark takes for something else, the query does not
start. Since Spark 4.0.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

#: What Spark takes for a name and nothing else.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def source_name(kind: str, name: str) -> str:
    """Return the name to register a source under: plain, whatever the source is about.

    Args:
        kind: what the names of all such sources begin with; plain itself.
        name: tells them apart.

    >>> source_name("tracker-epochs", "clean")
    'tracker-epochs-clean'
    >>> len(source_name("tracker-epochs", "a/b.c"))
    79
    """
    plain = _PLAIN.fullmatch(name)
    return f"{kind}-{name if plain else hashlib.sha256(name.encode()).hexdigest()}"
