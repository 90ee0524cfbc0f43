"""The drivers of Spark jobs: their batches, what became of rows, and how soon results are out."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from .parts import BYTES, COUNT, MOMENT, RATE, SECONDS, Query, choice, dashboard, graph, number, quantiles, rate

_JOB = '{job_name=~"$job_name"}'
_OF = '{job_name=~"$job_name", query=~"$query"}'


def spark() -> builders.Dashboard:
    """Build the dashboard of Spark's drivers."""
    return (
        dashboard(
            "tracker-spark",
            "Tracker: Spark",
            "The drivers of Spark jobs: their batches, what became of rows, and how soon results are out.",
        )
        .with_variable(choice("job_name", "Job", "tracker_spark_queries", "job_name"))
        .with_variable(choice("query", "Query", f"tracker_spark_batches_total{_JOB}", "query"))
        .with_panel(number("Queries", "Queries that run.", COUNT, f"sum(tracker_spark_queries{_JOB})"))
        .with_panel(
            number(
                "Waiting drains",
                "Drivers that carry out a drain that is not over.",
                COUNT,
                f"sum(tracker_spark_waiting_drains{_JOB})",
            )
        )
        .with_panel(
            number(
                "Failed batches",
                "Batches that failed since the drivers started.",
                COUNT,
                'sum(tracker_spark_batches_total{job_name=~"$job_name", query=~"$query", outcome="failed"}) '
                "or vector(0)",
                red_from=1,
            )
        )
        .with_panel(
            number(
                "Oldest batch",
                "When the last batch was processed, of the query that has processed none for longest.",
                MOMENT,
                f"min(tracker_spark_last_batch_timestamp_seconds{_OF}) * 1000",
            )
        )
        .with_panel(
            number(
                "State",
                "Substreams that the states of releases hold.",
                COUNT,
                f"sum(tracker_spark_state_substreams{_OF})",
            )
        )
        .with_panel(
            number(
                "Late and quarantined rows",
                "Rows since the drivers started that came after the end of their substream, or belong to none.",
                COUNT,
                'sum(tracker_spark_rows_total{job_name=~"$job_name", query=~"$query", fate=~"late|quarantined"})',
                red_from=1,
            )
        )
        .with_row(builders.Row("Batches"))
        .with_panel(
            graph(
                "Batches",
                "Batches a second, by query and outcome.",
                RATE,
                Query(rate("tracker_spark_batches_total", _OF, "query, outcome"), "{{query}}: {{outcome}}"),
            )
        )
        .with_panel(
            graph(
                "Duration of batches",
                "From a batch's begin to the tracker's answer to its report.",
                SECONDS,
                *quantiles("tracker_spark_batch_seconds", _OF, "query"),
            )
        )
        .with_panel(
            graph(
                "Reports",
                "Messages of the drivers' reports a second, by the tracker's outcome.",
                RATE,
                Query(rate("tracker_spark_reports_total", _OF, "outcome"), "{{outcome}}"),
                stacked=True,
            )
        )
        .with_row(builders.Row("Rows and results"))
        .with_panel(
            graph(
                "Rows",
                "Rows a second, by what became of them. The rest of what was received is in the state.",
                RATE,
                Query(rate("tracker_spark_rows_total", _OF, "fate"), "{{fate}}"),
            )
        )
        .with_panel(
            graph(
                "Ends",
                "Ends of substreams a second that releases have acted on, by reason.",
                RATE,
                Query(rate("tracker_spark_ends_total", _OF, "reason"), "{{reason}}"),
                stacked=True,
            )
        )
        .with_panel(
            graph(
                "Delay of results",
                "From when the tracker announced an end to when its result was written.",
                SECONDS,
                *quantiles("tracker_spark_end_delay_seconds", _OF, "query"),
            )
        )
        .with_panel(
            graph(
                "State by query",
                "What the state of each release holds. Substreams and rows leave it with their end.",
                COUNT,
                Query(f"sum by (query) (tracker_spark_state_substreams{_OF})", "{{query}}: substreams"),
                Query(f"sum by (query) (tracker_spark_state_rows{_OF})", "{{query}}: rows of them"),
            )
        )
        .with_panel(
            graph(
                "Calls to the tracker",
                "Attempts of calls a second by the drivers, by method and code.",
                RATE,
                Query(
                    "sum by (method, code) (rate(tracker_client_call_seconds_count[$__rate_interval]) "
                    f"and on (instance) tracker_spark_queries{_JOB})",
                    "{{method}} {{code}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Memory",
                "Resident memory of each driver's Python process; the JVM is another process.",
                BYTES,
                Query(f"process_resident_memory_bytes and on (instance) tracker_spark_queries{_JOB}", "{{instance}}"),
            )
        )
    )
