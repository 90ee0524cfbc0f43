"""Connections that cost others nothing: silent ones, halves of requests, bodies that dribble, answers nobody reads."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.security.authority import Authority
from tracker.web.listening import Connections, application, listening

from .test_application import scrape

HALVES = {
    "silent": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ",
    "half a body": b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\nx",
    "an idle one": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a large answer": b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n",
}
SHORT = {"request_s": 0.5, "keep_alive_s": 0.5, "unread_s": 0.5}


async def large(_: Request) -> Response:
    return PlainTextResponse("x" * (64 << 20))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("tracker"))
    return context


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


def status(url: str, path: str = "/healthz") -> int:
    """Return the status of an answer, on a connection of its own."""
    with socket.create_connection(address_of(url), timeout=30) as plain, ExitStack() as stack:
        connection: socket.socket = plain
        if url.startswith("https"):
            connection = stack.enter_context(unverified().wrap_socket(plain))
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        return int(connection.recv(100).split()[1])


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def opened(url: str, stack: ExitStack, count: int, data: bytes, source: str = "") -> Iterator[socket.socket]:
    for _ in range(count):
        connection = stack.enter_context(
            closing(socket.create_connection(address_of(url), 30, (source, 0) if source else None))
        )
        connection.sendall(data)
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server has closed a connection, whatever it sends; the test's timeout ends what never does."""
    connection.settimeout(30)
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("what", ["silent", "half a head"])
def test_more_connections_than_there_may_be_keep_nobody_from_an_answer(
    tls: ssl.SSLContext, what: str, with_tls: bool
) -> None:
    async def main() -> None:
        ready = application(scrape, lambda: "it recovers", [Route("/large", large)])
        bounds = Connections(most=60, most_of_peer=40)
        async with listening(ready, "127.0.0.1:0", tls if with_tls else None, bounds) as url:

            def attack() -> None:
                with ExitStack() as stack:
                    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
                        list(opened(url, stack, 100, HALVES[what], source))
                    assert [status(url), status(url, "/readyz")] == [200, 503]

            await asyncio.to_thread(attack)
            assert len(bounds) <= 60

    asyncio.run(main())


@pytest.mark.parametrize("what", HALVES)
def test_what_a_peer_does_not_finish_is_closed(what: str) -> None:
    async def main() -> None:
        app = application(scrape, lambda: "", [Route("/large", large)])
        bounds = Connections(**SHORT)  # type: ignore[arg-type]
        async with listening(app, "127.0.0.1:0", None, bounds) as url:
            with ExitStack() as stack:
                (connection,) = opened(url, stack, 1, HALVES[what])
                while not len(bounds):
                    await asyncio.sleep(0.005)
                while len(bounds):  # nothing of an answer is read meanwhile
                    await asyncio.sleep(0.005)
                assert await asyncio.to_thread(is_closed, connection)
            assert await asyncio.to_thread(status, url) == 200

    asyncio.run(main())


def test_a_handshake_that_is_not_finished_is_closed(tls: ssl.SSLContext) -> None:
    async def main() -> None:
        bounds = Connections(**SHORT)  # type: ignore[arg-type]
        async with listening(application(scrape, lambda: ""), "127.0.0.1:0", tls, bounds) as url:
            with ExitStack() as stack:
                for data in (b"", b"\x16\x03\x01\x02\x00\x01"):
                    (connection,) = opened(url, stack, 1, data)
                    assert await asyncio.to_thread(is_closed, connection)

    asyncio.run(main())


def test_a_request_that_dribbles_is_closed_however_often_a_byte_comes() -> None:
    async def main() -> None:
        bounds = Connections(**SHORT)  # type: ignore[arg-type]
        async with listening(application(scrape, lambda: ""), "127.0.0.1:0", None, bounds) as url:

            def dribble(data: bytes) -> None:
                with socket.create_connection(address_of(url)) as connection, suppress(ConnectionError):
                    connection.sendall(data)
                    while True:
                        connection.sendall(b"x")
                        time.sleep(0.05)

            for what in ("half a head", "half a body"):
                await asyncio.to_thread(dribble, HALVES[what])

    asyncio.run(main())


def test_an_answer_that_lasts_is_not_ended_by_the_deadline_of_requests(tmp_path: Path) -> None:
    async def slow(_: Request) -> Response:
        await asyncio.sleep(2.5)
        return PlainTextResponse("late")

    async def main() -> None:
        app = application(scrape, lambda: "", [Route("/slow", slow)])
        async with listening(app, "127.0.0.1:0", None, Connections(**SHORT)) as url:  # type: ignore[arg-type]
            assert await asyncio.to_thread(status, url, "/slow") == 200

    asyncio.run(main())
