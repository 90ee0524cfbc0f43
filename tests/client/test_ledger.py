"""The arithmetic of the ledger, on receipts that are written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tracker.client.ledger import NEEDED, Aside, Key, ledger_of

A, B = Key("shop", "berlin", "monday"), Key("shop", "berlin", "sunday")
COUNTS = ("sent", "released", "filtered", "late", "given_up", "quarantined", "missing")


def receipt(segment: str, elements: int, seq: int, **fields: Any) -> dict[str, Any]:
    """Return a receipt in which nothing is lost; what is not given is as in one of an earlier version."""
    own = {"job": "shop", "deployment": "d1", "segment": segment, "scope": "berlin", "name": "monday", "revision": 0}
    counts = {"elements": elements, "rows": elements, "in_flight": 0, "late": 0, "bad": 0, "before": 0, "seq": seq}
    return dict.fromkeys(NEEDED) | own | counts | {"query": f"q-{segment}", "reason": "COMPLETE"} | fields


def through(segment: str, elements: int, seq: int, entered: int, **fields: Any) -> dict[str, Any]:
    """Return a receipt of what came from the source ``in``."""
    upstream = json.dumps({"in": entered, "retry": 7})
    return receipt(segment, elements, seq, origins='["in"]', upstream=upstream, **fields)


def total(*receipts: dict[str, Any], asides: tuple[Aside, ...] = ()) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the counts of the only substream, and what is wrong; each line is the sum of its parts."""
    ((first, *others),) = ledger_of(receipts, asides)
    for line in (first, *others):
        assert line.sent == sum(getattr(line, name) for name in COUNTS[1:]) + line.passed_on
    assert bool(first.missing) <= bool(first.wrong)
    return tuple(getattr(first, name) for name in COUNTS), first.wrong


def test_rows_on_all_ways_add_up() -> None:
    clean = through("clean", 90, 2, 100, kept=85, late=3)
    given_up = through("given_up", 4, 3, 100, kept=4, given_up=True)
    late = Aside(A, "clean", "late", 8)  # three of them when it ended, as the receipt has it
    again = through("clean", 6, 4, 0, revision=1, kept=5)
    empty = receipt("given_up", 0, 5, name="monday#r1", origins='["in"]', upstream="{}")
    doubled = Aside(A, "in", "doubled", 1)
    found, wrong = total(clean, given_up, again, empty, asides=(late, doubled))
    assert found == (108, 90, 11, 2, 4, 1, 0)
    assert not wrong


def test_a_substream_of_late_rows_alone_has_its_lines() -> None:
    lines = {line.key: line for line, *_ in ledger_of([receipt("in", 5, 1)], [Aside(B, "in", "late", 2)])}
    assert (lines[A].sent, lines[A].late, lines[B].sent, lines[B].late) == (5, 0, 2, 2)


def test_an_old_receipt_counts_what_was_received_as_released() -> None:
    assert total(receipt("in", 5, 1)) == ((5, 5, 0, 0, 0, 0, 0), ())


@pytest.mark.parametrize(
    ("receipts", "missing", "wrong"),
    [
        ([receipt("in", 5, 1, rows=3)], 2, "segment 'in': 2 missing: 5 were sent, 3 were received"),
        ([receipt("in", 5, 1)] * 2, -5, "segment 'in': 5 too many: 5 were sent, 10 were received"),
        (
            [receipt("in", 5, 1, rows=4, in_flight=1, reason="ABANDONED")],
            1,
            "segment 'in': 1 missing: 5 were sent, 4 were received; it has ended as ABANDONED",
        ),
        ([receipt("in", 5, 1, expected=7)], 2, "segment 'in': 2 missing: 7 were announced, 5 were sent"),
        ([receipt("in", 5, 1, expected=4)], -1, "segment 'in': 1 too many: 4 were announced, 5 were sent"),
        (
            [receipt("in", 5, 9, before=3, deployment="d2", expected=8)],
            3,
            "segment 'in': 3 missing: earlier deployments released more than their receipts have",
        ),
        (
            [through("clean", 5, 1, 9, upstream_in_flight=2)],
            2,
            "segment 'in': 2 missing: they were in flight on the way to releases when it ended",
        ),
    ],
)
def test_what_is_missing_or_too_many_is_named(receipts: list[dict[str, Any]], missing: int, wrong: str) -> None:
    counts, named = total(*receipts)
    assert (counts[-1], named) == (missing, (wrong,))


def test_given_up_elements_that_came_late_are_not_missing() -> None:
    given_up = receipt("in", 5, 1, rows=3, in_flight=2, reason="ABANDONED")
    assert total(given_up, asides=(Aside(A, "in", "late", 2),)) == ((5, 3, 0, 2, 0, 0, 0), ())


@pytest.mark.parametrize("how", [{"by_drain": True}, {"reason": "DEADLINE"}], ids=["drain", "rule"])
def test_what_was_released_early_is_summed_over_deployments(how: dict[str, Any]) -> None:
    early, rest = receipt("in", 3, 1, expected=8, **how), receipt("in", 5, 9, before=3, deployment="d2", expected=8)
    assert total(early, rest) == ((8, 8, 0, 0, 0, 0, 0), ())


def test_a_missing_receipt_is_named_with_what_is_not_accounted_for() -> None:
    other = through("given_up", 0, 4, 50, name="tuesday", given_up=True)
    lines = {its[0].key.name: its[0] for its in ledger_of([through("clean", 90, 2, 100), other], ())}
    assert (lines["monday"].missing, lines["tuesday"].missing) == (10, 50)
    assert "segment 'given_up': it has no receipt: it has not ended there, or one is lost" in lines["monday"].wrong


def test_rows_of_no_substream_are_a_line_of_their_own() -> None:
    asides = [Aside(Key("shop", None, None), "in", "bad", 2), Aside(Key("shop", None, None), "in", "bad", 3)]
    bad, *_ = [its[0] for its in ledger_of([receipt("in", 5, 1, bad=4)], asides) if its[0].key.scope is None]
    assert (bad.origins, bad.sent, bad.quarantined) == (("in",), 5, 5)


def test_receipts_as_json_are_read_and_the_exit_status_is_their_sum(tmp_path: Path) -> None:
    shell = Shell("127.0.0.1:1")  # no tracker is asked
    rows = [receipt("in", 5, 1, end_time="2026-03-01T00:00:00Z"), receipt("in", 4, 2, name="tuesday", rows=3)]
    (tmp_path / "receipts.json").write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    assert shell("ledger", str(tmp_path)).endswith("1 substream: the receipts add up\n")
    (tmp_path / "more.jsonl").write_text(json.dumps(rows[1]))
    (tmp_path / "_hidden.json").write_text("not a receipt")
    shell("ledger", str(tmp_path), status=1)
    for misspelt in (["--scope", "lima"], ["--job", "shops"], ["--job", "shop", "--scope", "lima"]):
        said = shell("ledger", str(tmp_path), *misspelt, status=2)
        assert f"no receipt of {'job' if '--job' in misspelt else 'scopes'} '" in said
    (tmp_path / "more.jsonl").write_text("null")
    assert "more.jsonl, line 1 is not a receipt: it is no object of JSON" in shell("ledger", str(tmp_path), status=2)
    (tmp_path / "more.jsonl").write_text('{"job": "shop"}')
    assert "more.jsonl, line 1 is not a receipt: it has no 'segment'" in shell("ledger", str(tmp_path), status=2)


@pytest.mark.parametrize("odd", ["a\u2028b", "a\u0085b", "a\rb", "a\vb"])
def test_names_with_any_character_are_in_one_line(tmp_path: Path, odd: str) -> None:
    rows = [receipt("in", 5, 1, scope=odd), receipt("in", 5, 2)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (tmp_path / "receipts.json").write_text(lines, newline="")
    assert Shell("127.0.0.1:1")("ledger", str(tmp_path)).endswith("2 substreams: the receipts add up\n")
