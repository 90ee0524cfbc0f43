"""Shards of a job: which substream belongs to which shard, and which part of a report goes to each.

A shard is a job of its own at its server, with the whole graph and all fronts, and its share of the substreams. Each of
the contract's rules concerns one substream, so each shard satisfies them by itself.

This module makes no calls: it works only with names and columns.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracker.contract.commands import Contents
from tracker.contract.promises import Close, Expect, Promise
from tracker.contract.spec import OrderingWord as Ordering

_SHARD: Final = re.compile(r"(?P<job>.+)\.\d+of\d+-(none|scope|global)-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Sharding:
    """A division into shards, which is fixed for the life of its jobs.

    Args:
        servers: the servers' names, sorted: the first has shard 1.
        ordering: of the jobs. With ``"scope"``, a scope is on one shard as a whole, so that its order is that of the
            server; else substreams are assigned one by one.
    """

    servers: tuple[str, ...]
    ordering: Ordering

    def jobs(self, job: str) -> tuple[str, ...]:
        """Return the names of a job's shards at their servers.

        A name has the number of shards and a digest of the servers. A client with another list makes other names, and
        finds nothing.

        >>> Sharding(("a:7654", "b:7654"), "none").jobs("shop")
        ('shop.1of2-none-b5bc81cc', 'shop.2of2-none-b5bc81cc')
        """
        digest = hashlib.blake2b("\n".join(self.servers).encode(), digest_size=4).hexdigest()
        count = len(self.servers)
        return tuple(f"{job}.{number}of{count}-{self.ordering}-{digest}" for number in range(1, count + 1))

    def shard(self, scope: str, name: str) -> int:
        """Return the number of a substream's shard, counted from 0. A call takes about a microsecond.

        >>> [Sharding(("a:7654", "b:7654"), "none").shard("JFK", f"day {day}") for day in range(8)]
        [1, 1, 1, 0, 1, 1, 0, 0]
        """
        key = scope if self.ordering == "scope" else f"{scope}\0{name}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % len(self.servers)

    def split(self, contents: Contents) -> list[Contents]:
        """Split a report: each shard gets its substreams with their entries, closes and expectations, and all other
        promises."""
        count = len(contents.substreams)
        shards = np.fromiter((self.shard(scope, name) for scope, name in contents.substreams), np.int64, count)
        return [_part(contents, shards == shard) for shard in range(len(self.servers))]


def base(shard: str) -> str | None:
    """Return the name of the job to which a shard belongs; None if the name is not that of a shard.

    >>> base("shop.1of2-none-b5bc81cc"), base("shop")
    ('shop', None)
    """
    found = _SHARD.fullmatch(shard)
    return None if found is None else found["job"]


def _part(contents: Contents, wanted: NDArray[np.bool_]) -> Contents:
    places = np.cumsum(wanted) - 1  # for each wanted substream, its position among the wanted ones
    entries = wanted[contents.substream_index]
    promises: list[Promise] = []
    for promise in contents.promises:
        if not isinstance(promise, Close | Expect):
            promises.append(promise)
        elif wanted[promise.substream_index]:
            promises.append(replace(promise, substream_index=int(places[promise.substream_index])))
    return replace(
        contents,
        substreams=[substream for substream, here in zip(contents.substreams, wanted.tolist(), strict=True) if here],
        end_times=contents.end_times[wanted],
        substream_index=places[contents.substream_index[entries]].astype(np.uint32),
        segment_index=contents.segment_index[entries],
        xor=contents.xor[entries],
        sent=contents.sent[entries],
        received=contents.received[entries],
        promises=promises,
    )
