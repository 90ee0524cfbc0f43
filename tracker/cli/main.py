"""The command `tracker`: what it needs, and its exit statuses.

It must never import the server, its journal or its core before a command needs them: where only the client is
installed, they are missing.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable, Sequence

_REFUSED = 1
_WRONG_USAGE = 2
_UNREACHABLE = 3
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; None: this process's own.

    Returns:
        The exit status: 0 for success; 1 if the tracker refused; 2 if the command line is wrong; 3 if no tracker could
        be reached; 130 after Ctrl-C.
    """
    _open_outputs()
    try:
        from tracker.cli import app, declarations
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in ("rich", "typer"):
            raise
        print(f"tracker: needs {missing.name}: pip install 'substream-tracker[cli]'", file=sys.stderr)
        return _WRONG_USAGE
    try:
        status = app.run(arguments)
        sys.stdout.flush()
    except declarations.CommandLineError as wrong:
        return _print_error(declarations.describe(wrong), _WRONG_USAGE)
    except declarations.WrongUsageError as wrong:
        return _print_error(str(wrong), _WRONG_USAGE)
    except declarations.CommandFailedError as failed:
        return _print_error(str(failed), _REFUSED, failed.details)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        _close_output()
        return 0
    except UnicodeError:
        return _print_error("an argument is not UTF-8, as names at the tracker are", _WRONG_USAGE)
    except OSError as failed:
        if failed.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            return _of_a_call(failed)
        _close_output()
        return _print_error(f"the output cannot be written: {failed.strerror}", _REFUSED)
    except Exception as failed:
        return _of_a_call(failed)
    return status


def _open_outputs() -> None:
    """Let each name be printed: escaped where the output's encoding lacks a character, nowhere if it is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _close_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_a_call(failed: Exception) -> int:
    """Print why a call of the tracker has failed, and return the exit status."""
    from tracker.client import TrackerError, TrackerUnavailable

    if not isinstance(failed, TrackerError | TrackerUnavailable):
        raise failed
    return _print_error(str(failed), _REFUSED if isinstance(failed, TrackerError) else _UNREACHABLE)


def _print_error(message: str, status: int, details: Iterable[str] = ()) -> int:
    from tracker.cli.output import print_line

    for line in (f"tracker: {message}", *details):
        print_line(line, error=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
