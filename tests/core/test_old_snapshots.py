"""States that release 0.1 had dumped are read: half of a vector is carried out by it, the other half here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.lines import Driver, as_told
from tracker.core import Tracker
from tracker.journal.snapshots import decode

VECTORS = Path(__file__).parent.parent / "vectors"
STATES: dict[str, Any] = decode(gzip.decompress((Path(__file__).parent / "states-0.1.gz").read_bytes()))


@pytest.mark.parametrize("name", [name for name in STATES if name.isdecimal()])
def test_a_vector_goes_on_from_a_state_of_release_0_1(name: str) -> None:
    known = STATES[name]
    lines = [json.loads(line) for line in (VECTORS / f"{name}.jsonl").read_text().splitlines()]
    driver = Driver(Tracker.load(known["state"]))
    driver.now = known["now"]
    driver._seq = sum(len(line["events"]) for line in lines[: known["lines"]])
    for line in lines[known["lines"] :]:
        expect, events = driver.run(line)
        assert (expect, as_told(events, line["events"])) == (line["expect"], line["events"])


def test_a_job_of_many_segments_comes_to_its_sparse_layout() -> None:
    tracker = Tracker.load(STATES["many segments"]["state"])
    listed, _ = tracker.view("job").substreams(include_ended=True)
    by_name = {substream.name: substream for substream in listed}
    assert [(s.segment, s.sent, s.received) for s in by_name["open"].segments if s.sent] == [
        ("s03", 1, 0),
        ("s29", 2, 2),
    ]
    assert [s.segment for s in by_name["part"].segments if not s.ended] == ["s29"]
    assert all(s.ended for s in by_name["over"].segments)
    assert tracker.view("job").counts().cells == 4 * 8
