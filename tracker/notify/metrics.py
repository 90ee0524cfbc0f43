"""Content of `/metrics` of `tracker notify`. docs/howto/notify.md has a table of it."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector


class NotifyMetrics:
    """The metrics of deliveries, by rule."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._delivered = Counter(
            "tracker_notify_deliveries", "Events that were delivered.", ("rule",), registry=self._registry
        )
        self._last = Gauge(
            "tracker_notify_last_delivery_timestamp_seconds",
            "When the rule has delivered last, since 1970.",
            ("rule",),
            registry=self._registry,
        )
        self._failing = Gauge(
            "tracker_notify_failing",
            "1 while the rule cannot read its events or deliver one, else 0.",
            ("rule",),
            registry=self._registry,
        )
        self._wrong = Gauge(
            "tracker_notify_rules_file_wrong",
            "1 while the file of rules cannot be used and the rules before it are at work, else 0.",
            registry=self._registry,
        )

    def of(self, rule: str) -> tuple[Callable[[], None], Callable[[bool], None]]:
        """Return what counts a rule's delivery, and what notes whether it fails."""
        failing = self._failing.labels(rule)
        failing.set(0)

        def delivered() -> None:
            self._delivered.labels(rule).inc()
            self._last.labels(rule).set_to_current_time()

        return delivered, lambda fails: failing.set(fails)

    def forget(self, rule: str) -> None:
        """Leave a rule that is no more out from now on."""
        self._failing.remove(rule)

    def file_is_wrong(self, wrong: bool) -> None:
        """Note whether the file of rules can be used."""
        self._wrong.set(wrong)

    async def scrape(self) -> Collector:
        """Return what `/metrics` shows."""
        return self._registry
