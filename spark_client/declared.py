"""What a query was when it wrote its checkpoint: a query that has become another one must not go on from there.

State that was kept for one aggregation makes no sense to another, and Spark would not notice: it does not see into
what is done in `foreachBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_client.directories import read_json, write_json
from spark_client.errors import UsageError


def check(note: Path, now: Mapping[str, object], kept: int) -> None:
    """Compares a query with what its checkpoint says it was, and writes down what it is.

    Args:
        note: a file in its checkpoint.
        now: what it is, by aspect: plain data.
        kept: how many substreams its state holds; aspects that only shape the state may change while it holds none.

    Raises:
        UsageError: it differs; every difference is named.
    """
    known = read_json(note)
    if known is not None:
        shaping = () if kept else _SHAPES
        differences = [
            f"{aspect} was {known.get(aspect)}, is {value}"
            for aspect, value in now.items()
            if known.get(aspect) != value and aspect not in shaping
        ]
        if differences:
            holds = f" The state holds {kept} substreams, which would be abandoned." if kept else ""
            raise UsageError(
                f"the query has changed since its checkpoint {note.parent.parent} was written: "
                f"{'; '.join(differences)}.{holds} Drain the job before you change it, or start with a new job and new "
                "checkpoints"
            )
    if known != now:
        write_json(note, now)


_SHAPES = ("keys", "aggregates")
