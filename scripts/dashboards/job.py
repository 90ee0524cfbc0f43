"""One job: what it does, and what its open substreams wait for."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from .parts import COUNT, RATE, SECONDS, Query, choice, dashboard, graph, number, quantiles, rate

_OF = '{job_name="$job_name", instance=~"$instance"}'


def job() -> builders.Dashboard:
    """Build the dashboard of one job."""
    return (
        dashboard("tracker-job", "Tracker: one job", "One job: what it does, and what its open substreams wait for.")
        .with_variable(choice("job_name", "Job", "tracker_open_substreams", "job_name", several=False))
        .with_variable(choice("instance", "Tracker", 'tracker_open_substreams{job_name="$job_name"}', "instance"))
        .with_panel(
            number(
                "Open substreams",
                "Substreams that have not ended on every segment.",
                COUNT,
                f"sum(tracker_open_substreams{_OF})",
            )
        )
        .with_panel(
            number(
                "Stalled substreams",
                "Open substreams that were announced as stalled and have not changed since. `tracker substreams JOB "
                "--stalled` names them.",
                COUNT,
                f"sum(tracker_stalled_substreams{_OF})",
                red_from=1,
            )
        )
        .with_panel(
            number(
                "Longest without a change",
                "Of the substreams that are closed and do not balance, how long the oldest has not changed.",
                SECONDS,
                f"max(tracker_oldest_unbalanced_seconds{_OF})",
                red_from=900,
            )
        )
        .with_panel(
            number(
                "Incomplete substreams",
                "Open substreams of which more is expected than was sent.",
                COUNT,
                f"sum(tracker_incomplete_substreams{_OF})",
            )
        )
        .with_panel(number("Producers", "Producers that the job has.", COUNT, f"sum(tracker_producers{_OF})"))
        .with_panel(
            number(
                "Overdue drains",
                "1 while the drain of the job's deployment goes on beyond its timeout.",
                COUNT,
                'sum(tracker_drain_state{job_name="$job_name", instance=~"$instance", state="timed_out"})',
                red_from=1,
            )
        )
        .with_row(builders.Row("What open substreams wait for"))
        .with_panel(
            graph(
                "Waiting substreams",
                "By what they wait for: a front's promise, elements on a segment, a staged epoch's commit, or only the "
                "order of ends.",
                COUNT,
                Query(f"sum by (waiting_for) (tracker_waiting_substreams{_OF})", "{{waiting_for}}"),
            )
        )
        .with_panel(
            graph(
                "In flight",
                "Elements that were sent on a segment and not received.",
                COUNT,
                Query(f"sum by (segment) (tracker_in_flight_elements{_OF})", "{{segment}}"),
            )
        )
        .with_panel(
            graph(
                "Fronts' last promises",
                "Time since each unfinished front's last promise. A line that only rises is a silent source.",
                SECONDS,
                Query(f"max by (front) (tracker_front_promise_age_seconds{_OF})", "{{front}}"),
            )
        )
        .with_panel(
            graph(
                "Fronts",
                "Fronts that may still send, and those of them that are idle and not waited for.",
                COUNT,
                Query(f"sum(tracker_unfinished_fronts{_OF})", "unfinished"),
                Query(f"sum(tracker_idle_fronts{_OF})", "idle"),
            )
        )
        .with_panel(
            graph(
                "Staged",
                "Epochs that were reported and are not committed, and substreams that only they name.",
                COUNT,
                Query(f"sum(tracker_staged_epochs{_OF})", "epochs"),
                Query(f"sum(tracker_staged_substreams{_OF})", "substreams"),
            )
        )
        .with_panel(
            graph(
                "Drain",
                "The state of the drain of the job's deployment is at 1.",
                COUNT,
                Query(f"max by (state) (tracker_drain_state{_OF})", "{{state}}"),
            )
        )
        .with_row(builders.Row("What is done"))
        .with_panel(
            graph(
                "Reports",
                "Reports a second, by outcome.",
                RATE,
                Query(rate("tracker_reports_total", _OF, "outcome"), "{{outcome}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Entries",
                "Entries of reports a second, by the report's outcome.",
                RATE,
                Query(rate("tracker_report_entries_total", _OF, "outcome"), "{{outcome}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Ends",
                "Ends of substreams on segments a second, by reason, and late entries a second.",
                RATE,
                Query(rate("tracker_ends_total", _OF, "reason"), "{{reason}}"),
                Query(rate("tracker_late_entries_total", _OF), "late entries"),
            )
        )
        .with_panel(
            graph(
                "Delay of ends",
                "From when the tracker took the last commit or promise that an end needed, to its announcement.",
                SECONDS,
                *quantiles("tracker_end_delay_seconds", _OF),
            )
        )
        .with_panel(
            graph(
                "Readers behind",
                "Events that the watch furthest behind has not sent yet.",
                COUNT,
                Query(f"max(tracker_watch_behind_events{_OF})", "events"),
            )
        )
        .with_panel(
            graph(
                "What the tracker keeps",
                "What the job takes up in the tracker's memory.",
                COUNT,
                Query(f"sum(tracker_cells{_OF})", "accumulators"),
                Query(f"sum(tracker_tombstones{_OF})", "names of ended substreams"),
                Query(f"sum(tracker_events{_OF})", "events"),
                Query(f"sum(tracker_retained_events{_OF})", "events kept for subscriptions"),
            )
        )
    )
