"""Whether the relay can do its work now, and if not, why."""

from __future__ import annotations

import grpc
import grpc.aio


class Readiness:
    """Tells whether the relay serves and can reach the tracker.

    Args:
        server: the tracker's address.
        channel: to it.

    Attributes:
        serving: whether the relay accepts calls.
    """

    def __init__(self, server: str, channel: grpc.aio.Channel) -> None:
        self.serving = False
        self._server = server
        self._channel = channel

    def missing(self) -> str:
        """Return why the relay is not ready; "" if it is.

        A channel that nobody has used yet has no connection. Asking makes it connect, so that the next answer is
        certain.
        """
        if not self.serving:
            return "the relay is starting or stopping"
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return f"the tracker at {self._server} cannot be reached; check that it is running"
        return ""
