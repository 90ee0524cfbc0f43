"""The command `tracker`: which subcommands there are, and how each of them fails.

It must never import the server, the core or numpy's users before the command that needs them was asked for: a
client-only installation has no server, and `tracker jobs` should answer at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

DISTRIBUTION = "substream-tracker"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the command line without the program's name; None: this process's own.

    Returns:
        The exit code: 0; 1 for what the tracker refused; 2 for a command line that says nothing; 3 when no tracker
        could be reached.
    """
    parser = _parser()
    parsed = parser.parse_args(arguments)
    run: int = parsed.run(parsed)
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tracker", description="Knows exactly when a substream has ended.")
    parser.add_argument("--version", action="version", version=f"tracker {version(DISTRIBUTION)}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`serve` lives with the server's dependencies: without them the command exists and says what to install."""
    try:
        from tracker.cli import serve
    except ModuleNotFoundError as missing:
        parser = commands.add_parser("serve", help="run a tracker (needs the extra `server`)")
        name = missing.name

        def explain(_: argparse.Namespace) -> int:
            print(f"tracker: `serve` needs {name}: pip install '{DISTRIBUTION}[server]'", file=sys.stderr)
            return 2

        parser.set_defaults(run=explain)
        return
    parser = commands.add_parser("serve", help="run a tracker", description=serve.__doc__)
    serve.add_arguments(parser)
    parser.set_defaults(run=serve.run)


if __name__ == "__main__":
    sys.exit(main())
