"""The clients of a server under attack that has tokens: one prepares, one attacks and has quotas, one is good."""

from __future__ import annotations

from pathlib import Path

from tests.server.processes import Server
from tracker.client.authorizing import AuthorizingChannel
from tracker.client.credentials import Bearer, Credentials
from tracker.security.minting import entry, new_token
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

#: What the attacker may ask for.
QUOTAS = """
[clients.attacker.quotas]
calls_per_second = 100
entries_per_second = 100_000
names_per_second = 1_000
open_substreams = 100_000
watchers = 20
"""
_directories: dict[int, Path] = {}  #: by the server's process


def write(directory: Path) -> list[str]:
    """Writes the tokens; the server's options for them."""
    entries = []
    for name in ("attacker", "preparer", "good"):
        token = new_token()
        (directory / f"{name}.token").write_text(token)
        entries.append(entry(name, token, ["admin"], ["*"]))
    (directory / "tokens.toml").write_text("\n".join(entries) + QUOTAS)
    return ["--tokens", str(directory / "tokens.toml")]


def use(server: Server, directory: Path | None) -> None:
    """Has what prepares an attack use its token, and what attacks its own."""
    if directory is None:
        _directories.pop(server.pid, None)
        return
    _directories[server.pid] = directory
    token = token_of(server, "preparer")
    assert token is not None
    channel = AuthorizingChannel(server.channel, token)
    server.stub = TrackerStub(channel)  # type: ignore[arg-type]
    server.channel = channel  # type: ignore[assignment]


def token_of(server: Server, name: str) -> Bearer | None:
    """A client's token; None if the server asks for none."""
    directory = _directories.get(server.pid)
    if directory is None:
        return None
    return Bearer(Credentials(token_file=str(directory / f"{name}.token")), server.address)
