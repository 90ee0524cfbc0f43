"""One run of a producer that reports to all shards of a job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tracker.client.errors import TrackerError
from tracker.client.producer import Producer, ProducerRun, RunName
from tracker.contract.answers import Reported
from tracker.contract.commands import Contents
from tracker.contract.promises import CommitPromise, Expected
from tracker.contract.values import Outcome
from tracker.sharded.agreement import at_once, first_decides
from tracker.sharded.sharding import Sharding


class ShardedProducer(ProducerRun):
    """A run of a producer, made by `ShardedClient.open_producer` and `ShardedClient.producer`: see `Producer`.

    Every report goes to every shard with the same units, even if it holds nothing for a shard, and so does every
    commit. So each shard knows all units and epochs. If a call fails in between, some shards have them and others do
    not. Repeating the call, or starting again at the epoch that the engine has not committed, completes it, as after a
    lost answer of one tracker: the shards that have it already change nothing.

    If one shard refuses a report (an end time that differs, a limit), the others keep their parts staged. When the
    cause is gone, report the same units again, and leave everything unchanged that the other shards have accepted.

    If the shards already have different units of a report, its outcome is PARTIAL_DUPLICATE without names of units:
    then report each unit separately.

    Attributes:
        committed_epoch: the last epoch that was committed on every shard when the run was opened; None: none was, or
            the trackers were not asked. A program that restarts after it may report an epoch that some shards have
            committed.
    """

    _where = " on every shard"

    def __init__(
        self,
        sharding: Sharding,
        job: str,
        producers: Sequence[Producer],
        committed_epoch: int | None,
        replays: bool = True,
    ) -> None:
        super().__init__(RunName(job, producers[0].producer, producers[0].run), committed_epoch, replays)
        self._sharding = sharding
        self._producers = tuple(producers)

    def deliver(self, epoch: int, contents: Contents, units: Sequence[str], commit: bool) -> Reported:
        parts = self._sharding.split(contents)
        calls = [
            partial(producer.deliver, epoch, part, units, commit)
            for producer, part in zip(self._producers, parts, strict=True)
        ]
        return reported(first_decides(calls) if commit else at_once(calls))

    def next_epoch(self) -> int:
        """Return the epoch to report next: the lowest of the shards'. Some of them may have committed it."""
        return min(producer.next_epoch() for producer in self._producers)

    def commit(
        self,
        epoch: int | None = None,
        units: Sequence[str] | None = None,
        seal: bool = False,
        promises: Sequence[CommitPromise] = (),
    ) -> int:
        """Commit or seal on all shards, or make promises there: see `Producer.commit`.

        An expectation goes to the shard of its substream, all other promises go to all shards.

        Returns:
            The number of events of all shards together.
        """

        def of(shard: int) -> list[CommitPromise]:
            return [
                promise
                for promise in promises
                if not isinstance(promise, Expected) or self._sharding.shard(promise.scope, promise.name) == shard
            ]

        calls = [partial(one.commit, epoch, units, seal, of(shard)) for shard, one in enumerate(self._producers)]
        return sum(first_decides(calls))

    def close(self, resume_epoch: int | None = None) -> None:
        """Close the run on all shards: see `Producer.close`. Safe to repeat, unless a later run has taken over."""
        first_decides([partial(_close, one, resume_epoch) for one in self._producers])


def _close(producer: Producer, resume_epoch: int | None) -> None:
    """Close a run, unless it is closed already: an earlier attempt may have failed at another shard."""
    try:
        producer.close(resume_epoch)
    except TrackerError as refused:
        producer.must_be_closed(refused)


def reported(shards: Sequence[Reported]) -> Reported:
    """Merge the shards' answers to the parts of a report.

    APPLIED means that all shards have the report now, and it was new to some of them. PARTIAL_DUPLICATE names the units
    that every shard has; it names none if the shards have different units.
    """
    last_seq = sum(shard.last_seq for shard in shards)
    partial = [set(shard.duplicate_units) for shard in shards if shard.outcome is Outcome.PARTIAL_DUPLICATE]
    if partial:
        return Reported(Outcome.PARTIAL_DUPLICATE, tuple(sorted(set.intersection(*partial))), last_seq)
    outcomes = {shard.outcome for shard in shards}
    return Reported(outcomes.pop() if len(outcomes) == 1 else Outcome.APPLIED, (), last_seq)
