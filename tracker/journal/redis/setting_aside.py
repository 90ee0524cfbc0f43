"""Moves a journal in Redis out of the way, in one step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import redis

from ..interface import JournalError
from .address import RedisAddress
from .connecting import connect
from .keys import Keys
from .lease import Lease
from .snapshots import RedisSnapshots

#: Keys: those that may be there, the top first, and then, in the same order, their new names. Returns how many were
#: there. The next term is left out: a tracker that sleeps finds, when it wakes up, a later term in the place of its own
#: one, and no beginning of the term after its own. So it takes itself for replaced, and nothing for lost.
#: The new top notes that a backup is to come.
_RENAME: Final = """
local moved = 0
local id = redis.call('HGET', KEYS[1], 'id')
for place = 1, #KEYS / 2 do
  if redis.call('EXISTS', KEYS[place]) == 1 then
    redis.call('RENAME', KEYS[place], KEYS[#KEYS / 2 + place])
    moved = moved + 1
  end
end
if id then
  redis.call('HSET', KEYS[1], 'id', string.format('%d-0', tonumber(string.match(id, '^%d+')) + 1), 'last', '0')
end
redis.call('HSET', KEYS[1], 'restoring', '1')
return moved
"""


def end_keys_restore(address: RedisAddress) -> None:
    """Remove the note that a backup is to come: it is there.

    Raises:
        JournalError: the server cannot be used.
    """
    try:
        with closing(connect(address)) as client:
            client.hdel(Keys(address).top, "restoring")
    except redis.RedisError as error:
        raise JournalError(f"{address} cannot be used: {error}") from error


def set_keys_aside(address: RedisAddress) -> str:
    """Rename a journal's keys.

    Returns:
        The beginning of their names now; empty: there were none.

    Raises:
        JournalLockedError: another tracker uses the journal.
        JournalError: the server cannot be used.
    """
    keys = Keys(address)
    aside = keys.replaced(time.strftime("%Y%m%dT%H%M%S", time.gmtime()))
    try:
        with (
            closing(Lease(keys)) as lease,
            closing(RedisSnapshots(keys)) as snapshots,
            closing(connect(address)) as client,
        ):
            lease.acquire()
            names = [*_names(keys, client, snapshots)]
            renamed = [f"{aside}:{name.removeprefix(f'{keys.base}:')}" for name in names]
            moved: Any = client.eval(_RENAME, 2 * len(names), *names, *renamed)
    except redis.RedisError as error:
        raise JournalError(f"{address} cannot be set aside: {error}") from error
    return aside if moved else ""


def _names(keys: Keys, client: Any, snapshots: RedisSnapshots) -> Iterator[str]:
    yield from (keys.top, keys.log, keys.snapshots, keys.unfinished, keys.marks, keys.set_aside)
    begun = {name.decode() for name in client.smembers(keys.unfinished)}
    for entry in {*snapshots.entries(), *begun}:
        place = 0
        while client.exists(keys.piece(entry, place)):
            yield keys.piece(entry, place)
            place += 1
