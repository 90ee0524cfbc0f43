"""`tracker jobs`, `job`, `substreams` and `delete-job`: what there is, and how it stands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice

from tracker.cli import asking
from tracker.cli.output import print_json, print_pairs, print_table
from tracker.client import FrontStatus, JobStatus, ProducerStatus, SegmentStatus, SubstreamStatus, TrackerError


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    options = [asking.options()]

    jobs = commands.add_parser("jobs", parents=options, help="list the jobs", description="List the jobs.")
    jobs.set_defaults(run=list_jobs)

    job = commands.add_parser(
        "job",
        parents=options,
        help="show how a job stands",
        description="Show a job's graph, how much is open and in flight, its producers and its fronts.",
    )
    job.add_argument("job", metavar="JOB")
    job.set_defaults(run=show_job)

    substreams = commands.add_parser(
        "substreams",
        parents=options,
        help="list what is open, and what it waits for",
        description="List substreams: whether they are closed, which fronts they wait for, what is in flight where.",
        epilog="example: tracker substreams flights --scope JFK --stalled",
    )
    substreams.add_argument("job", metavar="JOB")
    substreams.add_argument("--scope", metavar="SCOPE", action="append", default=[], help="only these; may be repeated")
    substreams.add_argument("--ended", action="store_true", help="also those that have ended and are still remembered")
    substreams.add_argument("--stalled", action="store_true", help="only those announced as stalled")
    substreams.add_argument(
        "--limit", metavar="NUMBER", type=int, default=1000, help="at most so many; 0: all (default: 1000)"
    )
    substreams.set_defaults(run=list_substreams)

    delete = commands.add_parser(
        "delete-job",
        parents=options,
        help="forget a job with all its events",
        description="Forget a job with all its events. Its watchers are told that their log is gone.",
    )
    delete.add_argument("job", metavar="JOB")
    delete.add_argument("--force", action="store_true", help="also while producers have not closed their runs")
    delete.set_defaults(run=delete_job)


def list_jobs(arguments: argparse.Namespace) -> int:
    with asking.client(arguments) as client:
        statuses = []
        for job in client.jobs():
            try:
                statuses.append(client.job(job))
            except TrackerError as refused:
                if refused.reason != "UNKNOWN_JOB":  # it was deleted just now
                    raise
    if arguments.json:
        print_json(statuses, indent=2)
        return 0
    print_table(
        ["JOB", "DEPLOYMENT", "OPEN", "IN FLIGHT", "ENDED", "LATE", "LAST EVENT", "DRAIN"],
        [
            [
                status.spec.job,
                status.spec.deployment,
                status.open_substreams,
                status.in_flight,
                status.ended_substreams,
                status.late_reports,
                status.last_seq,
                status.drain.state,
            ]
            for status in statuses
        ],
    )
    return 0


def show_job(arguments: argparse.Namespace) -> int:
    with asking.client(arguments) as client:
        status = client.job(arguments.job)
    if arguments.json:
        print_json(status, indent=2)
        return 0
    _print_job(status)
    if status.producers:
        print()
        _print_producers(status.producers)
    if status.fronts:
        print()
        _print_fronts(status.fronts)
    return 0


def _print_job(status: JobStatus) -> None:
    spec = status.spec
    graph = [f"{segment} -> {' + '.join(feeds)}" if feeds else segment for segment, feeds in spec.segments.items()]
    drain = status.drain
    print_pairs(
        [
            ("job", spec.job),
            ("deployment", f"{spec.deployment} (incarnation {status.incarnation})"),
            ("segments", graph),
            ("ordering", spec.ordering),
            ("progress", "announced" if spec.progress else "not announced"),
            ("stall after", spec.stall_after or "never"),
            ("expire after", spec.expire_after or "never"),
            ("idle after", spec.idle_after or "never"),
            ("retention", spec.retention),
            ("open", f"{status.open_substreams} substreams, {status.in_flight} elements in flight"),
            ("ended", f"{status.ended_substreams} substreams remembered"),
            ("late", f"{status.late_reports} reports"),
            ("events", f"{status.first_seq} to {status.last_seq} kept, log {status.log_id}"),
            ("drain", f"{drain.state} {drain.drain_id}".rstrip()),
        ]
    )


def _print_producers(producers: Sequence[ProducerStatus]) -> None:
    print_table(
        ["PRODUCER", "RUN", "MODE", "COMMITTED", "STAGED", "STATE", "LAST HEARD"],
        [
            [
                producer.producer,
                producer.run,
                producer.mode,
                producer.committed_epoch,
                _staged(producer),
                "closed" if producer.closed else "open",
                producer.last_heard,
            ]
            for producer in producers
        ],
    )


def _print_fronts(fronts: Sequence[FrontStatus]) -> None:
    print_table(
        ["FRONT", "STATE", "FRONTIERS", "OWNER", "LAST PROMISE"],
        [
            [
                front.front,
                "finished" if front.finished else "idle" if front.idle else "running",
                [f"{scope}: {time}" for scope, time in front.frontiers.items()],
                front.producer or None,
                front.last_promise,
            ]
            for front in fronts
        ],
    )


def _staged(producer: ProducerStatus) -> str | None:
    epochs = producer.staged_epochs
    if len(epochs) > 3:
        return f"{epochs[0]} … {epochs[-1]} ({len(epochs)})"
    return ", ".join(map(str, epochs)) or None


def list_substreams(arguments: argparse.Namespace) -> int:
    with asking.client(arguments) as client:
        found = client.substreams(
            arguments.job, scopes=arguments.scope, include_ended=arguments.ended, only_stalled=arguments.stalled
        )
        limit = arguments.limit or None
        shown = islice(found, limit)
        if arguments.json:
            for substream in shown:
                print_json(substream)
            return 0
        print_table(
            ["SCOPE", "NAME", "END TIME", "STATE", "IN FLIGHT", "WAITS FOR", "SEGMENTS (RECEIVED/SENT)", "CHANGED"],
            [
                [
                    substream.scope,
                    substream.name,
                    substream.end_time,
                    _state(substream),
                    substream.in_flight,
                    _waits_for(substream),
                    [_account(segment) for segment in substream.segments],
                    substream.changed,
                ]
                for substream in shown
            ],
        )
        if next(found, None) is not None:
            print(f"… and more: these are the first {limit}; --limit 0 lists all")
    return 0


def _state(substream: SubstreamStatus) -> str:
    if all(segment.ended for segment in substream.segments):
        return "ended"
    return "closed" if substream.closed else "open"


def _waits_for(substream: SubstreamStatus) -> list[str]:
    return [*substream.waiting_for, *(f"a commit of {producer}" for producer in substream.held_by)]


def _account(segment: SegmentStatus) -> str:
    note = " ended" if segment.ended else ""
    if segment.xor and segment.sent == segment.received:
        note = " another element was received than was sent"
    return f"{segment.segment} {segment.received}/{segment.sent}{note}"


def delete_job(arguments: argparse.Namespace) -> int:
    with asking.client(arguments) as client:
        client.delete_job(arguments.job, force=arguments.force)
    if arguments.json:
        print_json({"deleted": arguments.job})
    else:
        print(f"{arguments.job} is deleted")
    return 0
