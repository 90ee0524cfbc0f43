"""What was measured: each figure with its spread, its floor, and the machine it was measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final

_LIBRARIES = ("substream-tracker", "numpy", "grpcio", "protobuf")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement, repeated.

    Args:
        what: was measured.
        unit: of the runs, and of the floor's.
        runs: one value for each repetition.
        floor: what the same would take, or reach, if nothing but the unavoidable were done; measured in between.
        floor_is: in words.
        note: how to read it.
    """

    what: str
    unit: str
    runs: Sequence[float]
    floor: Sequence[float]
    floor_is: str
    note: str = ""

    @property
    def ratio(self) -> float:
        """The median as a multiple of the floor's median."""
        return median(self.runs) / median(self.floor)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "what": self.what,
            "unit": self.unit,
            "median": median(self.runs),
            "min": min(self.runs),
            "max": max(self.runs),
            "runs": list(self.runs),
            "floor": median(self.floor),
            "floor_is": self.floor_is,
            "floor_runs": list(self.floor),
            "ratio": self.ratio,
            "note": self.note,
        }


HEADER: Final = ["WHAT", "MEDIAN", "MIN", "MAX", "UNIT", "FLOOR", "OF FLOOR", "THE FLOOR IS", "NOTE"]


def row(figure: Figure) -> list[str]:
    """A figure under the `HEADER`."""
    return [
        figure.what,
        _number(median(figure.runs)),
        _number(min(figure.runs)),
        _number(max(figure.runs)),
        figure.unit,
        _number(median(figure.floor)),
        f"{figure.ratio:.2f}",
        figure.floor_is,
        figure.note,
    ]


def _number(value: float) -> str:
    """Three digits that count.

    >>> _number(8_123_456), _number(45_600), _number(312.4)
    ('8.12 M', '45.6 k', '312')
    """
    for size, name in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"


def machine() -> dict[str, str]:
    """Where this runs, and with what."""
    described = {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()) + " (1, 5, 15 min, before the run)",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return described | {library: version(library) for library in _LIBRARIES}


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
