"""Measured figures, each with its spread and its floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, TypeAlias

#: Values are in these; `written` scales them for print, as people write them.
Unit: TypeAlias = Literal["s", "/s", "bytes", ""]

_SCALES: Final = {
    "s": [(1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")],
    "/s": [(1e6, " M/s"), (1e3, " k/s"), (1.0, "/s")],
    "bytes": [(2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " bytes")],
    "": [(1.0, "")],
}


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
    unit: Unit
    runs: Sequence[float]
    floor: Sequence[float]
    floor_is: str
    note: str = ""

    @property
    def ratio(self) -> float:
        """The median as a multiple of the floor's median."""
        return median(self.runs) / median(self.floor)

    def as_dict(self) -> dict[str, object]:
        """Return the fields for JSON."""
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


HEADER: Final = ["WHAT", "MEDIAN", "LEAST", "MOST", "FLOOR", "OF FLOOR", "THE FLOOR IS", "NOTE"]


def row(figure: Figure) -> list[str]:
    """Return a figure under the `HEADER`."""
    values = [median(figure.runs), min(figure.runs), max(figure.runs), median(figure.floor)]
    shown = [written(value, figure.unit) for value in values]
    return [figure.what, *shown, f"{figure.ratio:.2f}", figure.floor_is, figure.note]


def written(value: float, unit: Unit) -> str:
    """Return a value with its unit, to three digits, in the largest unit of which it is at least one.

    >>> written(0.0068, "s"), written(0.00012, "s"), written(5.01e-6, "s"), written(0.0, "s")
    ('6.8 ms', '120 µs', '5.01 µs', '0 ns')
    >>> written(4_100_000, "/s"), written(504_321, "/s"), written(91.2, "/s")
    ('4.1 M/s', '504 k/s', '91.2/s')
    >>> written(285, "bytes"), written(69.9 * 2**20, "bytes")
    ('285 bytes', '69.9 MiB')
    >>> written(9.2, ""), written(5_321, "s")
    ('9.2', '5,321 s')

    A value that rounding makes a whole larger unit is written in that one.

    >>> written(0.0009996, "s"), written(999_700, "/s")
    ('1 ms', '1 M/s')
    """
    scales = _SCALES[unit]
    rounded = float(f"{value:.3g}")
    size, name = next((each for each in scales if rounded >= each[0]), scales[-1])
    scaled = value / size
    return f"{scaled:,.0f}{name}" if scaled >= 999.5 else f"{scaled:.3g}{name}"
