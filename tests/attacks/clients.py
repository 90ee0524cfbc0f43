"""The clients of a server under attack that has tokens: one prepares, one attacks and may have quotas, one is good."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import grpc

from tests.server.processes import Server
from tracker.client.connection import AuthorizingChannel
from tracker.client.credentials import Bearer, Credentials
from tracker.security.identities import entry, new_token
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

#: The attacker's quotas.
QUOTAS = """
[clients.attacker.quotas]
calls_per_second = 100
entries_per_second = 100_000
names_per_second = 1_000
open_substreams = 100_000
watchers = 20
"""
_places: dict[
    int, tuple[Path, Path | None]
] = {}  #: the tokens, and who signed its certificate, by the server's process


def write(directory: Path, quotas: bool) -> list[str]:
    """Write the tokens. Return the server's options for them."""
    entries = []
    for name in ("attacker", "preparer", "good"):
        token = new_token()
        (directory / f"{name}.token").write_text(token)
        entries.append(entry(name, token, ["admin"], ["*"]))
    (directory / "tokens.toml").write_text("\n".join(entries) + (QUOTAS if quotas else ""))
    return ["--tokens", str(directory / "tokens.toml")]


def use(server: Server, directory: Path | None, ca: Path | None = None) -> None:
    """Have what prepares an attack use its token, and what attacks its own; over TLS, if an authority is named."""
    if directory is None:
        _places.pop(server.pid, None)
        return
    _places[server.pid] = directory, ca
    server.channel.close()
    server.channel = open_channel(server, "preparer")
    server.stub = TrackerStub(server.channel)


def credentials(server: Server, name: str) -> Credentials:
    """Return the credentials of a client of this server."""
    if server.pid not in _places:
        return Credentials()
    directory, ca = _places[server.pid]
    return Credentials(ca=str(ca) if ca else None, token_file=str(directory / f"{name}.token"))


def open_channel(server: Server, name: str) -> grpc.Channel:
    """Open a client's channel of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    shown = credentials(server, name)
    transport = shown.transport(server.address)
    if transport is None:
        channel = grpc.insecure_channel(server.address, options)
    else:
        channel = grpc.secure_channel(server.address, transport, options)
    return cast(grpc.Channel, AuthorizingChannel(channel, Bearer(shown, server.address)))
