"""The shipped rules with every time shortened by one factor, so that alerts fire within a test.

A time is what `for` has, the range of a selector, and a threshold of a minute or more on a metric in seconds. Shorter
thresholds, such as that of a slow sync, are what they are: a test makes a disk as slow as that.
"""

from __future__ import annotations

import re
from collections.abc import Callable

FACTOR = 30  #: a minute becomes two seconds

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONG = 60  # seconds
_TIME = re.compile(
    r"(?P<before>for: |\[)(?P<number>\d+)(?P<unit>[smhd])\b|(?P<metric>_seconds > )(?P<threshold>\d+)\b(?!\.)"
)


def each_time(rules: str, write: Callable[[int], str]) -> str:
    """Return the rules with each of their times written anew.

    >>> each_time("for: 5m", lambda seconds: f"{seconds}s")
    'for: 300s'
    >>> each_time("expr: increase(a_total[2m]) > 0 or b_seconds > 900 or c_seconds > 5", lambda seconds: "TIME")
    'expr: increase(a_total[TIME]) > 0 or b_seconds > TIME or c_seconds > 5'
    """

    def written(found: re.Match[str]) -> str:
        if found["unit"]:
            return found["before"] + write(int(found["number"]) * _UNITS[found["unit"]])
        seconds = int(found["threshold"])
        return found[0] if seconds < _LONG else found["metric"] + write(seconds).removesuffix("s")

    return _TIME.sub(written, rules)


def quick(rules: str) -> str:
    """Return the rules with each of their times divided by `FACTOR`.

    >>> quick("for: 5m"), quick("rate(a_total[1m])"), quick("a_seconds > 900")
    ('for: 10s', 'rate(a_total[2s])', 'a_seconds > 30')
    """

    def write(seconds: int) -> str:
        assert seconds % FACTOR == 0, f"{seconds} s is not a multiple of {FACTOR} s"
        return f"{seconds // FACTOR}s"

    return each_time(rules, write)
