"""A leader hands the journal in an object store to one standby: it lives, and no other one gets the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.journal.object_stores import Place, bucket, directory, own, place, s3
from tests.journal.test_objects import opened, records, standby
from tracker.journal import FollowableJournal, MovableJournal

__all__ = ["bucket", "directory", "own", "place", "s3"]  # fixtures


@contextmanager
def waiting(journal: FollowableJournal) -> Iterator[threading.Event]:
    """Try to own the journal, as a standby does, until it succeeds; the event is set then."""
    owns, ends = threading.Event(), threading.Event()

    def wait() -> None:
        while not ends.wait(0.01):
            if journal.try_to_own():
                owns.set()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield owns
    finally:
        ends.set()
        thread.join()


def names(where: Place) -> list[str]:
    return list(where.objects.names("standbys"))


def shown(where: Place) -> None:
    """Wait until a standby has shown that it is there."""
    while not names(where):
        time.sleep(0.01)


def test_only_the_standby_that_was_found_gets_the_journal(place: Place) -> None:
    leader, _, _ = opened(place.address())
    assert isinstance(leader, MovableJournal)
    leader.append(records(3))
    first, second = standby(place.address()), standby(place.address())
    with waiting(first) as first_owns:
        shown(place)
        assert leader.standby().startswith("process ")
        leader._lease._seconds = 3600  # type: ignore[attr-defined]
        second._lease._seconds = 3600  # type: ignore[attr-defined]  # without a word to it, it waits that long
        assert not second.try_to_own()
        leader.hand_over()
        for _ in range(50):
            second._lease._looked = -3600  # type: ignore[attr-defined]
            assert not second.try_to_own()
        assert first_owns.wait(60)
    assert list(first.recover().records) == records(3)
    assert first.append(records(1)) == 4
    first.close()
    second.close()
    assert names(place) == [], "signs are removed by those who wrote them"


def test_a_standby_that_was_found_and_died_holds_nobody_back(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    assert isinstance(leader, MovableJournal)
    dies, other = standby(directory.address()), standby(directory.address())
    with waiting(dies):
        shown(directory)
        assert leader.standby()
    leader.hand_over()
    with waiting(other) as owns:
        assert owns.wait(60), "after the time of a lease"
    other.close()


@pytest.mark.thorough
def test_a_standby_that_died_before_is_not_found_and_cleaned_up(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    assert isinstance(leader, MovableJournal)
    dies = standby(directory.address())
    with waiting(dies):
        shown(directory)
    assert leader.standby() == ""
    assert names(directory) == []
    leader.close()


def test_a_leader_that_stops_after_a_search_leaves_the_journal_free(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    assert isinstance(leader, MovableJournal)
    with waiting(standby(directory.address())):
        shown(directory)
        assert leader.standby()
    leader.close()
    other = standby(directory.address().replace("lease=1", "lease=3600"))
    assert other.try_to_own()
    other.close()
