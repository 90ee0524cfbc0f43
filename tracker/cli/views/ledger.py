"""How the ledger's lines are shown."""

from __future__ import annotations

from tracker.cli.tables import Column
from tracker.client.ledger import Entry
from tracker.client.texts import time_text


def columns(by_segment: bool) -> list[Column[Entry]]:
    """Return the columns of the ledger.

    Args:
        by_segment: whether there are lines of single segments.
    """
    at_segments: list[Column[Entry]] = [
        Column("SEGMENT", lambda line: "all" if line.segment is None else line.segment),
    ]
    passed_on: list[Column[Entry]] = [Column("PASSED ON", lambda line: line.passed_on)]
    return [
        Column("JOB", lambda line: line.key.job, wide=True),
        Column("SCOPE", lambda line: line.key.scope),
        Column("NAME", lambda line: line.key.name),
        Column("END TIME", lambda line: time_text(line.end_time), wide=True),
        Column("FROM", lambda line: line.origins, wide=True),
        *(at_segments if by_segment else []),
        Column("SENT", lambda line: line.sent),
        Column("RELEASED", lambda line: line.released),
        Column("FILTERED", lambda line: line.filtered),
        Column("LATE", lambda line: line.late),
        Column("GIVEN UP", lambda line: line.given_up),
        Column("QUARANTINED", lambda line: line.quarantined),
        *(passed_on if by_segment else []),
        Column("MISSING", lambda line: line.missing, style=lambda line: "red" if line.missing or line.wrong else ""),
    ]
