"""An engine: it gets a workload step by step, and hands out results with the step in which each came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.exactness.judge import Emitted
from benchmarks.exactness.workload import Workload

Show = Callable[[str], None]  #: shows how far a run is


class UnavailableError(Exception):
    """An engine cannot run here; the message states what to do."""


@dataclass
class Run:
    """Outcome of a query on a workload.

    Attributes:
        emitted: its results.
        aside: late rows that the engine has kept and can hand out; None: it keeps none.
    """

    emitted: list[Emitted] = field(default_factory=list)
    aside: int | None = None


class Engine(Protocol):
    """One way of running the queries."""

    @property
    def name(self) -> str:
        """As the table has it."""
        ...

    @property
    def configured(self) -> str:
        """With what, in the words of its documentation."""
        ...

    @property
    def queries(self) -> Sequence[str]:
        """Those that it can run."""
        ...

    def run(self, workload: Workload, queries: Sequence[str], directory: Path, show: Show) -> Mapping[str, Run]:
        """Let queries process a workload.

        Args:
            workload: the rows.
            queries: of `queries`.
            directory: for its files; it exists and is empty.
            show: is called with each step.

        Raises:
            UnavailableError: it cannot run here.
        """
        ...
