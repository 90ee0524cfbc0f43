"""The packages that each command needs, and its output where one is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

_TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"
_COMMANDS = [("load", ["load", "smoke", "--start"], _TOML)]
if sys.version_info >= (3, 11):  # before, no extra makes a server run
    _COMMANDS.append(("server", ["serve"], "msgpack"))
    _COMMANDS.append(("fast", ["serve", "--compiled"], "llvmlite"))


def run(command: list[str], missing: str) -> subprocess.CompletedProcess[str]:
    """Run a command as where a package is missing."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None\nfrom tracker.cli.main import main\nsys.exit(main({command!r}))"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("extra", "command", "missing"), _COMMANDS)
def test_a_command_names_the_extra_that_is_missing(extra: str, command: list[str], missing: str) -> None:
    ran = run(command, missing)
    assert ran.returncode == 2
    assert f"needs {missing}: pip install 'substream-tracker[{extra}]'" in ran.stderr


def test_without_the_extra_one_sentence_names_it() -> None:
    ran = run(["jobs"], "typer")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "tracker: needs typer: pip install 'substream-tracker[cli]'\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_loads_no_client(arguments: list[str]) -> None:
    """It is there at once: the client takes longer to load than everything else of the command line."""
    program = (
        "import sys\nfrom tracker.cli.main import main\n"
        f"main({arguments!r})\nprint(*{{'grpc', 'numpy', 'rich'}} & set(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout
    assert ran.stderr == "\n"
