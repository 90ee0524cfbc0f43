"""docs/contract.md against the code: every reason for which a command is refused, with its status and meaning."""

from __future__ import annotations

import re
from pathlib import Path

from spark_client.advice import _ADVICE
from tracker.contract.refusal import Refusal

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def test_the_table_of_refusals_is_the_enumeration() -> None:
    table = PAGE.read_text().partition("## Refusals")[2].partition("## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert [(reason, code, meaning.replace("`", "")) for reason, code, meaning in rows] == [
        (each.value, each.code, each.meaning) for each in Refusal
    ]


def test_advice_is_of_reasons_that_there_are() -> None:
    assert all(isinstance(reason, Refusal) for reason in _ADVICE)
