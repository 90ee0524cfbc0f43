"""The relays of nodes: what they save, and whether they keep up."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from .parts import (
    BYTES,
    BYTES_RATE,
    COUNT,
    RATE,
    SECONDS,
    SHARE,
    Query,
    choice,
    dashboard,
    graph,
    number,
    quantiles,
    rate,
)

_OF = '{instance=~"$instance"}'


def relays() -> builders.Dashboard:
    """Build the dashboard of relays."""
    return (
        dashboard("tracker-relays", "Tracker: relays", "The relays of nodes: what they save, and whether they keep up.")
        .with_variable(choice("instance", "Relay", "tracker_relay_build_info", "instance"))
        .with_panel(number("Relays", "Relays that are scraped.", COUNT, f"sum(tracker_relay_build_info{_OF})"))
        .with_panel(
            number(
                "Not ready",
                "Relays that cannot reach their tracker, or are starting or stopping.",
                COUNT,
                f"count(tracker_relay_ready{_OF}) - sum(tracker_relay_ready{_OF})",
                red_from=1,
            )
        )
        .with_panel(
            number(
                "Reports for each message",
                "How many reports of workers one message to the tracker stands for. 1: nothing is combined.",
                COUNT,
                f"{rate('tracker_relay_reports_total', _OF)} / {rate('tracker_relay_messages_total', _OF)}",
            )
        )
        .with_panel(
            number(
                "Reports without room",
                "Reports that were refused since the start because too many bytes were pending: the tracker is slower "
                "than its callers.",
                COUNT,
                'sum(tracker_relay_reports_total{instance=~"$instance", outcome="full"}) or vector(0)',
                red_from=1,
            )
        )
        .with_panel(
            number(
                "Reports for another tracker",
                "Reports since the start of callers that name the tracker in another way than the relay. They gain "
                "nothing from it.",
                COUNT,
                'sum(tracker_relay_reports_total{instance=~"$instance", outcome="another_tracker"}) or vector(0)',
                red_from=1,
            )
        )
        .with_panel(
            number(
                "Fullest",
                "Bytes that are pending, as a share of the limit, of the relay with the highest share.",
                SHARE,
                f"max(tracker_relay_pending_bytes{_OF} / tracker_relay_pending_bytes_limit{_OF})",
                red_from=0.8,
            )
        )
        .with_row(builders.Row("Reports"))
        .with_panel(
            graph(
                "Reports",
                "Reports of workers a second, by outcome. Those that got no answer are sent to the tracker itself.",
                RATE,
                Query(rate("tracker_relay_reports_total", _OF, "outcome"), "{{outcome}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Messages",
                "Messages to the tracker a second for these reports, by the code of its answer.",
                RATE,
                Query(rate("tracker_relay_messages_total", _OF, "code"), "{{code}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Bytes",
                "Bytes a second that came from workers, and that went to the tracker.",
                BYTES_RATE,
                Query(rate("tracker_relay_report_bytes_total", _OF), "from workers"),
                Query(rate("tracker_relay_message_bytes_total", _OF), "to the tracker"),
            )
        )
        .with_panel(
            graph(
                "Duration of reports",
                "Time from when a report came to its answer, waiting for others included.",
                SECONDS,
                *quantiles("tracker_relay_report_seconds", _OF),
            )
        )
        .with_panel(
            graph(
                "Duration of messages",
                "From when a message was sent to the tracker's answer. The rest of a report's time is the relay's.",
                SECONDS,
                *quantiles("tracker_relay_message_seconds", _OF),
            )
        )
        .with_panel(
            graph(
                "Bytes that wait",
                "Bytes of requests that the tracker has not answered, by relay.",
                BYTES,
                Query(f"sum by (instance) (tracker_relay_pending_bytes{_OF})", "{{instance}}"),
            )
        )
        .with_row(builders.Row("Other calls, and the processes"))
        .with_panel(
            graph(
                "Calls that are passed on",
                "Calls a second other than reports, by method and code.",
                RATE,
                Query(rate("tracker_relay_passed_calls_total", _OF, "method, code"), "{{method}} {{code}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Calls under way",
                "Calls other than reports that have not ended, by method.",
                COUNT,
                Query(f"sum by (method) (tracker_relay_open_calls{_OF})", "{{method}}"),
            )
        )
        .with_panel(
            graph(
                "Memory",
                "Resident memory of each relay.",
                BYTES,
                Query(f"process_resident_memory_bytes{_OF} and on (instance) tracker_relay_build_info", "{{instance}}"),
            )
        )
        .with_panel(
            graph(
                "Processor",
                "Seconds of processor time a second: 1 is one core.",
                COUNT,
                Query(
                    f"rate(process_cpu_seconds_total{_OF}[$__rate_interval]) "
                    "and on (instance) tracker_relay_build_info",
                    "{{instance}}",
                ),
            )
        )
    )
