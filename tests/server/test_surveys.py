"""A survey is made once for all who ask, and no more often than it may be."""

from __future__ import annotations

import asyncio

import pytest

from tracker.contract.commands import DefineJob, DeleteJob
from tracker.contract.spec import Spec
from tracker.core import Refused, Tracker
from tracker.server import inventory
from tracker.server.inventory import Made, Surveys
from tracker.server.lanes import Lanes

NOW = 10**18
SELDOM = 10**9  # at most for one part in so many of the time: never again in a test


def define(tracker: Tracker, job: str) -> None:
    tracker.apply(DefineJob(Spec(job, "d1", (("raw", ()),))), NOW)


def made() -> tuple[Tracker, Surveys]:
    tracker = Tracker("log")
    define(tracker, "job")
    return tracker, Surveys(tracker, Lanes())


async def asked(of: Surveys, times: int, share: int = 1) -> list[Made]:
    """Return the surveys of so many callers who ask at the same moment."""
    return await asyncio.gather(*(of.survey("job", share) for _ in range(times)))


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each survey count as one that takes long."""
    monkeypatch.setattr(inventory, "CHEAP_S", -1.0)


def test_a_cheap_survey_is_made_for_each_who_asks() -> None:
    async def ask() -> None:
        _, of = made()
        first = (await asked(of, 1, SELDOM))[0]
        assert (await asked(of, 1, SELDOM))[0].ended > first.ended
        assert of.begun == 2

    asyncio.run(ask())


@pytest.mark.usefixtures("dear")
def test_all_who_ask_while_a_dear_survey_is_made_get_it() -> None:
    async def ask() -> None:
        _, of = made()
        assert len({id(each) for each in await asked(of, 5)}) == 1
        assert of.begun == 1

    asyncio.run(ask())


@pytest.mark.usefixtures("dear")
def test_a_dear_survey_is_made_again_only_when_it_is_due() -> None:
    async def ask() -> None:
        _, of = made()
        first = await of.survey("job", SELDOM)
        assert await of.survey("job", SELDOM) is of.newest("job") is first
        assert await of.survey("job", 0) is not first  # somebody else may ask for it more often
        of.forget("job")
        assert of.newest("job") is None
        await of.survey("job", SELDOM)
        assert of.begun == 3

    asyncio.run(ask())


@pytest.mark.usefixtures("dear")
def test_another_job_of_the_same_name_has_a_survey_of_its_own() -> None:
    async def ask() -> None:
        tracker, of = made()
        first = await of.survey("job", SELDOM)
        tracker.apply(DeleteJob("job", force=True), NOW)
        assert of.newest("job") is None
        with pytest.raises(Refused):
            await of.survey("job", SELDOM)
        define(tracker, "job")
        assert await of.survey("job", SELDOM) is not first

    asyncio.run(ask())


@pytest.mark.usefixtures("dear")
def test_one_who_leaves_does_not_end_the_survey_of_others() -> None:
    async def ask() -> None:
        _, of = made()
        leaving, staying = (asyncio.create_task(of.survey("job", 1)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).survey.looked == 0
        assert of.begun == 1

    asyncio.run(ask())
