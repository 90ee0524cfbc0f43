"""The limits on what callers may ask for, and the refusals of requests that exceed one.

Limits prevent one caller's mistake from taking the server down for all. They belong to the server, not to the state:
they are checked before a command is accepted, so changing a limit at a restart never changes the state that a journal
gives.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from tracker.contract.refusal import Refusal, Refused


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits, each with its default.

    >>> Limits().max_jobs
    10000
    """

    max_message_bytes: int = 16 << 20  #: of one request
    max_question_bytes: int = 1 << 20  #: of one request that does not report, commit or define a job
    max_spec_bytes: int = 8 << 20  #: of one request that defines a job
    max_calls: int = 5_000  #: under way at once, beside watches, waits and streams of reports
    max_report_streams: int = 1_000  #: under way at once
    max_report_entries: int = 1_000_000  #: of one report
    max_report_substreams: int = 1_000_000  #: substreams that one report names, by name or id
    max_report_units: int = 100_000  #: of one report, and of a manifest
    max_promises: int = 100_000  #: of one report or commit
    max_jobs: int = 10_000
    max_segments: int = 1_000  #: of one job
    max_feeds: int = 50_000  #: of all segments of one job together
    max_fronts: int = 10_000  #: of one job
    max_front_segments: int = 200_000  #: of one job: its fronts that feed only some segments, times its segments
    max_producers: int = 10_000  #: of one job
    max_open_substreams: int = 20_000_000  #: of one job
    max_subscriptions: int = 100  #: of one job, expired ones too
    max_subscribed_names: int = 100_000  #: segments and scopes that all subscriptions of one job ask for
    max_subscription_events: int = 10_000_000  #: the most that a subscription's max_events may be
    max_filter_names: int = 10_000  #: segments and scopes that one reader or subscription asks for
    max_cells: int = 40_000_000  #: of one job: its open and staged substreams times its segments
    max_staged_substreams: int = 5_000_000  #: of one job: named by reports, but not known
    max_staged_units: int = 5_000_000  #: of one job: units of staged epochs, and the epochs
    max_staged_entries: int = 50_000_000  #: of one job: entries and promises of staged epochs
    max_expected: int = 10_000_000  #: of one job: numbers of elements that fronts expect
    max_scope_frontiers: int = 1_000_000  #: of one job: scopes with frontiers of their own times fronts
    max_tombstones: int = 500_000_000  #: of one job: names of ended and forgotten substreams, 16 bytes each
    max_events: int = 50_000_000  #: of one job: events that are kept
    max_pending_drains: int = 10_000  #: drains of deployments that are not defined yet
    max_watchers: int = 10_000  #: watches and waits under way
    max_connection_streams: int = 20_000  #: calls and streams under way of one connection; the next ones wait
    max_watched_names: int = 1_000_000  #: in the filters of all watches together
    max_field_bytes: int = 64 << 10  #: of one field that is not a list: names have at most 512
    max_repeated: int = 10_000  #: of any other list in a request
    max_pending_bytes: int = 256 << 20  #: of requests that are being received, parsed, journaled or carried out
    max_metric_jobs: int = 50  #: jobs with series of their own in the metrics; the others are summed, not refused
    max_metric_names: int = 20  #: segments and fronts of one job likewise
    max_page: int = 10_000  #: events or substreams in one answer; more are not refused, but follow on the next page

    def by_name(self) -> dict[str, int]:
        """Return all limits by their names."""
        return asdict(self)

    def check(self, name: str, wanted: int, remedy: str) -> None:
        """Refuse a request that exceeds a limit.

        Raises:
            Refused: ``LIMIT``: `wanted` is above the limit.

        >>> Limits(max_jobs=2).check("max_jobs", 3, "delete one first")
        Traceback (most recent call last):
        tracker.contract.refusal.Refused: LIMIT: limit max_jobs=2 exceeded: the request needs 3; delete one first
        """
        limit = getattr(self, name)
        if wanted > limit:
            message = f"limit {name}={limit} exceeded: the request needs {wanted}; {remedy}"
            raise Refused(Refusal.LIMIT, message)


def parse_limits(settings: list[str]) -> Limits:
    """Read limits from settings; the others keep their defaults.

    Args:
        settings: of the form ``NAME=NUMBER``.

    Raises:
        ValueError: a setting does not name a limit, or its number is not above 0.

    >>> parse_limits(["max_jobs=5"]).max_jobs
    5
    """
    known = [field.name for field in fields(Limits)]
    values = {}
    for setting in settings:
        name, _, number = setting.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not a limit; use one of {', '.join(known)}")
        if not number.isdecimal() or int(number) == 0:
            raise ValueError(f"{setting!r} is not a valid limit; write NAME=NUMBER with a number above 0")
        values[name] = int(number)
    return Limits(**values)
