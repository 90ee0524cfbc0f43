"""The parts of a round, drawn from its seed: the job's shape, the rows, the faults and their pace."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.spark.feed import row

TENANTS = "abc"
TOPIC = "clean"  #: of Kafka's, and the segment
PLACE = "state/chaos"  #: in a store of objects
CATALOG = "catalog.db"  #: of Iceberg, in the directory of a round
WINDOWS = 4  #: of an hour, for each tenant

#: How often each kind of fault is drawn. A killed driver takes long to come back, so that others come more often.
WEIGHTS = {
    "kill worker": 6,
    "kill executor": 4,
    "kill driver": 2,
    "kill driver, not its children": 1,
    "kill source reader": 1,
    "kill tracker": 5,
    "pause worker": 2,
    "pause executor": 2,
    "pause driver": 1,
    "pause tracker": 2,
    "zombie driver": 1,
    "second driver": 1,
    "cut network": 3,
    "hold back answers": 3,
    "kill broker": 2,
    "hold back the broker's answers": 3,
    "kill store": 3,
    "break the store's answers": 3,
    "kill query": 3,
    "kill driver, not its server": 1,
}
KILLS = ("kill worker", "kill executor", "kill driver", "kill tracker")
IN_A_DRAIN = ", in a drain"  #: what is added to the kind of a fault that strikes while a job drains
#: Only where the channel is a topic of Kafka's.
BROKERS = frozenset(["kill broker", "hold back the broker's answers"])
#: Only where all is in a store of objects.
STORES = frozenset(["kill store", "break the store's answers"])
#: Only over Spark Connect: the process that runs a query's batches; the program, whose server and queries go on.
SERVERS = frozenset(["kill query", "kill driver, not its server"])
#: In a store of objects, results go into files or into one of these.
TABLES = ("delta", "iceberg")
#: Where many kills are to come, and of each kind about as many. Drivers are also killed alone, and in drains.
EVENLY = {**dict.fromkeys(WEIGHTS, 1), **dict.fromkeys(STORES | SERVERS, 8), **dict.fromkeys(KILLS, 15)}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: of `WEIGHTS`.
        after: seconds since the one before.
        seconds: that it lasts, if it does.
        which: picks the process, of those that there are: 0 to 1.
    """

    kind: str
    after: float
    seconds: float
    which: float


@dataclass(frozen=True)
class Shape:
    """The job of a round; its program reads it from a file.

    Attributes:
        seed: of the round.
        job: its name.
        server: the tracker's address, as the job sees it.
        brokers: of Kafka, as the job sees them; empty if its channel is of files.
        seal: whether queries seal their batches.
        audit: whether there is a third query, whose function makes two actions of each batch.
        splits: whether the source's rows are split at random, differently in each attempt.
        drains: whether the round ends by a drain, with windows that no mark has ended.
        store: the URL of a store of objects, which has checkpoints, channel, results and receipts; empty: a disk has.
        table: the format of the results, one of `TABLES`; empty: files.
        connect: whether the job runs over Spark Connect, on a server that its program starts.
        without: the protection that is taken out; empty: none.
    """

    seed: int
    job: str
    server: str
    brokers: str
    seal: bool
    audit: bool
    splits: bool
    drains: bool
    store: str = ""
    table: str = ""
    connect: bool = False
    without: str = ""

    @property
    def traits(self) -> list[str]:
        """The particulars of the job."""
        plain = ("seal", "audit", "splits", "drains", "brokers", "store", "connect")
        return [*(trait for trait in plain if getattr(self, trait)), *([self.table] if self.table else [])]

    def write(self, path: Path) -> None:
        """Write the shape where the job's program finds it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Shape:
        """Read a shape from the file of `write`."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def is_over_kafka(seed: int, without: str | None) -> bool:
    """Return whether the channel of a round's job is a topic of Kafka's.

    Args:
        seed: of the round.
        without: the protection that is taken out.
    """
    return without == "labels" or (without is None and random.Random(f"channel {seed}").random() < 0.25)


def shape(seed: int, server: str, brokers: str, without: str | None, store: str = "", connect: bool = False) -> Shape:
    """Draw the job of a round.

    Args:
        seed: of the round.
        server: the tracker's address.
        brokers: Kafka's; empty: the channel is of files.
        without: the protection that is taken out.
        store: the URL of a store of objects; empty: all is on a disk. Only there a function makes two actions of each
            batch, whose results it renames.
        connect: whether it runs over Spark Connect.
    """
    rng = random.Random(f"shape {seed}")
    seal, audit, splits, drains = (rng.random() < share for share in (0.5, 0.5, 0.5, 0.33))
    if without is not None:  # a sealed batch would not be hurt
        seal, audit, splits = False, without == "units" or audit, False
    splits = splits and not brokers
    table = rng.choice(["", *TABLES]) if store else ""
    audit, drains = audit and not store, drains and not splits
    return Shape(
        seed, f"chaos-{seed}", server, brokers, seal, audit, splits, drains, store, table, connect, without or ""
    )


def drawn(seed: int, number: int, kinds: Sequence[str], weights: Mapping[str, int] = WEIGHTS) -> list[str]:
    """Draw kinds of faults.

    Args:
        seed: of the round.
        number: of faults.
        kinds: that may come.
        weights: how often.
    """
    return random.Random(f"kinds {seed}").choices(kinds, [weights[kind] for kind in kinds], k=number)


def faults(seed: int, kinds: Sequence[str]) -> list[Fault]:
    """Draw the faults of a round: some pauses are short, and some so long that Spark gives the process up.

    Args:
        seed: of the round.
        kinds: of the faults, in their order.
    """
    rng = random.Random(f"faults {seed}")
    return [
        Fault(
            kind=kind,
            after=rng.uniform(0.3, 3),
            seconds=rng.uniform(0.5, 4) if rng.random() < 0.7 else rng.uniform(13, 25),
            which=rng.random(),
        )
        for kind in kinds
    ]


def faults_in_a_drain(seed: int) -> list[Fault]:
    """Draw the faults that strike while a round's job drains, one soon after the other: a drain takes some seconds.

    The driver comes first, so that the others meet a drain that was begun by another one.

    Args:
        seed: of the round.
    """
    rng = random.Random(f"drain {seed}")
    kinds = ["kill driver", *rng.choices([*KILLS, "cut network"], k=3)]
    return [Fault(kind, rng.uniform(0, 0.8), rng.uniform(0.5, 4), rng.random()) for kind in kinds]


def files(seed: int, number: int, marked: bool) -> list[list[dict[str, Any]]]:
    """Return the rows that are fed, file by file; windows end one after the other, each by a mark.

    Args:
        seed: of the round.
        number: of files, at least one for each window.
        marked: whether the last windows are marked as ended, too.
    """
    rng = random.Random(f"rows {seed}")
    made: list[list[dict[str, Any]]] = []
    row_id = 0
    for place in range(number):
        here = place * WINDOWS // number
        rows: list[dict[str, Any]] = []
        for _ in range(rng.randrange(10, 40)):
            window = min(here + rng.randrange(2), WINDOWS - 1)
            tenant, kind = rng.choice(TENANTS), rng.choice("xyz")
            rows.append(row(row_id + len(rows), 60 * window + rng.uniform(0, 59), tenant, kind, rng.randrange(2, 10)))
        if (place + 1) * WINDOWS // number > here and (marked or here < WINDOWS - 1):
            for tenant in TENANTS:
                rows.append(row(row_id + len(rows), 60 * here + 59.5, tenant, "x", 3, last=True))
        row_id += len(rows)
        made.append(rows)
    return made
