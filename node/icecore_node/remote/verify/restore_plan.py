"""Plan to restore a topic whose metadata are lost, made from its bucket alone.

A plan is made of published copies (``published_of``), each with a manifest that proves itself and
objects of the sizes it names; ``BucketCheck`` proves what is in them. A partition begins at the
first offset that is there and has no hole, or at its stored log start, if that is higher. Segments
that were never tiered are not in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, Final

from icecore.model import OFFSETS_LEFT_OUT
from icecore.tier_records import CopyPath, copy_path, topic_folder
from icecore.topic_settings import PARQUET_FORMAT, SEGMENT_FORMAT
from icecore_node.remote.format.manifest import Manifest
from icecore_node.remote.marker import MARKER_KEY
from icecore_node.remote.verify.behind_table import passed_over
from icecore_node.remote.verify.bucket import Bucket, FoundManifest, TopicObjects
from icecore_node.remote.verify.bucket_check import name_of, overlaps, published_of
from icecore_node.remote.verify.table_look import TableLook

NOTHING: Final = "no copy of it is published"


@dataclass(kw_only=True)
class RestoredSegment:
    """One sealed segment; digests are hexadecimal."""

    segment_id: int
    partition: int
    generation: int
    epoch: int
    base_offset: int
    end_offset: int
    seal_digest: str
    full_digest: str
    max_append_timestamp_ms: int
    attempt: int
    manifest_sha256: str
    content_digest: str
    length_bytes: int
    records: int
    tier_format: str
    indexed_headers: tuple[str, ...] = ()
    """As its manifest says; none where it does not: then all records are searched for a header."""


@dataclass(kw_only=True)
class RestoredTopic:
    """One topic to restore, and its problems."""

    topic_id: str
    topic: str
    partitions: int
    """The highest number with a copy, plus one: partitions without any are not known here."""
    partition_counts: tuple[int, ...] = ()
    """All numbers of partitions that it has had, oldest first; empty = not stored."""
    table_revisions: tuple[int, ...] = ()
    """Last revision committed to the table, by partition; later ones must be above it."""
    is_deleted: bool = False
    """The bucket says that it is deleted."""
    log_starts: tuple[int, ...] = ()
    """By partition, where its log starts at least; records below were deleted."""
    segments: list[RestoredSegment] = field(default_factory=list)
    """Segments by partition and offset."""
    attempts_max: int = 0
    """Highest attempt of all uploads in the bucket, those of other topics included: keys have
    it."""
    segment_ids_max: int = 0
    """Highest segment id in the bucket, likewise."""
    problems: list[str] = field(default_factory=list)
    """Reasons why the topic can't be restored as it is."""
    left_out: list[str] = field(default_factory=list)
    """Copies in front of a hole or behind the table, which are there and not restored; settings
    that can't be read."""
    settings: dict[str, Any] | None = None
    """Settings as JSON of ``TopicSettings``; None = none are stored, as beside copies of earlier
    versions."""


def plan_of(
    bucket: Bucket,
    found: TopicObjects,
    table: TableLook | None,
    *,
    skip_gaps: bool,
    is_part: bool = False,
) -> RestoredTopic:
    """A plan for one topic.

    Args:
        bucket: The listing of the bucket.
        found: Objects of the topic.
        table: Content of its table; None = it has none.
        skip_gaps: Whether a partition with a hole begins behind its last one, instead of not being
            restored. A lost copy is a hole then.
        is_part: Nodes may have what is not there: a hole is no problem, and everything on both
            sides of it counts. Neither is a topic of which nothing is published.
    """
    published = [] if found.table_damage else published_of(bucket, found, table)
    lost = _lost(found, table, published)
    plan = RestoredTopic(
        topic_id=found.topic_id.hex(),
        topic=name_of(found, table),
        partitions=max((each.manifest.facts.partition for each in published), default=-1) + 1,
        table_revisions=table.revisions if table is not None else (),
        attempts_max=bucket.attempts_max,
        segment_ids_max=bucket.segment_ids_max,
    )
    plan.settings, plan.partition_counts = found.settings, found.partition_counts
    plan.is_deleted, plan.log_starts = found.is_deleted, found.log_starts
    if found.table_damage:
        plan.problems.append(table_problem(found))
        return plan
    counting = _without_lost(plan, published, lost, skip_gaps=skip_gaps)
    plan.left_out += [f"{key}: {found.unreadable[key]}" for key in _lost_settings(found)]
    plan.left_out += passed_over(found, published) if table is not None else ()
    plan.problems += _strangers(bucket, found, table, counting)
    plan.left_out += [
        f"{why}: look-ups read all of its segment"
        for each in counting
        if (why := found.wrong_index(each.manifest))
    ]
    plan.problems += overlaps(counting)
    for _, some in groupby(counting, key=lambda each: each.manifest.facts.partition):
        if is_part:
            plan.segments += map(_segment, some)
        else:
            _add(plan, [*some], skip_gaps)
    if not counting and not _is_empty(found, table) and not is_part:
        plan.problems.append(NOTHING)
    return plan


def without_remains(plan: RestoredTopic) -> RestoredTopic:
    """Return the plan without the copies of a topic that a sweeper may have been at: it is deleted,
    and not all of it is there. Nobody has to mend that."""
    if not (plan.is_deleted and plan.problems):
        return plan
    why = f"topic {plan.topic} is deleted, and not all of it is there: {plan.problems[0]}"
    return replace(plan, segments=[], problems=[], left_out=[why])


def table_problem(found: TopicObjects) -> str:
    """Return what is wrong with a table that can't be read, and what to do."""
    log = f"{topic_folder(found.topic_id)}/_delta_log"
    return (
        f"its table can't be read: {found.table_damage}. Put the objects of {log} back from a "
        "version that the store keeps, or move that folder out of the bucket: then manifests say "
        "what was published, and nodes make a new table"
    )


def _is_empty(found: TopicObjects, table: TableLook | None) -> bool:
    """Return whether the topic is known to have no records there: all are deleted."""
    return found.settings is not None and table is not None and not table.paths


def _lost_settings(found: TopicObjects) -> list[str]:
    return sorted({*found.settings_keys} & {*found.unreadable})


def _strangers(
    bucket: Bucket,
    found: TopicObjects,
    table: TableLook | None,
    counting: Sequence[FoundManifest],
) -> list[str]:
    problems = [
        f"{path}: the table names it, and it is of another program. Take back what that wrote: "
        "DeltaTable(…).restore(the version before it)"
        for path in sorted(table.paths if table else ())
        if copy_path(path) is None
    ]
    others: dict[str, list[FoundManifest]] = {}
    for each in counting:
        if not bucket.knows(other := each.manifest.facts.cluster_id.hex()):
            others.setdefault(other, []).append(each)
    owner = f"not {bucket.cluster_id}" if bucket.cluster_id else f"and there is no {MARKER_KEY}"
    for other, some in sorted(others.items()):
        problems.append(
            f"{some[0].manifest.key}: of cluster {other}, {owner}, like {len(some)} copies in all. "
            f"If the bucket was that cluster's, which is gone for good: --adopt {other}"
        )
    problems += [
        f"cluster {other} has taken the topic over, {owner}. If the bucket was that cluster's, "
        f"which is gone for good: --adopt {other}"
        for other in sorted(holders_of(found, table) - {*others})
        if not bucket.knows(other)
    ]
    return problems


def holders_of(found: TopicObjects, table: TableLook | None) -> set[str]:
    """Return the clusters that settings and table of a topic name, in hexadecimal. One that has
    restored the topic may have made no copy since."""
    return {found.settings_cluster_id, table.cluster_id if table is not None else ""} - {""}


@dataclass(frozen=True, slots=True)
class _Lost:
    """A published copy that can't be restored."""

    partition: int
    end_offset: int
    """Its end; its first offset, if only its name is known."""
    why: str


def _lost(
    found: TopicObjects, table: TableLook | None, counting: Sequence[FoundManifest]
) -> dict[str, _Lost]:
    """Return lost copies by their paths."""
    lost, whole = {}, list[FoundManifest]()
    for each in counting:
        if why := found.wrong_records(each.manifest):
            facts = each.manifest.facts
            lost[each.path] = _Lost(facts.partition, facts.end_offset, why)
        else:
            whole.append(each)
    for path in sorted(table.paths - {each.path for each in counting} if table else ()):
        copy = copy_path(path)
        if copy is not None and not _was_retired(found, copy, whole):
            why = f"{path}: the table names it, and no manifest proves it"
            lost[path] = _Lost(copy.partition, copy.base_offset, why)
    return lost


def _was_retired(found: TopicObjects, copy: CopyPath, whole: Sequence[FoundManifest]) -> bool:
    """Return whether a copy of which only the name is left was retired, which a table that is
    behind does not know: a later one has its records, or they are below the log start."""
    others = [each for each in whole if each.manifest.facts.partition == copy.partition]
    for each in others:
        facts = each.manifest.facts
        if facts.base_offset <= copy.base_offset < facts.end_offset:
            return each.manifest.attempt > copy.attempt  # an earlier one may be a part of it
    starts = found.log_starts
    start = starts[copy.partition] if copy.partition < len(starts) else 0
    ends = [each.manifest.facts.base_offset for each in others]
    return any(copy.base_offset < end <= start for end in ends)


def _without_lost(
    plan: RestoredTopic,
    counting: list[FoundManifest],
    lost: Mapping[str, _Lost],
    *,
    skip_gaps: bool,
) -> list[FoundManifest]:
    """Return the copies that are whole. The others are problems, or holes if holes are passed."""
    whole = [each for each in counting if each.path not in lost]
    for each in lost.values():
        ends = [one.manifest.facts for one in whole]
        end = max((one.end_offset for one in ends if one.partition == each.partition), default=0)
        if not skip_gaps:
            plan.problems.append(f"{each.why}; --skip-gaps takes it for a hole")
        elif each.end_offset - end < OFFSETS_LEFT_OUT:
            plan.left_out.append(f"{each.why}: its records are left out")
        else:  # a restored log goes on OFFSETS_LEFT_OUT above its end, and would reach its offsets
            plan.problems.append(f"{each.why}, and nothing that is behind it is there")
    return whole


def _add(plan: RestoredTopic, copies: list[FoundManifest], skip_gaps: bool) -> None:
    """Add one partition to the plan. A hole that no segment could fill was left out on purpose."""
    start = 0
    for at, (one, other) in enumerate(pairwise(copies), 1):
        first, second = one.manifest.facts, other.manifest.facts
        if 0 < second.base_offset - first.end_offset < OFFSETS_LEFT_OUT:
            hole = f"partition {first.partition}: {first.end_offset}..{second.base_offset}"
            if skip_gaps:
                start = at
                plan.left_out.append(f"{hole} is missing, and what comes before it is left out")
            else:
                plan.problems.append(f"{hole} is in no published copy")
    plan.segments += [_segment(each) for each in copies[start:]]


def _segment(found: FoundManifest) -> RestoredSegment:
    manifest, facts = found.manifest, found.manifest.facts
    is_as_stored = bool(manifest.raw_batches) and not manifest.row_groups
    return RestoredSegment(
        segment_id=facts.segment_id,
        partition=facts.partition,
        generation=facts.generation,
        epoch=facts.epoch,
        base_offset=facts.base_offset,
        end_offset=facts.end_offset,
        seal_digest=facts.seal_digest.hex(),
        full_digest=facts.full_digest.hex(),
        max_append_timestamp_ms=_newest_ms(manifest),
        attempt=manifest.attempt,
        manifest_sha256=found.sha256.hex(),
        content_digest=manifest.content_digest.hex(),
        length_bytes=found.length_bytes,
        records=manifest.records,
        tier_format=SEGMENT_FORMAT if is_as_stored else PARQUET_FORMAT,
        indexed_headers=manifest.indexed_headers,
    )


def _newest_ms(manifest: Manifest) -> int:
    rows = [each.max_append_timestamp_ms for each in manifest.row_groups]
    return max([*rows, *(each.max_append_timestamp_ms for each in manifest.raw_batches)], default=0)
