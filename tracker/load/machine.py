"""Describes the machine and the versions with which something was measured: without them, a figure means little."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

_LIBRARIES = ("substream-tracker", "numpy", "grpcio", "protobuf")


def machine() -> dict[str, str]:
    """Return the machine, its load, and the versions of the software, by name."""
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
