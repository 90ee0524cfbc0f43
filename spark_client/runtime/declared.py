"""Aspects of a query when it wrote its checkpoint: a query that has become another one must not go on from there.

State that was kept for one aggregation makes no sense to another, and Spark would not notice: it does not see into
what is done in `foreachBatch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from spark_client.counting import once
from spark_client.errors import UsageError, check_faults, torn
from spark_client.plan.releases import KEY_FORMS, ReleasePlan
from spark_client.plan.state import changed_forms, new_aggregates, part_numbers, placed
from spark_client.plan.streams import DEDUPLICATES, Source, Stream
from spark_client.release.parts import NOTE
from spark_client.release.single import kept_at, substreams_kept
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substreams

ZONE: Final = "spark.sql.session.timeZone"  #: the aspect of the zone by which rows fall into substreams


def placed_as_noted(plan: QueryPlan) -> QueryPlan:
    """Return the plan with its aggregates where the state that is there has them."""

    def own(each: QueryPlan) -> QueryPlan:
        if each.release is None:
            return each
        return replace(each, release=placed(each.release, kept_at(each.checkpoint, each.name).read(NOTE)))

    return replace(own(plan), beside=tuple(map(own, plan.beside)))


def check_plan(plan: QueryPlan, kept: Mapping[str, int], interrupted: int | None) -> None:
    """Check whether a query is still what it was when it wrote its checkpoint, and write down what it is. Call
    `check_outputs` first.

    Args:
        kept: how many substreams its state holds, by the name of each release.
        interrupted: a batch that has published something and is not committed: it is to be run again as it was.
    """
    checkpoint = plan.checkpoint
    own = kept_at(checkpoint, "")
    before = own.read(NOTE)
    if (epoch := next_epoch(checkpoint)) and before is None:
        raise torn(f"{own.url(NOTE)} is missing", epoch, checkpoint)
    now_described = described(plan.settings.job, plan.stream, None)
    if plan.name:
        known = releases_of(before)
        gone = set(known or ()) - kept.keys()
        left = {name: substreams_kept(kept_at(checkpoint, name), epoch) for name in gone}
        check_releases(checkpoint, known, kept, left)
        now_described[_RELEASES] = sorted(kept)
    shapes = {each.name: each.release.described() for each in plan.releases if each.release is not None}
    noted = {"": (now_described, max(kept.values(), default=0))}
    for name, shape in shapes.items():
        noted[name] = ({**noted.get(name, ({}, 0))[0], **shape}, kept[name])
    found = [(name, checked(checkpoint, name, now, number, interrupted)) for name, (now, number) in noted.items()]
    # When nothing is refused.
    if before is not None and now_described.get(DEDUPLICATES) and not before.get(DEDUPLICATES):
        once.begin(checkpoint, epoch)
    for name, now in found:
        write(kept_at(checkpoint, name), now)


def next_epoch(checkpoint: Folder) -> int:
    """Return the epoch after the last one that Spark has committed."""
    last = last_commit(checkpoint)
    return 0 if last is None else last + 1


def described(job: str, stream: Stream, release: ReleasePlan | None) -> dict[str, object]:
    """Return what a query is, by aspect: plain data.

    Args:
        release: what it releases of it; None: it passes the rows on.
    """
    rule = stream.input.rule
    return {
        "job": job,
        "segment": stream.segment,
        "substreams": {**rule.to_json(), "zone": None},
        ZONE: rule.zone,
        _FORMS: dict(stream.input.forms) if isinstance(stream.input, Source) else {},
        **({DEDUPLICATES: True} if stream.input.deduplicate else {}),
        **({} if release is None else release.described()),
    }


def checked(
    checkpoint: Folder, name: str, now: Mapping[str, object], kept: int, interrupted: int | None
) -> Mapping[str, object]:
    """Compare a query, or one of its releases, with what it was by its checkpoint.

    While its state holds something, aggregates may be renamed, moved or left out, but none may be new: what is open
    holds no part of it.

    Args:
        name: of the release, among several; empty: the query, or its only release.
        now: what it is, by aspect: plain data.
        kept: how many substreams its state holds; aspects that only shape the state may change while it holds none.
        interrupted: a batch that has published something and is not committed: it is to be run again as it was.

    Returns:
        The note to be written there.

    Raises:
        UsageError: it differs; every difference is named.
    """
    known = kept_at(checkpoint, name).read(NOTE)
    if known is not None:
        advice = "Drain the job before you change it, or start with a new job and new checkpoints"
        for aspect, added in _ADDED.items():
            if isinstance(known.get(aspect), dict):
                known[aspect] = {**added, **known[aspect]}
        differences = [
            f"{aspect} was {known.get(aspect)}, is {value}"
            for aspect, value in now.items()
            if known.get(aspect) != value and aspect not in _SHAPES
        ] + changed_forms(known, now, _FORMS)
        if differences:
            advice = _instead(known, now)
        if kept and known.get("keys") != now.get("keys"):
            differences.append(f"keys was {known.get('keys')}, is {now.get('keys')}")
        if kept:
            differences += changed_forms(known, now, KEY_FORMS)
        if differences and known.get(ZONE) != now.get(ZONE):
            differences.append(f"its rows fall into substreams by the session's time zone, so set {ZONE} back")
        if kept:
            differences += _of_aggregates(known, now, interrupted)
        if interrupted is not None and known.get(DEDUPLICATES) != now.get(DEDUPLICATES):
            differences.append(
                f"deduplicate was {bool(known.get(DEDUPLICATES))}, and batch {interrupted} was interrupted when it had "
                "published something: start the query as it was until that is committed"
            )
        if differences:
            holds = f" The state holds {kept} substreams, which would be abandoned." if kept else ""
            which = f" in its release {name!r}" if name else ""
            raise UsageError(
                f"the query has changed{which} since its checkpoint {checkpoint} was written: "
                f"{'; '.join(differences)}.{holds} {advice}"
            )
        if "parts" in now:
            now = {**now, "parts": {**part_numbers(known), **part_numbers(now)}}
    return now


def write(kept: Folder, now: Mapping[str, object]) -> None:
    """Write down what a query, or one of its releases, is; nothing of it is refused.

    Args:
        kept: where it keeps what is its own.
    """
    if kept.read(NOTE) != now:
        kept.put(NOTE, now)


def releases_of(known: Mapping[str, Any] | None) -> list[str] | None:
    """Return the names of the releases that a query had when it wrote its checkpoint; None: it is new.

    Args:
        known: the note in the query's checkpoint; None: there is none.
    """
    return None if known is None else list(known.get(_RELEASES, []))


def check_outputs(plan: QueryPlan) -> None:
    """Refuse one output where there were several, and several where there was one: their states are elsewhere."""
    known = releases_of(kept_at(plan.checkpoint, "").read(NOTE))
    check_faults(
        f"the checkpoint {plan.checkpoint} is of a query that writes",
        (
            known and not plan.name,
            f"{', '.join(known or ())} together: start it with tracking.write_together(…), or give this query a "
            "checkpoint of its own",
        ),
        (known == [] and plan.name, "one output: give write_together(…) a checkpoint of its own"),
    )


def check_releases(
    checkpoint: Folder, known: Sequence[str] | None, kept: Mapping[str, int], left: Mapping[str, int]
) -> None:
    """Compare the releases of a query with those that its checkpoint has, by name.

    Args:
        known: the names that the checkpoint has; None: it is new.
        kept: how many substreams the state of each holds.
        left: likewise of those that are not among them any more.
    """
    if known is None:
        return
    abandoned = [f"{name!r} holds {number} substreams" for name, number in sorted(left.items()) if number]
    new, still_open = sorted(kept.keys() - set(known)), max(kept.values())
    check_faults(
        f"the query has changed since its checkpoint {checkpoint} was written:",
        (
            abandoned,
            f"the release {', '.join(abandoned)}, which would be abandoned, and is not written any more. Start it with "
            "that output, let a drain end what is open (tracking.drain()), and leave it out then",
        ),
        (
            new and still_open,
            f"the output {', '.join(map(repr, new))} is new, and holds no part of the {still_open} substreams that are "
            "open. Let a drain end them first (tracking.drain()), or release it in a query of its own, with a channel "
            "and a checkpoint of its own",
        ),
    )


def _of_aggregates(known: Mapping[str, object], now: Mapping[str, object], interrupted: int | None) -> list[str]:
    """Return what is wrong with aggregates that have changed, and what to do."""
    before, wanted = known.get("aggregates"), now.get("aggregates")
    if before == wanted:
        return []
    if _alike(before, wanted):
        return [
            f"aggregates was {before}, is {wanted}",
            "the aggregates are the same, and another version of this package kept them otherwise: go back to it for "
            "the drain",
        ]
    if interrupted is not None:
        return [
            f"aggregates was {before}, is {wanted}, and batch {interrupted} was interrupted when it had released "
            "something: start the query as it was until that is committed, and hand the job over then "
            "(tracking.hand_over())"
        ]
    return [
        f"the aggregate {name!r} ({kept}) is new, and what is open holds no part of it. The state has {before}. Let a "
        "drain end what is open first (tracking.drain()), or release it in a query of its own beside this one, with "
        "a channel and a checkpoint of its own"
        for name, kept in new_aggregates(known, now).items()
    ]


def _instead(known: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return what to do about what no drain makes possible: a checkpoint is of one stream, cut in one way, for good."""
    advice = "Start the query as it was, or with a new job, with new checkpoints and new paths for channels"
    before, wanted = known.get("substreams"), now["substreams"]
    changed = isinstance(before, dict) and isinstance(wanted, dict) and before != wanted
    if changed and Substreams.from_json(cast(Any, wanted)).recuts(Substreams.from_json(cast(Any, before))):
        advice += (
            ". If it reads its source itself, windows of another length are taken over from an export of its state: "
            "Snapshots(…).restore(…, mapping=…)"
        )
    return advice


_RELEASES: Final = "releases"  #: the aspect that names the releases of a query that has several
_FORMS: Final = "expressions"  #: the aspect of how the source computes its substreams
_SHAPES = (_RELEASES, "keys", "aggregates", "parts", KEY_FORMS, _FORMS, DEDUPLICATES)
#: Fields that notes of earlier versions lack, with the values that held then.
_ADDED: Final[Mapping[str, Mapping[str, object]]] = {"substreams": {"time": "timestamp", "zone": None}}


def _alike(known: object, now: object) -> bool:
    """Return whether aggregates differ in the form in which they are kept, and in nothing else."""
    if not isinstance(known, dict) or not isinstance(now, dict) or known == now:
        return False
    one, other = ({name: str(text).partition(" kept as ")[0] for name, text in each.items()} for each in (known, now))
    return one == other
