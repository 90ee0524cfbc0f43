"""The process that answers a call: the client keeps that to itself, so its attempts are observed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tracker.client.calls import Calls


@dataclass(slots=True)
class Observed:
    """An attempt that was answered."""

    by: str = ""  #: the process, as PLACE.START; empty: unknown


class Answering:
    """Notes for each call which process has answered it.

    Args:
        process: returns the process that listens behind an address now, or an empty text.
    """

    def __init__(self, process: Callable[[str], str]) -> None:
        self._process = process
        self._local = threading.local()

    @contextmanager
    def observed(self) -> Iterator[Observed]:
        """Observe the last attempt of the calls that this thread makes."""
        self._local.observed = Observed()
        yield self._local.observed

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe the attempts of all clients of this process."""
        answer: Any = Calls._answer

        def observing(calls: Calls, address: str, *more: Any) -> Any:
            before = self._process(address)
            result = answer(calls, address, *more)
            observed = getattr(self._local, "observed", None)
            if observed is not None:  # one that started meanwhile may or may not have answered
                observed.by = before if before == self._process(address) else ""
            return result

        Calls._answer = observing  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Calls._answer = answer  # type: ignore[method-assign]
