"""What a command needs beyond the command line itself: an extra of the package, or a newer Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tracker.cli.declaring import WrongUsageError


@contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Import in the body what only this command needs: whoever lacks it is told what to install.

    Args:
        command: its name, such as ``serve``.
        extra: the extra of the package that has it.

    Raises:
        WrongUsageError: a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise WrongUsageError(
            f"`tracker {command}` needs {missing.name}: pip install 'substream-tracker[{extra}]'"
        ) from missing


def need_server_python(command: str) -> None:
    """Refuse a command that runs a server in this process on a Python that is too old for it.

    Raises:
        WrongUsageError: this Python is older than 3.11.
    """
    if sys.version_info < (3, 11):
        running = sys.version.partition(" ")[0]
        raise WrongUsageError(f"`tracker {command}` needs Python 3.11 or newer, and this is {running}; clients do not")
