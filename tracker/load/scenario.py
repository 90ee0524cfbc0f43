"""The settings of a load test, from a TOML file. Settings that cannot work are refused, with what to change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Arrival: TypeAlias = Literal["poisson", "constant"]

_MOST_REPORTS: Final = 20_000_000  #: the most reports of a run: their times are kept in memory
_MOST_ENDS: Final = 50_000_000  #: the most ends of a run, for the same reason
_MOST_CLOSES: Final = 100_000  #: the most open substreams of a producer: so many promises may be due in one report


class ScenarioError(ValueError):
    """A scenario cannot be run; the message names the change that helps."""


@dataclass(frozen=True, slots=True)
class _Range:
    """The range of a field's numbers."""

    low: float
    high: float
    whole: bool

    def fault(self, value: object) -> str | None:
        kinds = (int,) if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
            return (
                f"must be a {'whole ' if self.whole else ''}number from {self.low:,g} to {self.high:,g}, not {value!r}"
            )
        return None


def _whole(default: int, low: int, high: int) -> int:
    number: int = field(default=default, metadata={"range": _Range(low, high, whole=True)})
    return number


def _number(default: float, low: float, high: float) -> float:
    number: float = field(default=default, metadata={"range": _Range(low, high, whole=False)})
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """The deliberate failures; by default none."""

    repeat: float = _number(0.0, 0, 1)  #: share of the reports that are sent again after they were answered
    takeover: float = _number(0.0, 0, 1)  #: share of the reports at which a new run takes over from one that continues
    kill_producers_every: float = _number(0.0, 0, 86_400)  #: seconds between kills of a producer process; 0: none
    kill_server_every: float = _number(0.0, 0, 86_400)  #: seconds between kills of the server; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A load test. `docs/howto/load.md` explains how each number affects the traffic.

    Raises:
        ScenarioError: the numbers do not fit together.

    >>> Scenario(rate=50, open=200, lifetime=2).in_flight
    0.2
    """

    description: str = ""
    rate: float = _number(100.0, 0.1, 100_000)  #: reports a second, all producers together
    arrival: Arrival = "poisson"
    warm_up: float = _number(2.0, 0, 3_600)  #: seconds that are not measured, at the beginning
    duration: float = _number(10.0, 1, 7 * 86_400)  #: seconds that are measured
    processes: int = _whole(2, 1, 64)  #: among which the producers are divided
    producers: int = _whole(8, 1, 1_000)
    segments: int = _whole(2, 1, 20)  #: in a chain
    hop: float = _number(0.1, 0, 60)  #: seconds an element spends on a segment
    entries: int = _whole(20, 1, 10_000)  #: how often a report sends elements to some substream
    elements: int = _whole(10, 1, 100_000)  #: how many, each time
    open: int = _whole(1_000, 1, 10_000_000)  #: substreams that are open at the same time
    lifetime: float = _number(5.0, 0.01, 86_400)  #: seconds from a substream's first report to its promise
    scopes: int = _whole(10, 1, 100_000)
    skew: float = _number(0.0, 0, 5)  #: exponent of the Zipf law by which substreams are chosen; 0: all equally likely
    retention: float = _number(600.0, 1, 7 * 86_400)  #: seconds that the tracker keeps what has ended
    patience: float = _number(60.0, 1, 3_600)  #: seconds after the plan's end, and without any answer, before it fails
    seed: int = _whole(1, 0, 2**32 - 1)
    failures: Failures = field(default_factory=Failures)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ScenarioError(problem)

    @property
    def wind_down(self) -> float:
        """The seconds at the end in which the substreams that are still open are closed, evenly."""
        return min(self.lifetime, 10.0)

    @property
    def in_flight(self) -> float:
        """The seconds that an element travels over all segments."""
        return self.segments * self.hop

    @property
    def seconds(self) -> float:
        """The approximate length of the plan, in seconds."""
        return self.warm_up + self.duration + self.wind_down + self.in_flight

    def _problems(self) -> Iterator[str]:
        if self.processes > self.producers:
            yield f"{self.processes} processes for {self.producers} producers: give each process one or more"
        if self.lifetime < 2 * self.in_flight:
            yield (
                f"a lifetime of {self.lifetime:g} s is too short for elements that travel {self.in_flight:g} s "
                f"({self.segments} segments, a hop of {self.hop:g} s): make lifetime at least {2 * self.in_flight:g}"
            )
        if self.open > _MOST_CLOSES * self.producers:
            yield (
                f"{self.open:,} open substreams for {self.producers} producers: a producer closes at most "
                f"{_MOST_CLOSES:,}, so have {-(-self.open // _MOST_CLOSES)} producers or more"
            )
        if self.rate * self.seconds > _MOST_REPORTS:
            yield (
                f"{self.rate * self.seconds:,.0f} reports in one run: at most {_MOST_REPORTS:,}, "
                "so lower rate or duration"
            )
        ends = self.open * (self.seconds / self.lifetime + 2) * self.segments
        if ends > _MOST_ENDS:
            yield (
                f"{ends:,.0f} ends in one run: at most {_MOST_ENDS:,}, so lower open, segments or duration, or "
                "lengthen lifetime"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in the form that `read` accepts."""
        return asdict(self)


def read(settings: Mapping[str, Any]) -> Scenario:
    """Make a scenario from the content of a TOML file.

    Args:
        settings: the settings by name; missing ones have their defaults.

    Raises:
        ScenarioError: a setting does not exist, or its value is out of range.

    >>> read({"rate": 50, "failures": {"repeat": 0.1}}).failures.repeat
    0.1
    >>> read({"ratee": 50})
    Traceback (most recent call last):
    tracker.load.scenario.ScenarioError: there is no 'ratee'; did you mean 'rate'?
    """
    known = dict(settings)
    failures = known.pop("failures", {})
    if not isinstance(failures, Mapping):
        raise ScenarioError(f"failures is a table: write [failures] and its settings below it, not {failures!r}")
    _check(Failures, failures, "failures.")
    _check(Scenario, known, "")
    return Scenario(**known, failures=Failures(**failures))


def _check(kind: type[Scenario | Failures], settings: Mapping[str, Any], prefix: str) -> None:
    known = {one.name: one for one in fields(kind)}
    for name, value in settings.items():
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean '{prefix}{close[0]}'?" if close else f"there are {', '.join(known)}"
            raise ScenarioError(f"there is no '{prefix}{name}'; {hint}")
        if name == "description":
            fault = None if isinstance(value, str) else f"must be a text, not {value!r}"
        elif name == "arrival":
            kinds = get_args(Arrival)
            fault = None if value in kinds else f"must be one of {', '.join(map(repr, kinds))}, not {value!r}"
        else:
            fault = known[name].metadata["range"].fault(value)
        if fault:
            raise ScenarioError(f"{prefix}{name} {fault}")


def shipped() -> dict[str, str]:
    """Return the texts of the scenarios that come with the tracker, by name."""
    found = (files("tracker.load") / "scenarios").iterdir()
    return {file.name.removesuffix(".toml"): file.read_text() for file in found if file.name.endswith(".toml")}


def find(named: str) -> dict[str, Any]:
    """Read the settings of a shipped scenario or of a file.

    Args:
        named: the name of a shipped scenario, or the path of a TOML file.

    Raises:
        ScenarioError: there is no such scenario or file, or its content is not valid TOML.
    """
    path = Path(named)
    known = shipped()
    try:
        text = known[named] if named in known else path.read_text()
    except OSError as error:
        names = ", ".join(sorted(known))
        raise ScenarioError(
            f"{named}: {error.strerror}; name a TOML file, or one of the shipped scenarios: {names}"
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{named} is not TOML: {error}") from None
