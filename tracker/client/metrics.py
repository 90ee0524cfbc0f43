"""A client's metrics, for programs that have prometheus-client and a registry of their own.

The client itself does without that library: this module imports it only when a registry is given, so that executors and
small programs need not have it. No label names a job, so the number of series does not grow with what is tracked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import grpc

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ClientMetrics:
    """Metrics that the clients of one registry share.

    Args:
        registry: where the metrics are registered. A registry takes them once: `ClientMetrics.of` returns those that it
            has already.

    Raises:
        ImportError: prometheus-client is not installed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            from prometheus_client import Counter, Histogram
        except ImportError as error:
            raise ImportError(
                "metrics need prometheus-client: pip install 'substream-tracker[metrics]', or give no metrics="
            ) from error
        self._calls = Histogram(
            "tracker_client_call_seconds",
            "Time from an attempt of a call to its end, by method and code; watches and waits are left out.",
            ("method", "code"),
            registry=registry,
            buckets=_SECONDS,
        )
        self._reports = Counter(
            "tracker_client_reports",
            "Reports that were answered, by outcome, and by the way they took: over a relay, or to the tracker.",
            ("outcome", "over"),
            registry=registry,
        )

    @staticmethod
    def of(registry: CollectorRegistry) -> ClientMetrics:
        """Return the metrics of a registry; the first call registers them.

        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> ClientMetrics.of(registry) is ClientMetrics.of(registry)
        True
        """
        with _lock:
            metrics = _by_registry.get(registry)
            if metrics is None:
                metrics = _by_registry[registry] = ClientMetrics(registry)
            return metrics

    @contextmanager
    def attempt(self, method: str) -> Iterator[None]:
        """Count an attempt of a call, which is made while the context lasts."""
        started, code = time.monotonic(), grpc.StatusCode.OK
        try:
            yield
        except grpc.RpcError as error:
            code = error.code()
            raise
        finally:
            self._calls.labels(method, code.name).observe(time.monotonic() - started)

    def reported(self, outcome: str, over: str) -> None:
        """Count a report that was answered.

        Args:
            outcome: what the tracker has done with it.
            over: ``relay`` or ``tracker``.
        """
        self._reports.labels(outcome.lower(), over).inc()


_lock = threading.Lock()
_by_registry: WeakKeyDictionary[CollectorRegistry, ClientMetrics] = WeakKeyDictionary()
