"""The table of what was injected and survived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.chaos.rounds import Outcome


def summary(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """By kind of fault: how many were injected, and how many of them in rounds that were exact."""
    injected: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for outcome in outcomes:
        injected.update(outcome.injected)
        if not outcome.problems:
            survived.update(outcome.injected)
    return {kind: {"injected": injected[kind], "survived": survived[kind]} for kind in sorted(injected)}


def table(outcomes: Sequence[Outcome]) -> str:
    """For people, in Markdown."""
    rows = [f"| {kind} | {n['injected']} | {n['survived']} |" for kind, n in summary(outcomes).items()]
    exact = [outcome for outcome in outcomes if not outcome.problems]
    seeds = ", ".join(str(outcome.shape.seed) for outcome in outcomes)
    traits = ("seal", "audit", "splits", "drains")
    shapes = ", ".join(f"{sum(getattr(o.shape, trait) for o in outcomes)} {trait}" for trait in traits)
    return "\n".join(
        [
            "| fault | injected | survived |",
            "|---|---|---|",
            *rows,
            "",
            f"{len(exact)} of {len(outcomes)} rounds exact (of all: {shapes}), in "
            f"{sum(outcome.seconds for outcome in outcomes) / 60:.0f} minutes; seeds {seeds}",
        ]
    )
