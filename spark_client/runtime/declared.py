"""What a query was when it wrote its checkpoint: a query that has become another one must not go on from there.

State that was kept for one aggregation makes no sense to another, and Spark would not notice: it does not see into
what is done in `foreachBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark_client.errors import UsageError
from spark_client.storage.directories import read_json, write_json

ZONE: Final = "spark.sql.session.timeZone"  #: the aspect that says by which zone rows fall into substreams


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
        for aspect, added in _ADDED.items():
            if isinstance(known.get(aspect), dict):
                known[aspect] = {**added, **known[aspect]}
        shaping = () if kept else _SHAPES
        differences = [
            f"{aspect} was {known.get(aspect)}, is {value}"
            for aspect, value in now.items()
            if known.get(aspect) != value and aspect not in shaping
        ]
        if differences:
            if known.get(ZONE) != now.get(ZONE):
                differences.append(f"its rows fall into substreams by the session's time zone, so set {ZONE} back")
            if "aggregates" not in shaping and _alike(known.get("aggregates"), now.get("aggregates")):
                differences.append(
                    "the aggregates are the same, and another version of this package kept them otherwise: go back to "
                    "it for the drain"
                )
            holds = f" The state holds {kept} substreams, which would be abandoned." if kept else ""
            raise UsageError(
                f"the query has changed since its checkpoint {note.parent.parent} was written: "
                f"{'; '.join(differences)}.{holds} Drain the job before you change it, or start with a new job and new "
                "checkpoints"
            )
    if known != now:
        write_json(note, now)


_SHAPES = ("keys", "aggregates")
#: What notes of earlier versions lack, and what it was then.
_ADDED: Final[Mapping[str, Mapping[str, object]]] = {"substreams": {"time": "timestamp", "zone": None}}


def _alike(known: object, now: object) -> bool:
    """Whether aggregates differ in the form in which they are kept, and in nothing else."""
    if not isinstance(known, dict) or not isinstance(now, dict) or known == now:
        return False
    one, other = ({name: str(text).partition(" kept as ")[0] for name, text in each.items()} for each in (known, now))
    return one == other
