"""The definition of a job at the tracker: its graph and its rules, with the deployment that they are of."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from spark_client.advice import explaining
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.graph import JobGraph
from spark_client.trackers import JobClient
from tracker.client import COMMITTED_ENDS, DrainMode, DrainState, JobSpec, TrackerError
from tracker.client.report import Largest
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_UTC: Final = ("UTC", "ETC/UTC", "GMT", "Z", "+00:00")
_NAMED: Final = 10  #: substreams that a warning lists of those that are abandoned


class Definition:
    """Definition of one job.

    Args:
        deployment: under which the job is defined; another one takes it over by a drain, a hand-over or `force`.
        graph: as far as it is declared.
        rules: of the job, by their names in `JobSpec`.
        force: take the job over from another deployment, whatever is open there.

    Attributes:
        deployment: under which the job is defined.
        largest: what one report may have; the smallest that any tracker takes, before the job is defined.
    """

    def __init__(
        self,
        client: JobClient,
        job: str,
        deployment: str,
        graph: JobGraph,
        rules: dict[str, Any],
        force: bool,
    ) -> None:
        self._client = client
        self._job = job
        self.deployment = deployment
        self._graph = graph
        self._rules = rules
        self._force = force
        self._defined: JobSpec | None = None
        self.largest = Largest()

    def require_progress(self) -> None:
        """Require that the job announces its progress; refuse that where it is defined already, without."""
        self._check_open("with_watermark", "progress", self._defined is not None and self._defined.progress)
        self._rules["progress"] = True

    def require_idle(self, rule: str, silence: timedelta, front: str) -> None:
        """Require that the job waits no longer for a scope, or a front, that is silent while others go on.

        Args:
            rule: the rule of the job's spec, ``scope_idle_after`` or ``front_idle_after``.
            silence: after which it is not waited for.
            front: which asks for it, for messages.
        """
        before = self._rules[rule]
        if before not in (None, silence):
            raise UsageError(
                f"{front}: a job has one {rule} for all its fronts, and this one has {before}: give the same "
                f"everywhere, also as Tracking({rule}=)"
            )
        self._check_open(front, rule, before is not None)
        self._rules[rule] = silence

    def check_deadline(self, source: str, zone: str) -> None:
        """Check that a deadline can be kept for windows over times without a zone, which are the session's clock's.

        Args:
            zone: the session's time zone, by which such times are meant.

        Raises:
            UsageError: the tracker's clock is another one, so that the deadline could pass hours before a window ends.
        """
        by_clock = self._rules["deadline"] is not None and not self._rules["deadline_by_event_time"]
        if by_clock and zone.upper() not in _UTC:
            raise UsageError(
                f"source {source!r}: its windows are over timestamp_ntz, on the session's clock ({zone}), and a "
                "deadline counts on UTC's: give it a timestamp, or Tracking(deadline_by_event_time=True), or set the "
                "session's zone to UTC if that is the times' own"
            )

    def _check_open(self, what: str, rule: str, has_it: bool) -> None:
        if self._defined is not None and not has_it:
            raise UsageError(f"{what}: declare it before the first query starts, or give Tracking({rule}=…)")

    def define(self, to_drain: bool = False) -> None:
        """Define the job; again with each start of a query.

        Args:
            to_drain: it is defined in order to be drained, and so may have been, since it was first defined here.

        Raises:
            TrackingError: the tracker refuses it, or cannot be reached; or it has been drained.
        """
        force = self._force and self._defined is None
        with explaining():
            info = self._client.server_info()
            spec = JobSpec(
                job=self._job,
                deployment=self.deployment,
                segments=self._graph.segments,
                fronts=self._graph.fronts(),
                state_segments=self._graph.states(),
                committed_ends=COMMITTED_ENDS in info.features,  # an earlier tracker cannot hold others to it
                **self._rules,
            )
            if force:
                self._warn_of_what_is_abandoned()
            defined = self._client.define_job(spec, force=force)
        drained = defined.drain.state is DrainState.DRAINED
        if drained and not (to_drain and self._defined is not None):
            done = "handed over" if defined.drain.mode is DrainMode.HAND_OVER else "drained"
            raise TrackingError(
                f"deployment {self.deployment!r} of job {self._job!r} has been {done}: start another deployment="
            )
        self._defined = spec
        self._graph.fixed = True
        self.largest = Largest.by(info.limits)

    def _warn_of_what_is_abandoned(self) -> None:
        try:
            status = self._client.job(self._job)
        except TrackerError as error:
            if error.reason != Refusal.UNKNOWN_JOB:
                raise
            return
        if status.spec.deployment != self.deployment and status.open_substreams:
            some = islice(self._client.substreams(self._job), _NAMED)
            names = ", ".join(f"{substream.name} of {substream.scope!r}" for substream in some)
            _log.warning(
                "force: deployment %r takes job %r over from %r; if the graph has changed, what is open is abandoned: "
                "%d substreams, with %d elements in flight: %s%s",
                self.deployment,
                self._job,
                status.spec.deployment,
                status.open_substreams,
                status.in_flight,
                names,
                " and more" if status.open_substreams > _NAMED else "",
            )
