"""Errors a user of `spark_client` can make, or may have to know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TrackingError(Exception):
    """A tracked query cannot go on. The message has what happened and what to do."""


class UsageError(TrackingError, ValueError):
    """A declaration cannot work: raised where it is made, before any data flows."""


def check_choice(what: str, value: object, *choices: str, why: str = "") -> None:
    """Refuse a value of an option that takes one of a few.

    Args:
        why: a clause at the end of the message, with the sign before it.

    >>> check_choice("probe", "task", "driver", "executors")
    Traceback (most recent call last):
    spark_client.errors.UsageError: probe='task': give 'driver' or 'executors'
    """
    if value not in choices:
        raise UsageError(f"{what}={value!r}: give {' or '.join(map(repr, choices))}{why}")


def check_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number of a range.

    >>> check_whole("keep", 0, 1)
    Traceback (most recent call last):
    spark_client.errors.UsageError: keep=0: give a whole number, 1 or more
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise UsageError(f"{what}={value!r}: give a whole number, {least} {f'to {most}' if most else 'or more'}")


def check_kind(what: str, value: object, kind: Any, advice: str) -> None:
    """Refuse a value that is of another kind than is needed.

    Args:
        kind: as ``isinstance`` takes it.
        advice: what to give instead.

    >>> check_kind("aggs['n']", 5, str, "give an aggregate")
    Traceback (most recent call last):
    spark_client.errors.UsageError: aggs['n'] is 5: give an aggregate
    """
    if not isinstance(value, kind):
        raise UsageError(f"{what} is {value!r}: {advice}")


def check_seconds(what: str, value: float) -> None:
    """Refuse a time between two looks that is not above zero.

    >>> check_seconds("observe: every", 0)
    Traceback (most recent call last):
    spark_client.errors.UsageError: observe: every=0 seconds: has to be above zero
    """
    if not value > 0:
        raise UsageError(f"{what}={value!r} seconds: has to be above zero")


def check_some(what: str, values: object, one: str) -> None:
    """Refuse what lacks what there has to be at least one of.

    >>> check_some("route", [], "(channel, condition)")
    Traceback (most recent call last):
    spark_client.errors.UsageError: route needs at least one (channel, condition)
    """
    if not values:
        raise UsageError(f"{what} needs at least one {one}")


def check_faults(what: str, *faults: tuple[object, str]) -> None:
    """Refuse the first fault that is there.

    Args:
        faults: each with whether it is there, and the words about it, that go on where `what` ends.

    >>> check_faults("output 'daily'", (False, "sends rows on"), (True, "goes into a channel"))
    Traceback (most recent call last):
    spark_client.errors.UsageError: output 'daily' goes into a channel
    """
    for found, fault in faults:
        if found:
            raise UsageError(f"{what} {fault}")


def check_setting(spark: Any, key: str, bad: str, what: str, why: str) -> None:
    """Refuse a session that has a setting of Spark at the one value under which something would not hold.

    Args:
        bad: the value, in any case; a session without the setting has another.
        what: the call or the rows that need another value, for the message.
    """
    if str(spark.conf.get(key, None)).lower() == bad.lower():
        raise UsageError(f"{what}: {key}={bad}: {why}. Set it otherwise, or leave it out")


@contextmanager
def refused(what: str, advice: str = "", errors: Any = Exception) -> Iterator[None]:
    """Refuse what Spark, a store, a library or a user's function fails with, with the first line of its reason.

    Args:
        what: failed; stands before the reason.
        advice: a sentence after the reason: what to do.
        errors: as ``except`` takes them; a `UsageError` among them gets the words around it, too.

    >>> with refused("keys: Spark cannot group by 'at'", "Cast it"):
    ...     raise ValueError("no order\\nmore")
    Traceback (most recent call last):
    spark_client.errors.UsageError: keys: Spark cannot group by 'at': no order. Cast it
    """
    try:
        yield
    except errors as error:
        raise UsageError(f"{what}: {first_line(error)}{advice and f'. {advice}'}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: Spark's go on with plans and stacks."""
    return str(error).partition("\n")[0]


def torn(what: str, epoch: int, checkpoint: object) -> TrackingError:
    """Return the error of a checkpoint whose parts are not of one time.

    Args:
        what: the part that does not fit, and how.
        epoch: the batch that Spark goes on with.
        checkpoint: of the query, with Spark's part of it.
    """
    return TrackingError(
        f"{what}, and Spark goes on with batch {epoch} in {checkpoint}: some of the checkpoint is gone, or from "
        "another time. Nothing of this batch was released. Put back the whole checkpoint, Spark's files and the "
        "directory `tracker` as they were at one time; or start the query with a new checkpoint, which reads its "
        "sources anew"
    )
