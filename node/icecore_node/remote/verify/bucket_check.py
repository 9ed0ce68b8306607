"""Proving a bucket: every published copy against its manifest, digests, the table and metadata.

Reads all of it, every byte once. Damage prevents reads of published records, or gives readers of
the table other ones. Strange things (unknown files, unfinished uploads, copies of other clusters)
are reported and do no harm.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from icecore.model import OFFSETS_LEFT_OUT
from icecore.tier_records import topic_folder
from icecore_node.ports import Executor
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import Manifest, TieredDamageError
from icecore_node.remote.store.object_store import ObjectMissingError, ObjectTooShortError
from icecore_node.remote.verify.behind_table import copies_behind, passed_over
from icecore_node.remote.verify.bucket import Bucket, CountingStore, FoundManifest, TopicObjects
from icecore_node.remote.verify.table_look import TableLook

PIECE_BYTES = 8 << 20

Published: TypeAlias = Mapping[tuple[int, int], bytes]
"""SHA-256 of the manifest in metadata, by segment id and attempt."""


@dataclass(kw_only=True)
class CopyReport:
    """Findings about one copy."""

    topic: str
    topic_id: str
    partition: int
    segment_id: int
    generation: int
    attempt: int
    base_offset: int
    end_offset: int
    records: int
    length_bytes: int
    is_published: bool
    """Whether the copy counts: as metadata say, else as the table does. A copy without rows is in
    no table; it counts when its offsets are missing there."""
    problem: str = ""
    """Empty = proved, or not published and so not read."""


@dataclass(kw_only=True)
class TopicReport:
    """Findings about one topic."""

    topic: str
    topic_id: str
    has_table: bool
    copies: list[CopyReport] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        """Number of problems."""
        return len(self.damage) + sum(bool(each.problem) for each in self.copies)


class BucketCheck:
    """One pass over the contents of a bucket. Loop only.

    Args:
        store: The prefix.
        bucket: The listing of the bucket.
        executor: Runs decoding and hashing.
        told: Called with the name of each copy that is about to be read.
    """

    def __init__(
        self,
        store: CountingStore,
        bucket: Bucket,
        executor: Executor,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._executor = executor
        self._told = told

    async def topic(
        self, found: TopicObjects, table: TableLook | None, published: Published | None
    ) -> TopicReport:
        """Prove one topic.

        Args:
            found: Objects of the topic.
            table: Content of its table; None = it has none.
            published: Published copies in metadata; None = there is no cluster.
        """
        report = TopicReport(
            topic=name_of(found, table),
            topic_id=topic_folder(found.topic_id),
            has_table=found.has_table,
        )
        if found.table_damage:
            where = report.strange if found.is_deleted else report.damage
            where.append(f"the table can't be read: {found.table_damage}")
        report.strange += strangers(self._bucket, found)
        counting = published_of(self._bucket, found, table, published)
        for each in found.manifests:
            report.copies.append(await self._copy(found, each, each in counting))
        report.damage += unreadable(found, table, published)
        report.damage += differences(found, table, published, counting)
        report.damage += overlaps(counting)
        report.strange += gaps(counting)
        if published is None and table is not None:
            report.strange += unnamed(table, counting)
            report.strange += passed_over(found, counting)
        return report

    async def _copy(
        self, found: TopicObjects, each: FoundManifest, is_published: bool
    ) -> CopyReport:
        manifest = each.manifest
        facts = manifest.facts
        report = CopyReport(
            topic=facts.topic,
            topic_id=topic_folder(facts.topic_id),
            partition=facts.partition,
            segment_id=facts.segment_id,
            generation=facts.generation,
            attempt=manifest.attempt,
            base_offset=facts.base_offset,
            end_offset=facts.end_offset,
            records=manifest.records,
            length_bytes=each.length_bytes,
            is_published=is_published,
        )
        if is_published:
            self._told(manifest.parquet.key)
            is_bare = found.is_bare(manifest)
            report.problem = found.wrong_size(manifest) or await self._problem(manifest, is_bare)
        return report

    async def _problem(self, manifest: Manifest, is_bare: bool) -> str:
        """Return how a copy differs from its manifest; empty = it does not."""
        try:
            await CopyReader(self._store, manifest, self._executor).verify(is_bare=is_bare)
            await self._prove_index(manifest)
        except (TieredDamageError, ObjectMissingError, ObjectTooShortError) as error:
            return error.message
        return ""

    async def _prove_index(self, manifest: Manifest) -> None:
        index, whole = manifest.index, hashlib.sha256()
        if index is None:
            return
        for start in range(0, index.size_bytes, PIECE_BYTES):
            span = (start, min(start + PIECE_BYTES, index.size_bytes))
            [data] = await self._store.get_ranges(index.key, [span])
            await self._executor.run(whole.update, data)
        if whole.digest() != index.sha256:
            raise TieredDamageError(f"{index.key} is not what was put")


def name_of(found: TopicObjects, table: TableLook | None) -> str:
    """Return the name of a topic as stored with its settings, else from its newest manifest, else
    from its table."""
    if found.name:
        return found.name
    newest = max(found.manifests, key=lambda each: each.manifest.attempt, default=None)
    return newest.manifest.facts.topic if newest else table.topic if table else ""


def published_of(
    bucket: Bucket,
    found: TopicObjects,
    table: TableLook | None,
    published: Published | None = None,
) -> list[FoundManifest]:
    """Return the copies that count, by partition and offset.

    Metadata say it, else the table, and what follows it (``behind_table``). Where there is neither,
    the newest copy of each offset does: a manifest is put only when all of its objects were read
    back and proved.
    """
    if published is not None:
        counting = [each for each in found.manifests if _numbers(each) in published]
    elif table is not None:
        counting = [each for each in found.manifests if each.path in table.paths]
        counting += copies_behind(bucket, found, table)
        rowless = [each for each in found.manifests if not each.manifest.row_groups]
        counting += _filling(counting, rowless)
    else:
        counting = _filling([], found.manifests)
    return sorted(counting, key=_place)


def _filling(known: list[FoundManifest], others: list[FoundManifest]) -> list[FoundManifest]:
    """Return those of the others, newest first, whose offsets are still missing."""
    taken, chosen = [*known], list[FoundManifest]()
    for each in sorted(others, key=lambda other: other.manifest.attempt, reverse=True):
        if not any(_overlap(each, other) for other in taken):
            taken.append(each)
            chosen.append(each)
    return chosen


def _numbers(found: FoundManifest) -> tuple[int, int]:
    return found.manifest.facts.segment_id, found.manifest.attempt


def _place(found: FoundManifest) -> tuple[int, int]:
    return found.manifest.facts.partition, found.manifest.facts.base_offset


def _overlap(one: FoundManifest, other: FoundManifest) -> bool:
    first, second = one.manifest.facts, other.manifest.facts
    meet = first.base_offset < second.end_offset and second.base_offset < first.end_offset
    return first.partition == second.partition and meet


def strangers(bucket: Bucket, found: TopicObjects) -> Iterator[str]:
    """Yield strange findings that are no damage."""
    if found.is_deleted:
        yield "it is deleted, as its settings say: what the sweeper took of it is missing"
    for key in found.without_manifest():
        yield f"{key}: no manifest names it; an upload is under way, or was not finished"
    for each in found.manifests:
        if found.is_bare(each.manifest):
            yield f"{each.manifest.parquet.key}: it is gone, had no rows, and is not missed"
        if not bucket.is_ours(each.manifest):
            other = each.manifest.facts.cluster_id.hex()
            yield f"{each.manifest.key}: of cluster {other}, the bucket is {bucket.cluster_id}'s"
    names = {each.manifest.facts.topic for each in found.manifests}
    if len(names) > 1:
        yield f"manifests call the topic {', '.join(sorted(names))}"


def unreadable(
    found: TopicObjects, table: TableLook | None, published: Published | None
) -> Iterator[str]:
    """Yield manifests and settings that can't be read. ``differences`` names those manifests that
    are known to be published."""
    is_known = table is not None or published is not None
    for key, why in found.unreadable.items():
        is_plain = is_known or key in found.settings_keys
        yield f"{key}: {why}{'' if is_plain else '; nothing says whether it is published'}"


def differences(
    found: TopicObjects,
    table: TableLook | None,
    published: Published | None,
    counting: list[FoundManifest],
) -> Iterator[str]:
    """Yield contradictions between metadata, the table and manifests."""
    if table is not None:
        known = {each.path for each in found.manifests}
        for path in sorted(table.paths - known):
            yield f"{path}: the table names it, no manifest does"
    if published is None:
        return
    by_numbers = {_numbers(each): each for each in found.manifests}
    for numbers, sha256 in sorted(published.items()):
        each = by_numbers.get(numbers)
        if each is None:
            yield f"segment {numbers[0]}, attempt {numbers[1]}: published, and without a manifest"
        elif each.sha256 != sha256:
            yield f"{each.manifest.key}: it is not the manifest that was published"
    rowful = {each.path for each in counting if each.manifest.row_groups}
    named = table.paths if table is not None else frozenset[str]()
    for path in sorted(rowful - named if not found.table_damage else ()):
        yield f"{path}: published, and not in the table (yet)"
    for path in sorted((named - rowful) & {each.path for each in found.manifests}):
        yield f"{path}: in the table (still), and not published"


def unnamed(table: TableLook, counting: list[FoundManifest]) -> Iterator[str]:
    """Yield copies that count and that the table does not name yet."""
    for each in counting:
        if each.manifest.row_groups and each.path not in table.paths:
            yield f"{each.path}: it follows what the table names, which does not name it (yet)"


def overlaps(counting: list[FoundManifest]) -> Iterator[str]:
    """Yield pairs of published copies with the same offsets."""
    for one, other in pairwise(counting):
        if _overlap(one, other):
            yield f"{one.path} and {other.path} have the same offsets"


def gaps(counting: list[FoundManifest]) -> Iterator[str]:
    """Yield offsets between published copies that no copy has: not tiered yet, given up, or
    missing."""
    for one, other in pairwise(counting):
        first, second = one.manifest.facts, other.manifest.facts
        is_hole = 0 < second.base_offset - first.end_offset < OFFSETS_LEFT_OUT
        if first.partition == second.partition and is_hole:
            yield (
                f"partition {first.partition}: offsets {first.end_offset}..{second.base_offset} "
                "are in no published copy"
            )
