"""The relay's connections to its tracker, which may be at one of several addresses.

Calls go to one address for as long as it answers, and then to the next. A call that fails is not repeated here: its
caller does that, and finds the tracker by itself if the relay does not.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor

from tracker.client.connection import channel_options
from tracker.client.credentials import Bearer, Credentials
from tracker.client.servers import Finder, alternatives

#: Milliseconds after which an address that accepts connections and does not answer is given up: its machine sleeps.
_CONNECTING: Final = ("grpc.min_reconnect_backoff_ms", 2_000)


class Upstream:
    """The tracker.

    Args:
        server: its address, or several joined by ``+``.
        credentials: what the relay shows.

    Raises:
        ValueError: `server` has another form.
        CredentialsError: a file of the credentials cannot be read.
    """

    def __init__(self, server: str, credentials: Credentials) -> None:
        self._server = server
        self._finder = Finder(alternatives(server))
        self._bearers = {address: Bearer(credentials, address) for address in self._finder.addresses}
        self._channels = {address: _channel(address, credentials, self._is_one) for address in self._finder.addresses}
        self._stubs: dict[tuple[str, str], Any] = {}
        self._stack = AsyncExitStack()

    @property
    def _is_one(self) -> bool:
        return len(self._finder.addresses) == 1

    async def __aenter__(self) -> Upstream:
        for channel in self._channels.values():
            await self._stack.enter_async_context(channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def address(self) -> str:
        """The address that is called now."""
        return self._finder.current

    def stub(self, service: str, method: MethodDescriptor) -> Any:
        """Return a call of the tracker's at the address of now, for bytes."""
        key = self.address, method.name
        if key not in self._stubs:
            self._stubs[key] = _stub(self._channels[self.address], service, method)
        return self._stubs[key]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that carry the relay's own token to the address of now.

        Raises:
            CredentialsError: the token cannot be read, or TLS is missing to send it.
        """
        return self._bearers[self.address].metadata()

    def check_token(self) -> None:
        """Read the token for each address.

        Raises:
            CredentialsError: as `metadata`.
        """
        for bearer in self._bearers.values():
            bearer.metadata()

    def failed(self, address: str, error: grpc.aio.AioRpcError) -> None:
        """Note how a call has failed that went to an address: the next ones go elsewhere if nobody serves there."""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._finder.failed(address)

    def missing(self) -> str:
        """Return why the tracker cannot be reached; "" if it can be, or that is not known yet.

        A channel that nobody has used yet has no connection. Asking makes it connect, so that the next answer is
        certain.
        """
        failing = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        states = [channel.get_state(try_to_connect=True) for channel in self._channels.values()]
        if all(state is failing for state in states):
            return f"the tracker at {self._server} cannot be reached; check that it is running"
        return ""


def _stub(channel: grpc.aio.Channel, service: str, method: MethodDescriptor) -> Any:
    path = f"/{service}/{method.name}"
    if not method.server_streaming:
        return channel.unary_unary(path, None, None)
    return (channel.stream_stream if method.client_streaming else channel.unary_stream)(path, None, None)


def _channel(address: str, credentials: Credentials, is_one: bool) -> grpc.aio.Channel:
    transport = credentials.transport(address)
    options = channel_options(address, watchful=not is_one)
    if not is_one:
        options.append(_CONNECTING)
    if transport is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, transport, options)
