"""`tracker explain`: why one substream has not ended, and who could change that.

Everything it says follows from how the job and the substream stand at the moment it asks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from tracker.cli import asking
from tracker.cli.output import print_json, text
from tracker.client import FrontStatus, JobStatus, ProducerStatus, SegmentStatus, SubstreamStatus

_UNKNOWN = 1


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    explain = commands.add_parser(
        "explain",
        parents=[asking.options()],
        help="say why a substream has not ended",
        description="Say why a substream has not ended: what is in flight on which segment and whose reports were the "
        "last, which fronts it waits for, and what is reported but not committed.",
        epilog="example: tracker explain flights JFK 2013-01-01T00:00:00Z/2013-01-02T00:00:00Z",
    )
    explain.add_argument("job", metavar="JOB")
    explain.add_argument("scope", metavar="SCOPE", help="may be empty: ''")
    explain.add_argument("name", metavar="NAME")
    explain.set_defaults(run=explain_substream)


def explain_substream(arguments: argparse.Namespace) -> int:
    with asking.client(arguments) as client:
        job = client.job(arguments.job)
        in_scope = client.substreams(arguments.job, scopes=[arguments.scope], include_ended=True)
        substream = next((found for found in in_scope if found.name == arguments.name), None)
    if substream is None:
        print(
            f"tracker: {arguments.job} has no substream {arguments.name!r} in scope {arguments.scope!r}: nothing was "
            f"reported of it, or it ended more than {text(job.spec.retention)} ago. `tracker substreams "
            f"{arguments.job} --ended` lists what there is",
            file=sys.stderr,
        )
        return _UNKNOWN
    reasons = list(why_open(job, substream))
    if arguments.json:
        print_json({"substream": substream, "ended": not reasons, "reasons": reasons}, indent=2)
        return 0
    print(f"{substream.name} of scope {substream.scope!r}: {'has not ended' if reasons else 'has ended'}")
    for reason in reasons:
        print(f"- {reason}")
    print(f"first known {text(substream.created)}, last changed {text(substream.changed)}")
    if substream.late_reports:
        print(f"{substream.late_reports} reports came after its end: `tracker watch` shows them as Late")
    return 0


def why_open(job: JobStatus, substream: SubstreamStatus) -> Iterator[str]:
    """What stands between a substream and its end; nothing: it has ended.

    Args:
        job: as it stands.
        substream: of the job, as it stands at the same time.
    """
    running = [segment for segment in substream.segments if not segment.ended]
    if substream.segments and not running:
        return
    fronts = {front.front: front for front in job.fronts}
    involved = {front.producer for name in substream.waiting_for if (front := fronts.get(name)) is not None}
    yield from (_front(name, fronts.get(name), substream) for name in substream.waiting_for)
    for segment in running:
        involved |= {segment.last_sender, segment.last_receiver}
        if (unbalanced := _account(segment)) is not None:
            yield unbalanced
    for producer in substream.held_by:
        yield f"producer {producer!r} had an epoch revoked whose entries took effect at once: it has to commit it again"
    yield from (
        _staged(producer) for producer in job.producers if producer.producer in involved and producer.staged_epochs
    )


def _account(segment: SegmentStatus) -> str | None:
    people = f"last sent by {segment.last_sender or 'nobody'!r}, last received by {segment.last_receiver or 'nobody'!r}"
    counts = f"{segment.sent} sent, {segment.received} received; {people}"
    missing = segment.sent - segment.received
    if missing > 0:
        return f"segment {segment.segment!r}: {missing} in flight ({counts})"
    if missing < 0:
        return (
            f"segment {segment.segment!r}: {-missing} more received than sent ({counts}): the sender's report has not "
            "been committed, or a sender does not report"
        )
    if segment.xor:
        return (
            f"segment {segment.segment!r}: as many received as sent, but not the same elements ({counts}): sender and "
            "receiver give an element different labels, or one was lost and another doubled"
        )
    return None


def _front(name: str, front: FrontStatus | None, substream: SubstreamStatus) -> str:
    if front is None or not front.producer:
        return f"front {name!r} has promised nothing yet: its source has not started, or has no rows"
    where = f"front {name!r} (producer {front.producer!r}, last promise {text(front.last_promise)})"
    if substream.end_time is None:
        return f"{where} has not closed it"
    promised = [time for scope, time in front.frontiers.items() if scope in ("*", substream.scope)]
    reached = f"has promised up to {max(promised)}" if promised else "has promised no time for this scope"
    idle = "; it is idle" if front.idle else ""
    return f"{where} {reached}, and the substream ends at {substream.end_time}{idle}"


def _staged(producer: ProducerStatus) -> str:
    epochs = producer.staged_epochs
    named = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
    state = "has stopped" if producer.closed else f"was last heard {text(producer.last_heard)}"
    return f"producer {producer.producer!r} has reported {named} and not committed it, so it does not count; it {state}"
