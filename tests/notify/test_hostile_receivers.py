"""Receivers that answer too much, too slowly or nothing: a rule fails in time, and takes no memory for it."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.notify.receivers import receiving
from tracker.notify.delivery import DeliveryError, WebhookSender
from tracker.notify.rules import Webhook

ZEROS = gzip.compress(bytes(60 << 20))  # 60 KiB of them


def sender(port: int, scheme: str = "http") -> WebhookSender:
    return WebhookSender(Webhook(f"{scheme}://127.0.0.1:{port}/ends", timeout=1.0))


def dribbles(text: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(text)
        while True:
            connection.sendall(b"1")
            time.sleep(0.05)

    return answer


def endless(text: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(text)
        while True:
            connection.sendall(b"1" * 1_000_000)

    return answer


def refused(answer: Callable[[socket.socket], None], scheme: str = "http") -> str:
    """Return why nothing was delivered to a receiver that answers so."""
    taken = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                # All of the request: else the end is a reset, which overtakes the answer.
                while scheme == "http" and not taken.endswith(b"{}"):
                    taken.extend(connection.recv(1 << 16))
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        sending = sender(server.getsockname()[1], scheme)
        with pytest.raises(DeliveryError) as failed:
            sending.send("msg_1", b"{}")
        sending.close()
        thread.join()
        return str(failed.value)


@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b"HTTP/1.1 "],
)
def test_an_answer_that_dribbles_does_not_outlive_the_timeout(text: bytes) -> None:
    assert "no whole answer in 1 s" in refused(dribbles(text))


def test_a_handshake_that_dribbles_does_not_outlive_the_timeout() -> None:
    assert "no whole answer in 1 s" in refused(dribbles(b"\x16\x03\x03\x40\x00"), "https")


def test_a_head_without_end_is_not_read_to_its_end() -> None:
    assert refused(endless(b"HTTP/1.1 200 OK\r\nx: "))


@pytest.mark.parametrize("body", [ZEROS, bytes(4 << 20)], ids=["compressed", "large"])
def test_the_body_of_an_answer_takes_no_memory_and_its_status_counts(body: bytes) -> None:
    head = b"HTTP/1.1 %d x\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
    tracemalloc.start()
    assert "answered 500 x" in refused(lambda connection: connection.sendall(head % (500, len(body)) + body))
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()
    with receiving() as receiver:
        sending = sender(receiver.port)
        sending.send("msg_1", b"{}")
        assert "accept-encoding" not in receiver.received[0].headers
        sending.close()


def test_a_connection_is_kept_and_replaced_when_it_was_closed() -> None:
    with receiving() as receiver:
        sending = sender(receiver.port)
        receiver.answers = [(204, {}), (204, {"connection": "close"}), (204, {})]
        for number in range(4):
            sending.send(f"msg_{number}", b"{}")
        assert [each.headers["webhook-id"] for each in receiver.received] == [f"msg_{number}" for number in range(4)]
        sending.close()
