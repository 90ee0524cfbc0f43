"""Judges a history: what clients saw must be what one tracker could have told them, one command after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.checker.finding import Finding
from tests.checker.history import Operation
from tests.checker.jobs import JobHistory


@dataclass
class Verdict:
    """Outcome of judging a history.

    Args:
        findings: what must not be; empty: nothing is wrong.
        figures: what was done, for people.
    """

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    def shown(self) -> str:
        """Return the verdict for people."""
        lines = [f"{name}: {value}" for name, value in self.figures.items()]
        kinds = Counter(finding.kind for finding in self.findings)
        for kind, count in kinds.items():
            first = next(finding for finding in self.findings if finding.kind == kind)
            lines += [f"FOUND {kind} ({count}): {first.text}", *(f"    {each.shown()}" for each in first.operations)]
        return "\n".join(lines if kinds else [*lines, "nothing is wrong"])


def judge(operations: Sequence[Operation], stuck: Sequence[str] = ()) -> Verdict:
    """Judge a history.

    Args:
        operations: of all clients and of the nemesis.
        stuck: clients that had not come to an end when the run was given up.
    """
    verdict = Verdict()
    verdict.findings += [Finding("stuck", f"{who} could not end its work after all faults were over") for who in stuck]
    faults = [each for each in operations if each.kind == "fault"]
    losses = [each for each in faults if each.answer.get("lost")]
    by_job: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.job:
            by_job[operation.job].append(operation)
    accepted = [each.began for each in faults if each.asked.get("accepts_loss")]
    for job, of_job in by_job.items():
        verdict.findings += JobHistory(job, of_job, losses).findings()
        verdict.findings += unaccepted(job, of_job, accepted)
    verdict.findings += two_leaders(operations)
    verdict.figures = _figures(operations, faults, len(by_job))
    return verdict


def unaccepted(job: str, operations: Sequence[Operation], accepted: Sequence[float]) -> list[Finding]:
    """Find a log that has got another id, or is gone in the end, while no operator has accepted a loss."""
    first: dict[str, Operation] = {}
    for operation in sorted(operations, key=lambda op: op.began):
        if operation.outcome == "ok" and (operation.answer.get("log_id") or operation.kind == "final"):
            first.setdefault(operation.answer["log_id"], operation)
    text = f"the log of {job} has another id, or is gone, and nobody has accepted a loss"
    return [
        Finding("a loss that nobody accepted", text, (before, after))
        for before, after in pairwise(first.values())
        if not any(before.began <= at <= (after.ended or 0) for at in accepted)
    ]


def two_leaders(operations: Sequence[Operation]) -> list[Finding]:
    """Find a process that answers a call which began after another process, of a later term, had answered one."""
    answered: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.by and operation.outcome == "ok" and operation.ended is not None:
            answered[operation.by].append(operation)
    firsts = {by: min(each, key=lambda op: op.ended or 0) for by, each in answered.items()}
    terms = sorted(firsts, key=lambda by: firsts[by].ended or 0)
    found = []
    for earlier, later in pairwise(terms):
        first = firsts[later]
        for operation in answered[earlier]:
            if operation.began > (first.ended or 0):
                text = f"process {earlier} still answers, after process {later} has answered"
                found.append(Finding("two leaders", text, (first, operation)))
    return found


def _figures(operations: Sequence[Operation], faults: Sequence[Operation], jobs: int) -> dict[str, object]:
    calls = [each for each in operations if each.kind not in ("fault", "epoch", "final", "event")]
    commits = sorted(
        each.ended for each in calls if each.kind == "commit" and each.outcome == "ok" and each.ended is not None
    )
    return {
        "jobs": jobs,
        "calls": dict(Counter(each.outcome for each in calls)),
        "commits": len(commits),
        "events watched": sum(each.kind == "event" for each in operations),
        "leaders": len({each.by for each in operations if each.by}),
        "faults": dict(Counter(str(each.asked["fault"]) for each in faults if each.client == "nemesis")),
        "longest time without a commit": f"{max((b - a for a, b in pairwise(commits)), default=0):.2f} s",
    }
