"""Labels are a function of the lineage and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tracker.client import label


def test_the_same_lineage_gives_the_same_label_in_every_process() -> None:
    code = "from tracker.client import label; print(label('orders', 0, 4711, None, 1.5, b'x', True, seed=7))"
    labels = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert labels == {f"{label('orders', 0, 4711, None, 1.5, b'x', True, seed=7)}\n"}


def test_labels_stay_what_they_are_from_release_to_release() -> None:
    assert label("orders", 0, 4711) == 2573929117926561014


def test_lineages_that_differ_in_anything_differ_in_their_label() -> None:
    lineages: list[tuple[object, ...]] = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (1,),
        ("1",),
        (b"1",),
        (True,),
        (1.0,),
        (None,),
        ("",),
        (None, None),
        (-1,),
    ]
    labels = [label(*lineage) for lineage in lineages]  # type: ignore[arg-type]
    assert len(set(labels)) == len(lineages)
    assert all(0 <= number < 2**64 for number in labels)


def test_what_has_no_lasting_form_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be made of list"):
        label(["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a lineage"):
        label()
