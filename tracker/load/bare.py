"""A gRPC server that does nothing. It shows the cost of a message without any work on its content.

Run as a process (`python -m tracker.load.bare`), it prints `listening on HOST:PORT`. It receives reports as raw bytes
and answers each with the same few bytes. It sends its watchers every message that it gets by `Notify`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from tracker.wire.gen import tracker_pb2

_APPLIED: Final = tracker_pb2.ReportResponse(outcome=tracker_pb2.ReportResponse.APPLIED).SerializeToString()


class _Nothing(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[bytes]] = set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        match handler_call_details.method.rpartition("/")[2]:
            case "Report":
                return grpc.unary_unary_rpc_method_handler(self._report)
            case "ReportStream":
                return grpc.stream_stream_rpc_method_handler(self._report_stream)
            case "Notify":
                return grpc.unary_unary_rpc_method_handler(self._notify)
            case "Watch":
                return grpc.unary_stream_rpc_method_handler(self._watch)
            case _:
                return None

    async def _report(self, _request: bytes, _context: object) -> bytes:
        return _APPLIED

    async def _report_stream(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield _APPLIED

    async def _notify(self, request: bytes, _context: object) -> bytes:
        for watcher in self._watchers:
            watcher.put_nowait(request)
        return _APPLIED

    async def _watch(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield b"ready"
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)


async def _serve() -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers([_Nothing()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
