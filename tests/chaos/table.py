"""Outcome of a run: the table of faults injected and survived, and the file that a longer run goes on from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos.plan import KILLS, Shape
from tests.chaos.rounds import Outcome

_MIB = 1 << 20


def summary(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Count, by kind of fault, those injected, and those of them in rounds that were exact."""
    injected: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for outcome in outcomes:
        injected.update(outcome.injected)
        if not outcome.problems:
            survived.update(outcome.injected)
    return {kind: {"injected": injected[kind], "survived": survived[kind]} for kind in sorted(injected)}


def kills(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count the processes of each kind that were killed, whenever, and alone or with their children."""
    injected = summary(outcomes)
    return {
        kind: sum(numbers["injected"] for other, numbers in injected.items() if other.partition(",")[0] == kind)
        for kind in KILLS
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table for people, in Markdown."""
    rows = [f"| {kind} | {n['injected']} | {n['survived']} |" for kind, n in summary(outcomes).items()]
    exact = [outcome for outcome in outcomes if not outcome.problems]
    seeds = [outcome.shape.seed for outcome in outcomes]
    traits = Counter(trait for outcome in outcomes for trait in outcome.shape.traits)
    shapes = ", ".join(f"{number} {trait}" for trait, number in sorted(traits.items()))
    copies = sum(outcome.copies for outcome in outcomes)
    held = [outcome.memory for outcome in outcomes if all(outcome.memory)]
    lines = ["| fault | injected | survived |", "|---|---|---|", *rows, ""]
    lines.append(
        f"{len(exact)} of {len(outcomes)} rounds exact (of all: {shapes}), in "
        f"{sum(outcome.seconds for outcome in outcomes) / 60:.0f} minutes; seeds {min(seeds, default=0)} to "
        f"{max(seeds, default=0)}; {copies} records of Kafka's were copies"
    )
    if held:
        before, after = zip(*held, strict=True)
        lines.append(
            f"the tracker's memory before a round: {min(before) // _MIB} to {max(before) // _MIB} MiB, after it: "
            f"{min(after) // _MIB} to {max(after) // _MIB} MiB"
        )
    return "\n".join(lines)


def write(path: Path, command: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    """Write a run into a file, which `read` reads."""
    content = {
        "command": list(command),
        "faults": summary(outcomes),
        "rounds": [{**vars(outcome), "shape": asdict(outcome.shape)} for outcome in outcomes],
    }
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    whole.replace(path)


def read(path: Path) -> list[Outcome]:
    """Read a run from the file of `write`."""
    return [
        Outcome(
            Shape(**one["shape"]),
            Counter(one["injected"]),
            one["problems"],
            one.get("damage", []),
            one["seconds"],
            (one["memory"][0], one["memory"][1]),
            one["copies"],
        )
        for one in json.loads(path.read_text(encoding="utf-8"))["rounds"]
    ]
