"""Each cell of the table by which a tracker finds out whether its log has lost records."""

from __future__ import annotations

import pytest

from tracker.journal.redis.log import Known, Relation, Top, compare

KNOWN = Known(term=3, number=30, owner="a")


def shown(
    term: int = 0,
    number: int = 0,
    owner: str = "",
    next_base: int | None = None,
    has_log: bool = True,
    accepted: tuple[int, int] = (0, 0),
) -> Top:
    """Return the end of a log; `next_base` is the record after which the next term began."""
    return Top(f"{term}-{number}", number, 0, owner, "-".join(map(str, accepted)), has_log, next_base)


@pytest.mark.parametrize(
    ("known", "top", "relation", "base"),
    [
        pytest.param(Known(), shown(), Relation.SAME, 0, id="nothing known, nothing there"),
        pytest.param(Known(), shown(4, 9), Relation.CONTINUES, 0, id="nothing known, records there"),
        pytest.param(KNOWN, shown(3, 30, "a"), Relation.SAME, 0, id="same term, same record"),
        pytest.param(KNOWN, shown(3, 31, "a"), Relation.CONTINUES, 0, id="same term, more records"),
        pytest.param(KNOWN, shown(3, 30), Relation.SAME, 0, id="same term, owner not shown"),
        pytest.param(KNOWN, shown(3, 10, "a"), Relation.LOST, 10, id="same term, fewer records"),
        pytest.param(KNOWN, shown(3, 40, "b"), Relation.LOST, 0, id="same term, begun by another owner"),
        pytest.param(KNOWN, shown(3, 30, "a", has_log=False), Relation.LOST, 0, id="same term, no log"),
        pytest.param(KNOWN, shown(4, 30, "b", 30), Relation.REPLACED, 0, id="later term, from the record on"),
        pytest.param(KNOWN, shown(5, 40, "b", 35), Relation.REPLACED, 0, id="later term, more records"),
        pytest.param(KNOWN, shown(4, 40, "b", 29), Relation.LOST, 29, id="later term, began too early"),
        pytest.param(KNOWN, shown(9, 0, "b", None), Relation.REPLACED, 0, id="later term, beginning not kept"),
        pytest.param(KNOWN, shown(5, 0, "", None, False), Relation.REPLACED, 0, id="later term, moved out of the way"),
        pytest.param(KNOWN, shown(2, 30, "b"), Relation.LOST, 29, id="earlier term, as many records"),
        pytest.param(KNOWN, shown(2, 10, "b"), Relation.LOST, 10, id="earlier term, fewer records"),
        pytest.param(KNOWN, shown(2, 99, "b"), Relation.LOST, 29, id="earlier term, more records"),
        pytest.param(KNOWN, shown(), Relation.LOST, 0, id="empty"),
        pytest.param(KNOWN, shown(0, 0, "", None, False), Relation.LOST, 0, id="empty, no log"),
        pytest.param(KNOWN, shown(4, 12, "b", 10, accepted=(4, 30)), Relation.REPLACED, 0, id="the loss was accepted"),
        pytest.param(
            KNOWN, shown(4, 12, "b", 10, accepted=(4, 29)), Relation.LOST, 10, id="a smaller loss was accepted"
        ),
        pytest.param(KNOWN, shown(3, 10, "a", accepted=(3, 30)), Relation.LOST, 10, id="accepted before this term"),
        pytest.param(Known(3, 0, "a"), shown(), Relation.REPLACED, 0, id="no record known, empty"),
        pytest.param(Known(3, 0, "a"), shown(4, 0, "b", 0), Relation.REPLACED, 0, id="no record known, later term"),
        pytest.param(Known(3, 0, "a"), shown(3, 0, "a"), Relation.SAME, 0, id="no record known, same term"),
    ],
)
def test_what_is_known_against_what_is_shown(known: Known, top: Top, relation: Relation, base: int) -> None:
    assert compare(known, top) == (relation, base)
