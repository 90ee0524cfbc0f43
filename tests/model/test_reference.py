"""The model gives the answers and the events of every conformance vector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.model.lines import Driver, as_told
from tests.model.reference import ReferenceTracker

VECTORS = sorted((Path(__file__).parent.parent / "vectors").glob("*.jsonl"))


@pytest.mark.thorough
@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_the_model_agrees_with_the_vector(path: Path) -> None:
    driver = Driver(ReferenceTracker("log"))
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = json.loads(text)
        expect, events = driver.run(line)
        told = line["events"]
        assert (number, expect, as_told(events, told)) == (number, line["expect"], told)
