"""A channel whose calls carry the client's token."""

from __future__ import annotations

from typing import Any

import grpc

from tracker.client.credentials import Bearer


class AuthorizingChannel:
    """Makes the calls of a channel, each with the token as it is then.

    It has what stubs and this package use of a channel. gRPC's own credentials of calls need TLS, and tokens are used
    without it on loopback; its interceptors change how calls behave that are cancelled.

    Args:
        channel: gRPC's.
        bearer: the token.
    """

    def __init__(self, channel: grpc.Channel, bearer: Bearer) -> None:
        self._channel = channel
        self._bearer = bearer

    def unary_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Returns a call like that of `grpc.Channel`."""
        return _Call(self._channel.unary_unary(method, *arguments, **named), self._bearer)

    def unary_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Returns a call like that of `grpc.Channel`."""
        return _Call(self._channel.unary_stream(method, *arguments, **named), self._bearer)

    def stream_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Returns a call like that of `grpc.Channel`."""
        return _Call(self._channel.stream_stream(method, *arguments, **named), self._bearer)

    def close(self) -> None:
        """Closes gRPC's channel."""
        self._channel.close()


class _Call:
    def __init__(self, call: Any, bearer: Bearer) -> None:
        self._call = call
        self._bearer = bearer

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = (), **named: Any) -> Any:
        return self._call(request, timeout=timeout, metadata=(*metadata, *self._bearer.metadata()), **named)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = (), **named: Any) -> Any:
        return self._call.future(request, timeout=timeout, metadata=(*metadata, *self._bearer.metadata()), **named)
