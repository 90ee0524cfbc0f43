"""`tracker jobs`, `job`, `substreams` and `delete-job`: the jobs and substreams, and their states."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import chain, islice

from tracker.cli import connecting
from tracker.cli.output import ago, print_json, print_line, print_pairs, print_table, text, time_text
from tracker.client import FrontStatus, JobStatus, ProducerStatus, SegmentStatus, SubstreamStatus, TrackerError

_MOST_SCOPES = 4  # the most scopes of a front's frontiers that are shown


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    options = [connecting.options()]

    jobs = commands.add_parser("jobs", parents=options, help="list the jobs", description="List the jobs.")
    jobs.set_defaults(run=list_jobs)

    job = commands.add_parser(
        "job",
        parents=options,
        help="show a job's state",
        description="Show a job's graph, its open substreams and elements in flight, its producers and its fronts.",
    )
    job.add_argument("job", metavar="JOB")
    job.set_defaults(run=show_job)

    substreams = commands.add_parser(
        "substreams",
        parents=options,
        help="list open substreams, and what they wait for",
        description="List substreams: whether they are closed, which fronts they wait for, what is in flight.",
        epilog="example: tracker substreams flights --scope JFK --stalled",
    )
    substreams.add_argument("job", metavar="JOB")
    substreams.add_argument(
        "--scope", metavar="SCOPE", action="append", default=[], help="only this scope; may be repeated"
    )
    substreams.add_argument("--ended", action="store_true", help="also substreams that have ended and are still kept")
    substreams.add_argument("--stalled", action="store_true", help="only stalled substreams")
    substreams.add_argument(
        "--limit", metavar="NUMBER", type=int, default=1000, help="the most substreams to list; 0: all (default: 1000)"
    )
    substreams.set_defaults(run=list_substreams)

    delete = commands.add_parser(
        "delete-job",
        parents=options,
        help="delete a job with all its events",
        description="Delete a job with all its events. Its watchers get an error, since their log no longer exists.",
    )
    delete.add_argument("job", metavar="JOB")
    delete.add_argument("--force", action="store_true", help="delete the job even if producers have open runs")
    delete.set_defaults(run=delete_job)


def list_jobs(arguments: argparse.Namespace) -> int:
    """Runs `tracker jobs` and returns the exit status."""
    with connecting.client(arguments) as client:
        statuses = []
        for job in client.jobs():
            try:
                statuses.append(client.job(job))
            except TrackerError as refused:
                if refused.reason != "UNKNOWN_JOB":  # the job was deleted since it was listed
                    raise
    if arguments.json:
        print_json(statuses, indent=2)
        return 0
    if not statuses:
        print_line(f"no jobs at {arguments.server}")
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
    """Runs `tracker job` and returns the exit status."""
    with connecting.client(arguments) as client:
        status = client.job(arguments.job)
        oldest = None if arguments.json else next(client.substreams(arguments.job), None)
    if arguments.json:
        print_json(status, indent=2)
        return 0
    _print_job(status, oldest)
    if status.producers:
        print_line()
        _print_producers(status.producers)
    if status.fronts:
        print_line()
        _print_fronts(status.fronts)
    return 0


def _print_job(status: JobStatus, oldest: SubstreamStatus | None) -> None:
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
            ("remember", spec.remember or "as long as the job exists"),
            ("open", f"{status.open_substreams} substreams, {status.in_flight} elements in flight"),
            ("oldest open", _oldest(oldest)),
            ("never read", status.unread_segments),
            ("expected", _expected(status)),
            ("ended", f"{status.ended_substreams} substreams kept, {status.tombstones} more names remembered"),
            (
                "staged",
                f"{status.staged_units} epochs and units, {status.staged_entries} entries and promises, "
                f"{status.staged_substreams} substreams that are only named",
            ),
            ("late", f"{status.late_reports} reports"),
            ("events", f"{status.first_seq} to {status.last_seq} kept, log {status.log_id}"),
            ("drain", f"{drain.state} {drain.drain_id}".rstrip()),
        ]
    )


def _oldest(substream: SubstreamStatus | None) -> str | None:
    if substream is None:
        return None
    named = f"{substream.scope}/{substream.name}" if substream.scope else substream.name
    return f"{named}, known since {text(substream.created)} ({ago(substream.created)})"


def _expected(status: JobStatus) -> str:
    if not status.incomplete_substreams:
        return "nothing is missing"
    sent = f"{status.expected_sent} of {status.expected} elements sent"
    return f"{status.incomplete_substreams} substreams incomplete, {sent}"


def _print_producers(producers: Sequence[ProducerStatus]) -> None:
    print_table(
        ["PRODUCER", "RUN", "MODE", "COMMITTED", "STAGED", "STATE", "LAST REPORT"],
        [
            [
                producer.producer,
                producer.run,
                producer.mode,
                producer.committed_epoch,
                _staged(producer),
                "closed" if producer.closed else "open",
                ago(producer.last_heard),
            ]
            for producer in producers
        ],
    )


def _print_fronts(fronts: Sequence[FrontStatus]) -> None:
    print_table(
        ["FRONT", "STATE", "FRONTIERS", "OWNER", "LAST PROMISE", "FEEDS"],
        [
            [
                front.front,
                "finished" if front.finished else "idle" if front.idle else "running",
                _frontiers(front.frontiers),
                front.producer or None,
                ago(front.last_promise),
                list(front.segments) or "every segment",
            ]
            for front in fronts
        ],
    )


def _frontiers(frontiers: Mapping[str, int]) -> str | None:
    """Formats the frontier for all scopes, and those of the scopes that are furthest behind; --json has all of them.

    >>> _frontiers({"b": 7, "*": 3, "c": 4, "a": 7, "d": 9})
    '*: 3, c: 4, a: 7, b: 7, d: 9'
    """
    scopes = sorted((time, scope) for scope, time in frontiers.items() if scope != "*")
    shown = [f"{scope or repr(scope)}: {time_text(time)}" for time, scope in scopes[:_MOST_SCOPES]]
    if "*" in frontiers:
        shown.insert(0, f"*: {time_text(frontiers['*'])}")
    if len(scopes) > _MOST_SCOPES:
        shown.append(f"{len(scopes) - _MOST_SCOPES} more")
    return ", ".join(shown) or None


def _staged(producer: ProducerStatus) -> str | None:
    epochs = producer.staged_epochs
    if len(epochs) > 3:
        return f"{epochs[0]} … {epochs[-1]} ({len(epochs)})"
    return ", ".join(map(str, epochs)) or None


def list_substreams(arguments: argparse.Namespace) -> int:
    """Runs `tracker substreams` and returns the exit status."""
    with connecting.client(arguments) as client:
        found = client.substreams(
            arguments.job, scopes=arguments.scope, include_ended=arguments.ended, only_stalled=arguments.stalled
        )
        limit = arguments.limit or None
        shown = islice(found, limit)
        if arguments.json:
            for substream in shown:
                print_json(substream)
            return 0
        first = next(shown, None)
        if first is None:
            print_line(_nothing(arguments))
            return 0
        print_table(
            [
                "SCOPE",
                "NAME",
                "END TIME",
                "STATE",
                "IN FLIGHT",
                "WAITS FOR",
                "SEGMENTS (RECEIVED/SENT)",
                "CHANGED",
            ],
            [
                [
                    substream.scope,
                    substream.name,
                    time_text(substream.end_time),
                    _state(substream),
                    substream.in_flight,
                    _waits_for(substream),
                    [_account(segment) for segment in substream.segments],
                    ago(substream.changed),
                ]
                for substream in chain([first], shown)
            ],
        )
        if next(found, None) is not None:
            print_line(f"… and more: only the first {limit} are shown; --limit 0 lists all")
    return 0


def _nothing(arguments: argparse.Namespace) -> str:
    of = f" of scope {', '.join(arguments.scope)}" if arguments.scope else ""
    if arguments.stalled:
        return f"no stalled substreams{of} in job {arguments.job}; only a job with stall_after has any"
    if arguments.ended:
        return f"no substreams{of} in job {arguments.job}"
    return f"no open substreams{of} in job {arguments.job}; --ended lists ended ones, too"


def _state(substream: SubstreamStatus) -> str:
    if all(segment.ended for segment in substream.segments):
        return "ended by a drain" if substream.by_drain else "ended"
    return "closed" if substream.closed else "open"


def _waits_for(substream: SubstreamStatus) -> list[str]:
    return [*substream.waiting_for, *(f"a commit of {producer}" for producer in substream.held_by)]


def _account(segment: SegmentStatus) -> str:
    note = (" ended by a drain" if segment.by_drain else " ended") if segment.ended else ""
    if segment.xor and segment.sent == segment.received:
        note = " other elements were received than were sent"
    of = "" if segment.expected is None else f" of {segment.expected}"
    return f"{segment.segment} {segment.received}/{segment.sent}{of}{note}"


def delete_job(arguments: argparse.Namespace) -> int:
    """Runs `tracker delete-job` and returns the exit status."""
    with connecting.client(arguments) as client:
        client.delete_job(arguments.job, force=arguments.force)
    if arguments.json:
        print_json({"deleted": arguments.job})
    else:
        print_line(f"{arguments.job} is deleted")
    return 0
