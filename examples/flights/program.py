"""A demonstration of the flights as a program: its arguments, its files, its exit status.

The exit status is 0 if the released table is exact, 1 if not, 2 if the demonstration could not run.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

from examples.flights.agent import TrackerDiedError
from examples.flights.progress import Progress
from examples.flights.replay import DataMissingError
from examples.flights.spark import JavaMissingError
from examples.flights.year import Part
from examples.services.redis import RedisMissingError

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts" / "flights"

_Result = TypeVar("_Result")


def parser(name: str, description: str | None, default: Part, artifacts: Path) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all have.

    Args:
        name: the program's, as Python runs it: `examples.flights.demo`.
        description: its help.
        default: the part of the year that it replays.
        artifacts: the directory for what is kept.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--first-day", default=default.first_day, metavar="DATE", help=f"default {default.first_day}")
    parser.add_argument("--days", type=int, default=default.days, help=f"default {default.days}")
    parser.add_argument("--artifacts", type=Path, default=artifacts, help=f"default {artifacts}")
    return parser


def carry_out(
    run: Callable[[Path, Progress], _Result], artifacts: Path, conclude: Callable[[_Result], tuple[str, bool]]
) -> int:
    """Run, and conclude; whatever goes wrong on the way is cleaned up, and named if a user can mend it.

    Args:
        run: does it, with files below a directory that is removed afterwards.
        artifacts: the directory for what is kept. It is emptied first.
        conclude: what a reader wants to know of the result, and whether it is exact.

    Returns:
        the exit status.
    """
    signal.signal(signal.SIGTERM, _terminate)
    progress = Progress()
    try:
        shutil.rmtree(artifacts, ignore_errors=True)
        artifacts.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as directory:
            result = run(Path(directory), progress)
    except (DataMissingError, JavaMissingError, RedisMissingError, TrackerDiedError, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2
    progress.say("replayed")
    text, exact = conclude(result)
    print(text)
    (artifacts / "outcome.txt").write_text(text)
    if exact:
        print("exact: the released table is what a batch computation over the same rows gives")
        return 0
    print("NOT EXACT: the released table is not what it has to be", file=sys.stderr)
    return 1


def _terminate(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that everything is stopped and removed on the way out
