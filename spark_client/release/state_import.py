"""A checkpoint made of an exported state, for a release that may keep something else: with a mapping of its rows.

The tracker's accounts of open substreams stay as they are, or are moved to the windows that take these in. So each
substream of the state has to be in what the mapping makes, or be dropped on purpose, and nothing else may be in it.
"""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import quoted
from spark_client.counting import once
from spark_client.errors import TrackingError, UsageError, check_faults, check_kind
from spark_client.plan.releases import ReleasePlan
from spark_client.plan.state import SUBSTREAM, differences, imported, part_numbers, placed, renamed
from spark_client.plan.streams import DEDUPLICATES
from spark_client.release.inbox import ACTS, write_note
from spark_client.release.parts import NONE, NOTE, Part, RowTally, Version, read_part
from spark_client.release.state_export import POSITION, REST, STATE
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import WHOLE, as_batches_write
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.windows.substreams import Substream, Substreams

_NAMED: Final = 5  #: substreams that a message lists

StateMapping = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Upgrade:
    """Continuation of an exported state.

    Attributes:
        described: what its query is, as its checkpoint is to tell.
        mapping: makes the state of the release of the exported one; None: it keeps the same.
        dropping: which rows of the exported state are left out.
        sends_on: whether the results of the state go on into a channel, where each substream of it is held open.
    """

    plan: ReleasePlan
    described: Mapping[str, Any]
    mapping: StateMapping | None
    dropping: Column | str | None
    sends_on: bool

    def check(self, entry: Mapping[str, Any]) -> None:
        """Refuse what no mapping can bring about, and what needs one.

        Args:
            entry: the snapshot's entry of the query.
        """
        before = entry["query"]
        changed = differences(before, self.described)
        fixed = [each for each in changed if not each.startswith(("keys was", "new aggregates", "substreams was"))]
        check_faults(
            f"the release has changed since its state was exported: {'; '.join(changed)}.",
            (
                fixed,
                "The state is of another stream, and a mapping changes keys, aggregates and windows: start with a new "
                "job, with new checkpoints, to change more",
            ),
            (
                not fixed and self.recuts(entry) and self.plan.stream.input.direction == "received",
                "The rows come through a channel, whose sender has cut them into the old ones. Windows change where a "
                "release reads its source itself; else start with a new job, with new checkpoints and new paths for "
                "channels",
            ),
            (
                changed and self.mapping is None,
                "Give mapping=, a function that makes what it keeps now of what it kept, or declare the release as it "
                "was",
            ),
        )

    def recuts(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the windows of the release are to take in the exported ones; False: they are the same."""
        return self.plan.rule.takes_over(Substreams.from_json(entry["query"]["substreams"]))


def build(
    spark: SparkSession,
    fetched: Folder,
    entry: Mapping[str, Any],
    upgrade: Upgrade,
    target: Folder,
    moved: Callable[[], Place],
) -> None:
    """Make a checkpoint.

    Args:
        fetched: what `state_export.export` has written, where the driver and the executors can read and write.
        entry: the snapshot's entry of that query.
        target: the checkpoint, which is made.
        moved: moves what the tracker has open, if windows are cut otherwise; gives the place in its events after that.

    Raises:
        UsageError: what the mapping has made does not fit; or a substream is neither in it nor dropped.
    """
    with tarfile.open(fileobj=io.BytesIO(fetched.content(REST) or b"")) as archive:
        unpack(archive, target)
    tracker = target / "tracker"
    state = tracker / "state"
    plan = placed(upgrade.plan, entry["query"])
    before, now = entry["query"], {**upgrade.described, **plan.described()}
    tracker.put(NOTE, {**now, "parts": {**part_numbers(before), **part_numbers(now)}})
    fields = fetched.read(POSITION)
    if not fields:
        return  # no batch was ever committed
    index = read_part(fetched, STATE, set())
    name = f"merged-{max(entry['epoch'], 0):012d}-{uuid.uuid4().hex[:8]}"
    recuts, rule = upgrade.recuts(entry), plan.rule
    rows: dict[Substream, RowTally] = {}
    if index.live:
        found, files = _write_rows(spark, fetched, index, upgrade, plan, entry, state, name)
        for old in index.bare | found:
            new = rule.recut(old) if recuts else old
            rows[new] = rows.get(new, NONE) + index.rows[old]
        bare = rows.keys() - (set(map(rule.recut, found)) if recuts else found)
        Part(name, index.epoch, rows, index.batches, frozenset(bare), files).index(state)
    if DEDUPLICATES in now and DEDUPLICATES not in before:
        once.begin(target, entry["epoch"] + 1)
    if recuts:
        with as_batches_write(spark):
            once.recut(spark, target, entry["epoch"], Substreams.from_json(before["substreams"]), rule)
        place = moved()
        fields |= {"position": place.numbers, "log_id": place.ids}
    acts = fields.setdefault("acts", entry["epoch"] + 1)  # version 0.2 did not count them
    write_note(tracker / ACTS, acts, entry["epoch"], Place.of(fields["position"], fields["log_id"]))
    state.put(Version(entry["epoch"], acts, 0).file, {**fields, "parts": [name] if rows else [], "dead": []})


def _write_rows(
    spark: SparkSession,
    fetched: Folder,
    index: Part,
    upgrade: Upgrade,
    plan: ReleasePlan,
    entry: Mapping[str, Any],
    state: Folder,
    name: str,
) -> tuple[set[Substream], list[str]]:
    """Write the partial rows of the new state, and return the exported substreams of which there are any, and the
    files."""
    before, rule = entry["query"], Substreams.from_json(entry["query"]["substreams"])
    whole = spark.read.options(**WHOLE).parquet(fetched.url(STATE))
    given, dropped = whole, set[Substream]()
    if upgrade.dropping is not None:
        condition = F.expr(upgrade.dropping) if isinstance(upgrade.dropping, str) else upgrade.dropping
        dropped = _substreams(whole.where(condition), rule)
        given = whole.where(~F.coalesce(condition, F.lit(False)))
    made = renamed(given, before, plan) if upgrade.mapping is None else _mapped(upgrade.mapping, given)
    with as_batches_write(spark):
        # A mapping may make other rows each time that it is carried out, so what it has made is looked at as written.
        fetched.write("mapped", Parquet(imported(made, plan)))
        written = spark.read.options(**WHOLE).parquet(fetched.url("mapped"))
        found = _substreams(written, rule)
        _check(index, found, dropped, upgrade.sends_on)
        substream = F.col(quoted(SUBSTREAM))
        key = substream["key"]
        if upgrade.recuts(entry):
            key = plan.rule.recut_key(rule, key)
        own = [substream["scope"].alias("_scope"), key.alias("_key")]
        columns = [field for field in plan.part_schema.fieldNames() if field not in ("_scope", "_key")]
        files = state.write(name, Parquet(written.select(*own, *map(quoted, columns))))
    return found, files


def unpack(archive: tarfile.TarFile, target: Folder) -> None:
    """Write an archive's files into a folder. (`tarfile`'s own filters came with Python 3.11.4.)

    Raises:
        TrackingError: the archive has something else, such as a link, or a path that leads out of the folder.
    """
    for member in archive:
        path = PurePosixPath(member.name)
        if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
            raise TrackingError(
                f"{archive.name!r} has {member.name!r}, which is no file or directory inside of it: somebody has "
                "changed the archive. Take another copy of the snapshot"
            )
        if (content := archive.extractfile(member)) is not None:
            with content:
                target.put(member.name, content.read())


def _mapped(mapping: StateMapping, state: DataFrame) -> DataFrame:
    made = mapping(state)
    check_kind("the result of mapping", made, DataFrame, "give a function that returns a DataFrame")
    return made


def _substreams(rows: DataFrame, rule: Substreams) -> set[Substream]:
    substream = F.col(quoted(SUBSTREAM))
    key = rule.plain(substream["key"]).alias("key")
    found = rows.select(substream["scope"].alias("scope"), key).distinct().collect()
    if any(row["key"] is None or row["scope"] is None for row in found):
        raise UsageError(f"mapping has made rows whose {SUBSTREAM} is null: keep it as it is in the rows that it gets")
    return {rule.substream(row["scope"], row["key"]) for row in found}


def _check(index: Part, found: set[Substream], dropped: set[Substream], sends_on: bool) -> None:
    """Check whether every substream of the state is accounted for."""
    had = index.live - index.bare
    unknown, missing, gone = found - had, had - found - dropped, dropped - found
    check_faults(
        "mapping",
        (
            unknown,
            f"has made rows of substreams that the state does not have: {_listed(unknown)}. They have ended, or never "
            f"were: keep {SUBSTREAM} as it is in the rows that it gets",
        ),
        (
            missing,
            f"has left out the rows of {_listed(missing)}. Keep at least a row of each, or drop them on purpose, with "
            "dropping= and a condition on the rows",
        ),
        (
            sends_on and gone,
            f"has dropped {_listed(gone)}, which the rows of the state keep open in the channel that the results go "
            "into: leave these out of dropping=",
        ),
    )


def _listed(substreams: set[Substream]) -> str:
    names = ", ".join(f"{each.name!r} of the scope {each.scope!r}" for each in sorted(substreams, key=str)[:_NAMED])
    more = len(substreams) - _NAMED
    return f"{names} and {more} more" if more > 0 else names
