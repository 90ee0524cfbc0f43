"""A tracker does what is due when it is due, and sleeps until then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.server.test_readers import in_virtual_time, now
from tracker.contract.commands import Command, DefineJob, Drain
from tracker.contract.values import DrainState
from tracker.core import Prepared, Spec, Tracker
from tracker.server.notices import Notices
from tracker.server.sequencer import Clock
from tracker.server.ticking import Ticker

_S = 10**9


class _Looked(Tracker):
    """A tracker that counts how often somebody looks through its jobs."""

    looks = 0

    def timed(self) -> list[str]:
        self.looks += 1
        return super().timed()


class _Server:
    """A server without a journal and without calls."""

    def __init__(self) -> None:
        self.tracker = _Looked("log")
        self._clock = Clock(0, lambda: int(now() * _S), lambda: int(now() * _S))
        lanes = SimpleNamespace(is_busy=lambda job: False, run=lambda job, work, cost: work())
        sequencer = SimpleNamespace(submit=lambda method, payload, command: self.do(command.command))
        self.ticker = Ticker(
            self.tracker, cast(Any, sequencer), cast(Any, lanes), self._clock, Notices(self.tracker, now)
        )
        self.do(DefineJob(Spec("j", "d1", (("a", ()),))))

    def do(self, command: Command) -> None:
        self.tracker.apply(Prepared(command), self._clock.now())
        self.ticker.look()

    def drain(self, deployment: str) -> DrainState:
        return self.tracker.drain_status("j", deployment).state


def _run(scenario: Callable[[_Server], Awaitable[None]]) -> None:
    async def run() -> None:
        server = _Server()
        ticking = asyncio.create_task(server.ticker.run())
        await scenario(server)
        ticking.cancel()

    in_virtual_time(run)


def test_an_idle_tracker_sleeps() -> None:
    async def scenario(server: _Server) -> None:
        await asyncio.sleep(600)
        assert server.tracker.looks < 650

    _run(scenario)


@pytest.mark.parametrize("timeout_s", [0.3, 30.0, 30.72])
def test_what_is_due_is_done_then(timeout_s: float) -> None:
    async def scenario(server: _Server) -> None:
        await asyncio.sleep(1.5)
        server.do(Drain("j", "d2", "asked", timeout=int(timeout_s * _S)))
        await asyncio.sleep(timeout_s - 0.01)
        assert server.drain("d2") is DrainState.PENDING
        await asyncio.sleep(0.12)
        assert server.drain("d2") is DrainState.TIMED_OUT

    _run(scenario)


def test_a_command_wakes_the_tracker_for_what_is_due_sooner() -> None:
    async def scenario(server: _Server) -> None:
        for number in range(10):
            await asyncio.sleep(10 + 0.13 * number)
            server.do(Drain("j", f"next-{number}", "asked", timeout=_S // 5))
            await asyncio.sleep(0.35)
            assert server.drain(f"next-{number}") is DrainState.TIMED_OUT

    _run(scenario)
