"""One run of a producer that reports to all shards of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType

from tracker.client.errors import EpochCommittedError, TrackerError
from tracker.client.producer import Producer
from tracker.client.report import Report, checked_epoch
from tracker.contract.callers import Contents, Reported
from tracker.contract.promises import CommitPromise, Expected
from tracker.sharded import merged_status
from tracker.sharded.fanout import at_once, first_decides
from tracker.sharded.sharding import Sharding


class ShardedProducer:
    """A run of a producer, as `ShardedClient.open_producer` and `ShardedClient.producer` give it: see `Producer`.

    Every report goes to every shard with the same units, also where it has nothing for one, and so does every commit:
    so each shard knows by itself which units and epochs there were. If it fails in between, some shards know them and
    some do not. Doing the same again, or starting again at the epoch that the engine has not committed, makes that
    good, as if one tracker's answer had been lost: those that know it change nothing.

    After a report that one shard has refused (an end time that differs, a limit) the others keep their parts staged.
    Report the same units again when the cause is gone, with everything that the other shards have taken unchanged.

    Attributes:
        job: the job it reports to.
        producer: its name, the same across restarts.
        run: this start of it.
        committed_epoch: the last epoch that was committed on every shard when the run was opened; None: none, or not
            asked. A program that restarts after it may report an epoch that some shards have committed.
    """

    def __init__(
        self,
        sharding: Sharding,
        job: str,
        producers: Sequence[Producer],
        committed_epoch: int | None,
        replays: bool = True,
    ) -> None:
        self._sharding = sharding
        self._producers = tuple(producers)
        self.job = job
        self.producer = producers[0].producer
        self.run = producers[0].run
        self.committed_epoch = committed_epoch
        self._replays = replays

    def __repr__(self) -> str:
        return f"ShardedProducer(job={self.job!r}, producer={self.producer!r}, run={self.run!r})"

    def __enter__(self) -> ShardedProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def epoch(self, epoch: int | None = None) -> Report:
        """An empty report for an epoch (None: the next one); `Report.report` sends it to all shards.

        Where shards know different units of a report already, the outcome is PARTIAL_DUPLICATE with no units named:
        report each unit by itself then.
        """
        number = self.next_epoch() if epoch is None else epoch
        checked_epoch(number)

        def send(contents: Contents, units: Sequence[str], commit: bool) -> Reported:
            if not self._replays and self.committed_epoch is not None and number <= self.committed_epoch:
                raise EpochCommittedError(self.producer, number, self.next_epoch())
            parts = self._sharding.split(contents)
            calls = [
                partial(_report, producer, number, part, units, commit)
                for producer, part in zip(self._producers, parts, strict=True)
            ]
            return merged_status.reported(first_decides(calls) if commit else at_once(calls))

        return Report(send, number)

    def next_epoch(self) -> int:
        """The epoch to report next: the least of the shards', which some may have committed and others not."""
        return min(producer.next_epoch() for producer in self._producers)

    def epochs(self) -> Iterator[Report]:
        """An empty report for the next epoch, then for the one after it: see `Producer.epochs`."""
        while True:
            number = self.next_epoch()
            yield self.epoch(number)
            if self.next_epoch() <= number:
                raise RuntimeError(
                    f"epoch {number} of producer {self.producer!r} was not committed on every shard; call "
                    "report.report(commit=True) before you ask for the next one"
                )

    def commit(
        self,
        epoch: int | None = None,
        units: Sequence[str] | None = None,
        seal: bool = False,
        promises: Sequence[CommitPromise] = (),
    ) -> int:
        """Commits or seals on all shards, or brings promises to all (an expectation to the shard of its substream): see
        `Producer.commit`.

        Returns:
            How many events there are, of all shards.
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
        """Closes the run on all shards: see `Producer.close`. Safe to repeat, unless a later run has taken over."""
        first_decides([partial(_close, one, resume_epoch) for one in self._producers])


def _report(producer: Producer, epoch: int, part: Contents, units: Sequence[str], commit: bool) -> Reported:
    answer = producer.deliver(epoch, part, units, commit)
    producer.note(epoch, answer, commit)
    return answer


def _close(producer: Producer, resume_epoch: int | None) -> None:
    """Also if it is closed already: another shard may have failed when it was."""
    try:
        producer.close(resume_epoch)
    except TrackerError as refused:
        producer.must_be_closed(refused)
