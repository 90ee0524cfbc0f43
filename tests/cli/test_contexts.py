"""Named servers: kept in a file, chosen by name, checked with the line of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.client.processes import Server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tracker" / "config.toml"


@pytest.fixture
def alone(file: Path) -> Shell:
    """Return a shell whose only knowledge of servers is that file."""
    shell = Shell("")
    del shell.environment["TRACKER_SERVER"], shell.environment["TRACKER_CONFIG"]
    shell.environment["XDG_CONFIG_HOME"] = str(file.parent.parent)
    return shell


def test_the_first_context_is_current_and_commands_use_it(alone: Shell, shared_server: Server) -> None:
    alone("context", "set", "here", "--server", shared_server.address)
    alone("context", "set", "nowhere", "--server", "127.0.0.1:1")
    assert f"server   {shared_server.address}" in alone("info")

    assert json.loads(alone("context", "list", "--json"))["current"] == "here"
    assert "127.0.0.1:1" in alone("info", "--context", "nowhere", "--retry-for", "0", status=3)
    alone("context", "use", "nowhere")
    assert "127.0.0.1:1" in alone("--retry-for", "0", "info", status=3)


def test_a_server_that_is_given_goes_before_the_current_context(alone: Shell, shared_server: Server) -> None:
    alone("context", "set", "nowhere", "--server", "127.0.0.1:1")
    assert shared_server.address in alone("info", "--server", shared_server.address)
    alone.environment["TRACKER_SERVER"] = shared_server.address
    assert shared_server.address in alone("info")
    assert "127.0.0.1:1" in alone(
        "info", "--context", "nowhere", "--server", "127.0.0.1:1", "--retry-for", "0", status=3
    )


def test_a_context_is_changed_key_by_key_and_comments_stay(alone: Shell, file: Path) -> None:
    file.parent.mkdir()
    file.write_text('# ours\n[contexts.a]\nserver = "x:1"  # the old one\nsharded = "scope"\n')
    alone("context", "set", "a", "--sharded", "", "--tls-ca", "ca.pem", "--token-file", "~/token")
    assert "# the old one" in file.read_text()
    shown = json.loads(alone("context", "show", "a", "--json"))
    assert (shown["server"], shown["sharded"], shown["tls_ca"]) == ("x:1", None, str(file.parent / "ca.pem"))
    assert shown["token_file"] == str(Path("~/token").expanduser())
    alone("context", "remove", "a")
    assert "no contexts" in alone("context", "list")


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("current = \n", 1, "correct it, or delete the file"),
        ('current = "b"\n[contexts.a]\nserver = "x:1"\n', 1, "there is no context 'b'"),
        ('[contexts.a]\nserver = "x:1"\nservre = "x:2"\n', 3, "'servre' is not known here"),
        ('[contexts.a]\nserver = "x:1"\n\n[contexts.b]\nserver = 7\n', 5, "server must be a text in quotation marks"),
        ('[contexts.a]\nserver = "x:1"\ntoken = "trk_1"\n', 3, "token does not belong here"),
        ('[contexts.a]\nsharded = "none"\n', 1, "a context needs a server"),
        ('[contexts.a]\nserver = "x:1"\nsharded = "all"\n', 3, "sharded must be one of none, scope, global"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(
    alone: Shell, file: Path, text: str, line: int, told: str
) -> None:
    file.parent.mkdir()
    file.write_text(text)
    refused = alone("jobs", status=2)
    assert f"{file}, line {line}: " in refused
    assert told in refused
    assert "trk_1" not in refused
    assert alone("serve", "--help")  # what needs no context works


def test_mistakes_get_what_to_do(alone: Shell) -> None:
    assert "`tracker context set a --server HOST:PORT` adds it" in alone("context", "use", "a", status=2)
    assert "needs --server" in alone("context", "set", "a", status=2)
    assert "cannot be a context's name" in alone("context", "set", "a b", "--server", "x:1", status=2)
    assert "no current context" in alone("context", "show", status=2)
