"""Persons, auctions and bids by the published rules of the Nexmark generator, with its published defaults.

The rules, as Apache Beam and the Nexmark project state them: of fifty events the first is a person, three are auctions
and forty-six are bids; every second bid is for the hot auction, the first of the newest hundred, and the others are for
one of the hundred newest or of ten that do not exist yet; three of four bids are of the hot bidder, the second of the
newest hundred persons; prices are spread evenly on a logarithmic scale; events of a group are out of order by a fixed
permutation; ids begin at 1000. The number of an event and the seed alone determine it.

Texts (names, descriptions, padding) are left out: no query reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS  #: events
FIRST_ID = 1000  #: of persons and of auctions
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS = 2, 4, 4  #: one of so many is for another than the hot one
HOT_OF = 100  #: the hot one is one of so many
IN_FLIGHT = 100  #: auctions that may get bids
ACTIVE = 1000  #: persons that act
LEAD = 10  #: ids that do not exist yet and may be used
_SHUFFLE = 953  #: coprime to the sizes of groups


@dataclass(frozen=True)
class Event:
    """A person, an auction or a bid.

    Attributes:
        number: of the event, from 0.
        kind: `person`, `auction` or `bid`.
        auction: the auction's id; 0 for a person.
        person: who registers, sells or bids.
        price: in cents: of the bid, or the auction's first; 0 for a person.
    """

    number: int
    kind: str
    auction: int
    person: int
    price: int


@dataclass(frozen=True)
class Clock:
    """The event times of a generator, in milliseconds from its beginning.

    Two rates take turns, as in the published square rate shape: each holds for half of a period.

    Attributes:
        slow, fast: milliseconds between two events at each rate.
        period: milliseconds.
        group: events that are out of order among themselves.
    """

    slow: int = 2100
    fast: int = 700
    period: int = 1_200_000
    group: int = 20

    def times(self, until: int) -> list[int]:
        """Return the times of all events before a time, by the events' numbers."""
        inorder: list[int] = []
        now = 0
        while now < until:
            inorder.append(now)
            now += self.slow if now % self.period < self.period // 2 else self.fast
        whole = len(inorder) // self.group * self.group
        return [inorder[self._shuffled(number)] for number in range(whole)]

    def _shuffled(self, number: int) -> int:
        return number // self.group * self.group + number * _SHUFFLE % self.group


def events(seed: int, count: int) -> Iterator[Event]:
    """Yield the first events of a generator.

    Args:
        seed: of the generator.
        count: of events.
    """
    for number in range(count):
        yield _event(number, Random(seed * 1_000_003 + number))


def last_person(number: int) -> int:
    """Return the newest person when an event is made, from 0."""
    return number // ROUND * PERSONS + min(number % ROUND, PERSONS - 1)


def last_auction(number: int) -> int:
    """Return the newest auction when an event is made, from 0; -1 if there is none."""
    before, place = divmod(number, ROUND)
    if place < PERSONS:
        return before * AUCTIONS - 1
    return before * AUCTIONS + min(place - PERSONS, AUCTIONS - 1)


def _event(number: int, random: Random) -> Event:
    place = number % ROUND
    if place < PERSONS:
        return Event(number, "person", 0, FIRST_ID + last_person(number), 0)
    if place < PERSONS + AUCTIONS:
        seller = _hot(last_person(number), 0) if random.randrange(HOT_SELLERS) else _any_person(number, random)
        return Event(number, "auction", FIRST_ID + last_auction(number), FIRST_ID + seller, _price(random))
    auction = _hot(last_auction(number), 0) if random.randrange(HOT_AUCTIONS) else _any_auction(number, random)
    bidder = _hot(last_person(number), 1) if random.randrange(HOT_BIDDERS) else _any_person(number, random)
    return Event(number, "bid", FIRST_ID + auction, FIRST_ID + bidder, _price(random))


def _hot(last: int, place: int) -> int:
    return last // HOT_OF * HOT_OF + place


def _any_person(number: int, random: Random) -> int:
    persons = last_person(number) + 1
    active = min(persons, ACTIVE)
    return persons - active + random.randrange(active + LEAD)


def _any_auction(number: int, random: Random) -> int:
    first = max(last_auction(number) - IN_FLIGHT, 0)
    return first + random.randrange(last_auction(number) - first + 1 + LEAD)


def _price(random: Random) -> int:
    return round(100 * 10 ** (6 * random.random()))
