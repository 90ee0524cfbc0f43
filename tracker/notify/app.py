"""The process that runs the rules of a file until a signal stops it; rules that change are replaced."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tracker.client import TrackerClient
from tracker.client.credentials import file_stamp
from tracker.web.listening import application, listening

from .delivery import Delivery
from .rules import Rule, RulesError, read_rules


class NotifyMetrics:
    """The metrics of deliveries, by rule."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._delivered = Counter(
            "tracker_notify_deliveries", "Events that were delivered.", ("rule",), registry=self._registry
        )

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tracker_notify_{name}", text, labels, registry=self._registry)

        last = "When the rule has delivered last, since 1970."
        self._last = gauge("last_delivery_timestamp_seconds", last, "rule")
        self._failing = gauge("failing", "1 while the rule cannot read its events or deliver one, else 0.", "rule")
        wrong = "1 while the file of rules cannot be used and the rules before it are at work, else 0."
        self._wrong = gauge("rules_file_wrong", wrong)

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


log = logging.getLogger("tracker.notify")

_GRACE_S = 15.0  #: seconds that deliveries under way get at the end


class Supervisor:
    """Runner of the rules of a file.

    Raises:
        RulesError: the file cannot be used.
    """

    def __init__(self, file: Path, client: TrackerClient, metrics: NotifyMetrics) -> None:
        self._file = file
        self._client = client
        self._metrics = metrics
        self._seen = file_stamp(file)
        self._rules = {rule.name: rule for rule in read_rules(file)}
        self._running: dict[str, Delivery] = {}
        self.wrong = ""  #: why the file, as it is now, cannot be used: the rules before it are at work
        self._failures: dict[str, str] = {}

    @property
    def failures(self) -> Mapping[str, str]:
        """Return what is wrong, by rule, of those that do not work now."""
        return {name: text for name, text in list(self._failures.items()) if text}

    @property
    def rules(self) -> int:
        """Return how many rules are at work."""
        return len(self._running)

    def start(self) -> None:
        """Start all rules."""
        self._apply()

    def look(self, force: bool = False) -> None:
        """Read the file again if it has changed, or by `force`. One that cannot be used changes nothing.

        To be called now and then.
        """
        for delivery in list(self._running.values()):
            delivery.acknowledge_passed()
        stamp = file_stamp(self._file)
        if stamp == self._seen and not force:
            return
        self._seen = stamp
        try:
            self._rules = {rule.name: rule for rule in read_rules(self._file)}
        except RulesError as wrong:
            self.wrong = str(wrong)
            self._metrics.file_is_wrong(True)
            log.error("the file of rules cannot be used, the rules before it go on", extra={"error": self.wrong})
            return
        self.wrong = ""
        self._metrics.file_is_wrong(False)
        self._apply()

    def stop(self) -> None:
        """Stop all rules. Undelivered events come again after the next start."""
        self._end(list(self._running.values()))

    def _apply(self) -> None:
        changed = [each for name, each in self._running.items() if self._rules.get(name) != each.rule]
        self._end(changed)
        for name, rule in self._rules.items():
            if name in self._running:
                continue
            delivered, failing = self._metrics.of(name)

            def note(problem: str, rule: Rule = rule, failing: Callable[[bool], object] = failing) -> None:
                if self._rules.get(rule.name) is not rule:
                    return  # its last delivery took longer than it was waited for: another rule is at work, or none
                self._failures[rule.name] = problem
                failing(bool(problem))

            self._running[name] = Delivery(rule, self._client, delivered, note)
            self._running[name].start()
            log.info("rule at work", extra={"rule": name, "job": rule.job})

    def _end(self, deliveries: list[Delivery]) -> None:
        for each in deliveries:
            each.stop()
        for each in deliveries:
            each.join(_GRACE_S)
            del self._running[each.rule.name]
            self._failures.pop(each.rule.name, None)
            self._metrics.forget(each.rule.name)


_LOOK_S = 1.0  #: seconds between two looks at the file of rules


async def notify(file: Path, client: TrackerClient, metrics: str = "") -> None:
    """Deliver until SIGTERM or SIGINT; prints ``notifying by N rules`` when the rules are at work.

    A changed file is read within a second, or at once on SIGHUP.

    Args:
        metrics: ``HOST:PORT`` of `/metrics`, `/healthz` and `/readyz`; port 0 picks one; "": they are not served.

    Raises:
        RulesError: the file cannot be used.
        ValueError: `metrics` has a wrong form.
        CannotListenError: this process cannot listen there.
    """
    counts = NotifyMetrics()
    supervisor = Supervisor(file, client, counts)
    stop, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, again.set)

    def not_ready() -> str:
        problems = [f"rule {name}: {problem}" for name, problem in supervisor.failures.items()]
        return "; ".join([*([supervisor.wrong] if supervisor.wrong else []), *problems])

    async with AsyncExitStack() as stack:
        if metrics:
            url = await stack.enter_async_context(listening(application(counts.scrape, not_ready), metrics))
            print(f"metrics on {url}", flush=True)
        supervisor.start()
        print(f"notifying by {supervisor.rules} rules", flush=True)
        while not stop.is_set():
            waiting = [asyncio.create_task(each.wait()) for each in (stop, again)]
            await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            forced = again.is_set()
            again.clear()
            await asyncio.to_thread(supervisor.look, forced)
        log.info("stopping")
        await asyncio.to_thread(supervisor.stop)
