"""The options of the source ``tracker``, checked; and what to do about the refusals that its readers meet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final, cast

from spark_client.errors import TrackingError, UsageError, check_choice, check_faults, refused
from spark_client.trackers import JobClient, Trackers
from tracker.client import (
    Advanced,
    Credentials,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    Excess,
    FrontIdle,
    Late,
    Ordering,
    Stalled,
    TrackerClient,
    TrackerError,
)
from tracker.client.credentials import TOKEN_VARIABLE

# Spark may show the options of a source in plans, on its pages and in logs. So an option that would be a secret is
# refused, and others name files.
#: The options, by the field of `Credentials`.
OPTIONS: Final = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_key", "token_file": "token_file"}
_SECRETS: Final = ("token", "password", "secret")
_ORDERINGS: Final = ("none", "scope", "global")
AWAITS: Final = "awaits"  #: an option of this package's own: what a query's commits bring about is waited for

_KINDS: Final = {
    "Ended": Ended,
    "Late": Late,
    "Advanced": Advanced,
    "Stalled": Stalled,
    "Excess": Excess,
    "FrontIdle": FrontIdle,
    "DrainRequested": DrainRequested,
    "Drained": Drained,
    "DrainTimedOut": DrainTimedOut,
    "DrainCancelled": DrainCancelled,
}


class ReaderOptions:
    """The options of a reader, checked."""

    KNOWN: Final = frozenset(
        [
            "job",
            "server",
            "sharded",
            "segments",
            "scopes",
            "kinds",
            "starting_seq",
            "subscription",
            "max_away",
            "max_events_per_trigger",
            "retry_for",
            "what",
            "after_seq",
            "up_to_seq",
            "include_ended",
            "path",
            AWAITS,
            *OPTIONS.values(),
        ]
    )

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_secrets(options)
        self.job = options.get("job", "")
        self.server = options.get("server", "127.0.0.1:7654")
        self.sharded = options.get("sharded", "")
        self.starting_seq = options.get("starting_seq", "earliest")
        unknown = sorted(key for key in options if key.lower() not in self.KNOWN)
        known = ", ".join(sorted(self.KNOWN - {"path", AWAITS}))
        numbered = self.starting_seq.isdigit()
        check_faults(
            'format("tracker")',
            (unknown, f"knows no option {', '.join(map(repr, unknown))}; it knows {known}"),
            (not self.job, 'needs .option("job", …): the job whose events are read'),
            (
                self.starting_seq not in ("earliest", "latest") and not numbered,
                f"with starting_seq={self.starting_seq!r}: give earliest, latest or a number",
            ),
            (
                self.sharded and (numbered or "after_seq" in options or "up_to_seq" in options),
                "of a sharded job, which numbers its events at each server by itself: starting_seq is earliest or "
                "latest, and after_seq and up_to_seq cannot be used",
            ),
        )
        if self.sharded:
            check_choice("sharded", self.sharded, *_ORDERINGS, why=", the job's ordering")
        self.segments = _words(options.get("segments", ""))
        self.scopes = _words(options.get("scopes", ""))
        kinds = _words(options.get("kinds", ""))
        for kind in kinds:
            check_choice('format("tracker"): kind', kind, *_KINDS)
        self.kinds = tuple(_KINDS[kind] for kind in kinds or _KINDS)
        self.subscription = options.get("subscription", "")
        self.max_away = timedelta(days=float(options["max_away"])) if "max_away" in options else None
        self.limit = int(options.get("max_events_per_trigger", "10000"))
        self.retry_for = float(options.get("retry_for", "60"))
        self.credentials = credentials_of(options)
        self.substreams = options.get("what", "events") == "substreams"
        self.after_seq = int(options.get("after_seq", "0"))
        self.up_to_seq = int(options.get("up_to_seq", "0"))
        self.awaits = options.get(AWAITS, "")
        self.include_ended = options.get("include_ended", "false").lower() == "true"

    @property
    def ordered(self) -> bool:
        """Return whether an end waits until every log is as far."""
        return self.sharded == "global"

    def wants(self, event: Event) -> bool:
        """Return whether an event is of a wanted kind."""
        return isinstance(event.kind, self.kinds)

    def client(self) -> JobClient:
        ordering = cast("Ordering | None", self.sharded or None)
        return Trackers(self.server, ordering, self.retry_for, self.credentials).client()

    def range(self, client: TrackerClient, after: int, up_to: int, log_id: str) -> Iterator[Event]:
        """Yield the wanted events of a range of the only log; `up_to` 0 is the newest."""
        while not up_to or after < up_to:
            page = client.list_events(
                self.job, after, up_to, 0, segments=self.segments, scopes=self.scopes, log_id=log_id
            )
            yield from filter(self.wants, page.events)
            if page.last_seq <= after:
                return
            after, log_id = page.last_seq, page.log_id


_ADVICE: Final[Mapping[str, str]] = {
    "UNKNOWN_JOB": "start a tracked query first, or define the job; check the option 'job' and the server",
    "LOG_CHANGED": "the job was deleted, or its journal was lost or restored from a backup, so this checkpoint's "
    "place in it means nothing: start the query with a new checkpoint",
    "EVENTS_EXPIRED": "the query was stopped for longer than the job's retention: start it with a new checkpoint "
    "and take what has ended meanwhile from spark.read.format('tracker').option('what', 'substreams'), or give "
    "starting_seq. A stream with the option subscription= may be stopped for longer",
    "SUBSCRIPTION_EXPIRED": "the query was stopped for longer than its subscription's max_away: "
    "`tracker unsubscribe {job} {subscription!r}`, and start it with a new checkpoint",
}


@contextmanager
def explained(job: str, subscription: str = "") -> Iterator[None]:
    """Add advice to the refusals that a reader meets."""
    try:
        yield
    except TrackerError as error:
        if error.reason not in _ADVICE:
            raise
        what_to_do = _ADVICE[error.reason].format(job=job, subscription=subscription)
        raise TrackingError(f"{error} (job {job!r}: {what_to_do})") from error


def _words(text: str) -> tuple[str, ...]:
    """Return the names in an option: between commas, or as a JSON list, for names with commas or blanks."""
    if text.startswith("["):
        with suppress(ValueError):
            return tuple(map(str, json.loads(text)))
    return tuple(word.strip() for word in text.split(",") if word.strip())


def options_of(credentials: Credentials) -> dict[str, str]:
    """Return the options of the source for a client's credentials.

    >>> options_of(Credentials(ca="/etc/ca.pem"))
    {'tls_ca': '/etc/ca.pem'}
    """
    files = {option: getattr(credentials, name) for name, option in OPTIONS.items()}
    return {option: file for option, file in files.items() if file}


def credentials_of(options: Mapping[str, str]) -> Credentials:
    """Return the credentials that options name; those of the environment, if they name none."""
    files = {name: options[option] for name, option in OPTIONS.items() if options.get(option)}
    if not files:
        return Credentials.from_environment()
    with refused('format("tracker")', errors=ValueError):  # a certificate without its key, say
        return Credentials(**files, token_variable=None if "token_file" in files else TOKEN_VARIABLE)


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Refuse an option that would hold a secret, without showing it."""
    for key in options:
        if key.lower() in _SECRETS:
            raise UsageError(
                f'format("tracker"): {key!r} may be shown in Spark\'s plans and logs; write the token to a file '
                'that the executors have, and give .option("token_file", …)'
            )
