"""The overview: whether the trackers work, what they do, and where something hangs."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from .parts import (
    BYTES,
    BYTES_RATE,
    COUNT,
    MOMENT,
    RATE,
    SECONDS,
    Column,
    Query,
    choice,
    dashboard,
    graph,
    number,
    quantiles,
    rate,
    rows,
)

_OF = '{instance=~"$instance"}'


def overview() -> builders.Dashboard:
    """Build the dashboard of all trackers."""
    return (
        dashboard("tracker-overview", "Tracker: overview", "All trackers: what they do, and where something hangs.")
        .with_variable(choice("instance", "Tracker", "tracker_build_info", "instance"))
        .with_panel(number("Ready", "Trackers that accept commands.", COUNT, f"sum(tracker_ready{_OF})", red_below=1))
        .with_panel(
            number(
                "Alerts",
                "Alerts of the tracker's rules that fire now. Each has a section in the runbook.",
                COUNT,
                'count(ALERTS{alertname=~"Tracker.+", alertstate="firing"}) or vector(0)',
                red_from=1,
            )
        )
        .with_panel(number("Jobs", "Jobs that are defined.", COUNT, f"sum(tracker_jobs{_OF})"))
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
                "Open substreams that were announced as stalled and have not changed since.",
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
            rows(
                "Job by job",
                "One row for each job. A click on a job shows it alone.",
                "job_name",
                "/d/tracker-job?${datasource:queryparam}&${__url_time_range}&var-job_name=${__value.raw}",
                [
                    Column("Open", COUNT, f"sum by (job_name) (tracker_open_substreams{_OF})"),
                    Column("In flight", COUNT, f"sum by (job_name) (tracker_in_flight_elements{_OF})"),
                    Column("Stalled", COUNT, f"sum by (job_name) (tracker_stalled_substreams{_OF})"),
                    Column(
                        "Longest without a change",
                        SECONDS,
                        f"max by (job_name) (tracker_oldest_unbalanced_seconds{_OF})",
                    ),
                    Column("Oldest promise", SECONDS, f"max by (job_name) (tracker_front_promise_age_seconds{_OF})"),
                    Column("Reader behind", SECONDS, f"max by (job_name) (tracker_watch_behind_seconds{_OF})"),
                ],
            )
        )
        .with_row(builders.Row("What is done"))
        .with_panel(
            graph(
                "Reports",
                "Reports a second, by outcome. Refused ones are repeated by their senders, or are wrong.",
                RATE,
                Query(rate("tracker_reports_total", _OF, "outcome"), "{{outcome}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Entries",
                "Entries of reports a second: a substream on a segment each.",
                RATE,
                Query(rate("tracker_report_entries_total", _OF, "outcome"), "{{outcome}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Ends",
                "Ends of substreams on segments a second, by reason.",
                RATE,
                Query(rate("tracker_ends_total", _OF, "reason"), "{{reason}}"),
                stacked=True,
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
                "Waiting substreams",
                "Open substreams, by what they wait for. One that waits for several things counts for each.",
                COUNT,
                Query(f"sum by (waiting_for) (tracker_waiting_substreams{_OF})", "{{waiting_for}}"),
            )
        )
        .with_panel(
            graph(
                "Late entries",
                "Entries a second of substreams that had ended: a source that promised too early.",
                RATE,
                Query(
                    f"topk(10, sum by (job_name) (rate(tracker_late_entries_total{_OF}[$__rate_interval])))",
                    "{{job_name}}",
                ),
            )
        )
        .with_row(builders.Row("Calls"))
        .with_panel(
            graph(
                "Calls by method",
                "Calls a second that have ended, by method.",
                RATE,
                Query(
                    rate("tracker_grpc_server_handling_seconds_count", _OF, "method"),
                    "{{method}}",
                ),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Duration of calls",
                "99 of 100 calls take no longer, by method; calls that last until their caller ends them are left out.",
                SECONDS,
                Query(
                    "histogram_quantile(0.99, sum by (method, le) (rate(tracker_grpc_server_handling_seconds_bucket"
                    '{instance=~"$instance", method!~"Watch|Await|ReportStream"}[$__rate_interval])))',
                    "{{method}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Refusals",
                "Calls and reports of streams that were refused, a second, by reason.",
                RATE,
                Query(rate("tracker_refusals_total", _OF, "reason"), "{{reason}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Calls under way",
                "Calls that have not ended, by kind.",
                COUNT,
                Query(f"sum(tracker_calls{_OF})", "short calls"),
                Query(f"sum(tracker_report_streams{_OF})", "streams of reports"),
                Query(f"sum(tracker_watches{_OF})", "watches"),
                Query(f"sum(tracker_waits{_OF})", "waits for one end"),
            )
        )
        .with_panel(
            graph(
                "Readers behind",
                "Age of the first event that a job's watch has not sent; the watch furthest behind counts.",
                SECONDS,
                Query(f"topk(10, max by (job_name) (tracker_watch_behind_seconds{_OF}))", "{{job_name}}"),
            )
        )
        .with_panel(
            graph(
                "Silent fronts",
                "Time since a front's last promise, of the ten that are silent for longest.",
                SECONDS,
                Query(
                    f"topk(10, max by (job_name, front) (tracker_front_promise_age_seconds{_OF}))",
                    "{{job_name}}: {{front}}",
                ),
            )
        )
        .with_row(builders.Row("Journal"))
        .with_panel(
            graph(
                "Duration of syncs",
                "Time to make a group of commands durable. Every answer waits for it.",
                SECONDS,
                *quantiles("tracker_journal_sync_seconds", _OF),
            )
        )
        .with_panel(
            graph(
                "Bytes made durable",
                "Bytes of commands a second that were made durable.",
                BYTES_RATE,
                Query(rate("tracker_journal_bytes_total", _OF, "instance"), "{{instance}}"),
            )
        )
        .with_panel(
            graph(
                "Failures",
                "Groups of commands that the journal refused, and snapshots that could not be kept, a second.",
                RATE,
                Query(rate("tracker_journal_failures_total", _OF), "journal"),
                Query(rate("tracker_snapshot_failures_total", _OF), "snapshots"),
            )
        )
        .with_panel(
            graph(
                "Bytes that wait",
                "Bytes of commands that wait for the journal or are carried out.",
                BYTES,
                Query(f"sum by (instance) (tracker_journal_pending_bytes{_OF})", "{{instance}}"),
            )
        )
        .with_panel(
            graph(
                "Size of snapshots",
                "Bytes of the last snapshot since the start.",
                BYTES,
                Query(f"max by (instance) (tracker_snapshot_bytes{_OF})", "{{instance}}"),
            )
        )
        .with_panel(
            number(
                "Last snapshot",
                "When the last snapshot since the start was kept, of the tracker whose one is oldest.",
                MOMENT,
                f"min(tracker_snapshot_timestamp_seconds{_OF} > 0) * 1000",
            )
        )
        .with_row(builders.Row("Processes"))
        .with_panel(
            graph(
                "Memory",
                "Resident memory of each tracker.",
                BYTES,
                Query(
                    'process_resident_memory_bytes{instance=~"$instance"} and on (instance) tracker_build_info',
                    "{{instance}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Processor",
                "Seconds of processor time a second: 1 is one core.",
                COUNT,
                Query(
                    'rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval]) '
                    "and on (instance) tracker_build_info",
                    "{{instance}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Open files",
                "Open files and connections of each tracker.",
                COUNT,
                Query('process_open_fds{instance=~"$instance"} and on (instance) tracker_build_info', "{{instance}}"),
            )
        )
    )
