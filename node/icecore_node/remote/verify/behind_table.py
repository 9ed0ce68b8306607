"""Copies that a table does not name yet.

A table is brought up to date after a copy was published, and a failure may keep it behind. So
copies behind the last offset that it names count, as long as they follow without a hole, but for
one that was left out on purpose (``OFFSETS_LEFT_OUT``). Uploads overtake each other, so copies in
front of that offset count, too, where nothing that counts has their offsets; so do copies of a
partition of which it names none any more. What it named once was retired, and stays away. A
checkpoint hides what it named before, and then a later attempt than all that it names has to show
that a copy is new. Leftovers of an earlier cluster may have offsets that were given out again: they
never count.
"""

import math
from collections.abc import Iterator, Sequence

from icecore.model import OFFSETS_LEFT_OUT
from icecore_node.remote.verify.bucket import Bucket, FoundManifest, TopicObjects
from icecore_node.remote.verify.table_look import TableLook


def copies_behind(bucket: Bucket, found: TopicObjects, table: TableLook) -> list[FoundManifest]:
    """Return the copies with rows that were published since, partition by partition."""
    ours = [each for each in found.manifests if bucket.is_ours(each.manifest)]
    newest = max(ours, key=_attempt, default=None)
    if newest is None:
        return []
    last_cluster = newest.manifest.facts.cluster_id
    by_partition: dict[int, list[FoundManifest]] = {}
    for each in ours:
        if not each.manifest.row_groups or each.manifest.facts.cluster_id == last_cluster:
            by_partition.setdefault(each.manifest.facts.partition, []).append(each)
    chosen: list[FoundManifest] = []
    for number, copies in sorted(by_partition.items()):
        named = _named(found, table, number)
        following = [*_following(copies, named, table.revision(number))]
        chosen += following
        if named or table.revision(number):
            start = found.log_starts[number] if number < len(found.log_starts) else 0
            new = _new(copies, named, table, has_checkpoint=found.checkpoint >= 0)
            chosen += _filling([each for each in new if _end(each) > start], [*named, *following])
    return chosen


def has_unnamed(found: TopicObjects, table: TableLook) -> bool:
    """Return whether there are copies with rows that the table does not name: then it matters what
    it named once."""
    return any(
        each.manifest.row_groups and each.path not in table.paths for each in found.manifests
    )


def _new(
    copies: Sequence[FoundManifest],
    named: Sequence[FoundManifest],
    table: TableLook,
    *,
    has_checkpoint: bool,
) -> Iterator[FoundManifest]:
    """Yield the copies with rows that the table has never named."""
    highest = max(map(_attempt, named), default=math.inf)  # it may have named any of them
    for each in copies:
        is_known = each.path in table.paths or each.path in table.removed
        may_be_old = has_checkpoint and _attempt(each) <= highest
        if each.manifest.row_groups and not is_known and not may_be_old:
            yield each


def _filling(
    new: Sequence[FoundManifest], counting: Sequence[FoundManifest]
) -> Iterator[FoundManifest]:
    """Yield those in front of the last one that counts, or all where none does, whose offsets
    nothing has; newest first."""
    taken = [*counting]
    end_offset = max(map(_end, counting), default=math.inf)
    for each in sorted(new, key=_attempt, reverse=True):
        facts = each.manifest.facts
        is_taken = any(
            facts.base_offset < _end(other) and other.manifest.facts.base_offset < facts.end_offset
            for other in taken
        )
        if not is_taken and facts.end_offset <= end_offset:
            taken.append(each)
            yield each


def _end(found: FoundManifest) -> int:
    return found.manifest.facts.end_offset


def _named(found: TopicObjects, table: TableLook, number: int) -> list[FoundManifest]:
    return [
        each
        for each in found.manifests
        if each.path in table.paths and each.manifest.facts.partition == number
    ]


def _following(
    copies: Sequence[FoundManifest], named: Sequence[FoundManifest], revision: int
) -> Iterator[FoundManifest]:
    """Yield copies with rows, each from the end of the one before, or behind offsets that were left
    out. Batches without rows may lie between them."""
    highest = max(map(_attempt, named), default=0)
    others = [each for each in copies if not each.manifest.row_groups or _attempt(each) > highest]
    # Of copies with one base the one of the newest attempt is last, and stays.
    by_base = {each.manifest.facts.base_offset: each for each in sorted(others, key=_attempt)}
    if named:
        offset = max(each.manifest.facts.end_offset for each in named)
    elif revision or not by_base:
        return  # all that it ever named is gone
    else:
        offset = min(by_base)
    for base in sorted(by_base):
        if base >= offset and (base == offset or base - offset >= OFFSETS_LEFT_OUT):
            if by_base[base].manifest.row_groups:
                yield by_base[base]
            offset = by_base[base].manifest.facts.end_offset
        elif base > offset:
            return


def passed_over(found: TopicObjects, counting: Sequence[FoundManifest]) -> Iterator[str]:
    """Yield copies with rows behind all that counts of their partition."""
    ends: dict[int, int] = {}
    for each in counting:
        facts = each.manifest.facts
        ends[facts.partition] = max(facts.end_offset, ends.get(facts.partition, 0))
    for each in found.manifests:
        facts = each.manifest.facts
        if each.manifest.row_groups and facts.base_offset >= ends.get(facts.partition, 0):
            yield (
                f"{each.manifest.key}: no table names it, and it does not follow what counts of "
                "its partition, or is of an earlier cluster"
            )


def _attempt(found: FoundManifest) -> int:
    return found.manifest.attempt
