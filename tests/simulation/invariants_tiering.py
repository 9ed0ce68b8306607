"""The invariants of object storage, checked with each change of metadata and bucket (I16).

A published copy is all there, with the bytes that its manifest says; a segment whose copies have
left the nodes is published; no process removes an object of an upload that counts (R89); a table
names only rows that were published.
"""

import hashlib
import json
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from icecore.model import SegmentId
from icecore.tier_records import NO_ATTEMPT, TierRecord, TierState
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_node.remote.format.manifest import (
    MANIFEST,
    SUFFIXES,
    CopyName,
    TieredDamageError,
    parse_manifest,
    topic_folder,
)
from tests.simulation.object_store import SimBucket

if TYPE_CHECKING:
    from tests.simulation.cluster import World

COORDINATOR = "coordinator"
TABLE_FOLDER = "/_delta_log/"


def copy_name(tier: TierRecord) -> CopyName:
    """Return the name from which the keys of the current attempt are made."""
    return CopyName(
        topic_id=tier.topic_id,
        partition=tier.partition,
        segment_id=tier.segment_id,
        generation=tier.generation,
        base_offset=tier.base_offset,
        attempt=tier.attempt,
    )


class TieringInvariants:
    """Knows what was stored of each upload, whatever a coordinator remembers of it.

    Args:
        world: Its bucket, and its coordinator.
        note: Told of each thing that must not be.
    """

    def __init__(self, world: "World", note: Callable[[str], None]) -> None:
        self._world = world
        self._note = note
        self._tiers: dict[SegmentId, TierRecord] = {}
        self._uploads: dict[str, tuple[SegmentId, int]] = {}
        """Segment and attempt by key, of all that ever were."""

    def on_commit(self, change: Change, state: ClusterState) -> None:
        """A change is stored."""
        for record in change.deletes:
            if isinstance(record, TierRecord):
                self._tiers.pop(record.segment_id, None)
        for record in change.puts:
            if isinstance(record, TierRecord):
                self._on_tier(record)
            elif isinstance(record, SegmentRecord) and record.segment.is_remote_only:
                tier = state.tiers.segments.get(record.segment.segment_id)
                if tier is None or tier.state is not TierState.PUBLISHED:
                    self._note(f"I16: segment {record.segment.segment_id} has no copy anywhere")

    def on_read(self, state: ClusterState) -> None:
        """A coordinator has read what is stored. Its predecessor may have stored more than it knew
        of: the answer of its last transaction was lost."""
        for segment_id in self._tiers.keys() - state.tiers.segments.keys():
            del self._tiers[segment_id]
        for tier in state.tiers.segments.values():
            self._on_tier(tier)

    def _on_tier(self, tier: TierRecord) -> None:
        old = self._tiers.get(tier.segment_id)
        self._tiers[tier.segment_id] = tier
        if tier.attempt == NO_ATTEMPT:
            return
        for suffix in SUFFIXES:
            self._uploads[copy_name(tier).key(suffix)] = (tier.segment_id, tier.attempt)
        was_published = old is not None and old.state is TierState.PUBLISHED
        is_new = tier.state is TierState.PUBLISHED and not was_published
        if is_new and (problem := self._wrong(tier)):
            self._note(f"I16: segment {tier.segment_id} is published, and {problem}")

    def _wrong(self, tier: TierRecord) -> str:
        """Return what the bucket lacks or has wrong of the manifest; empty = nothing."""
        objects = self._world.bucket.objects
        data = objects.get(copy_name(tier).key(MANIFEST))
        if data is None:
            return "has no manifest"
        try:
            manifest = parse_manifest(data, tier.copy.manifest_sha256)
        except TieredDamageError as error:
            return str(error)
        for each in (manifest.parquet, manifest.index, manifest.side):
            if each is None:
                continue
            if hashlib.sha256(objects.get(each.key, b"missing")).digest() != each.sha256:
                return f"{each.key} is not what was uploaded"
        return ""

    def _counts(self, segment_id: SegmentId, attempt: int) -> bool:
        """Return whether that upload is under way, published or not yet given up, for all who
        know."""
        views = [self._tiers]
        if coordinator := self._world.shells.get(COORDINATOR):
            views.append(coordinator.ledger.state.tiers.segments)
        found = [view.get(segment_id) for view in views]
        return all(each is not None and each.attempt == attempt for each in found)

    def on_removed(self, key: str) -> None:
        """One of us removes an object."""
        upload = self._uploads.get(key)
        if upload is not None and self._counts(*upload):
            self._note(f"R89: {key} is removed and its upload counts")

    def on_put(self, key: str, data: bytes) -> None:
        """An object gets there; only commits of tables are looked into."""
        if TABLE_FOLDER not in key:
            return
        folder = key.partition(TABLE_FOLDER)[0]
        for path in json.loads(data)["add"]:
            upload = self._uploads.get(f"{folder}/{path}")
            tier = None if upload is None else self._tiers.get(upload[0])
            if tier is None or upload != (tier.segment_id, tier.attempt):
                continue  # its fate is known to a coordinator whom nobody has heard
            assert folder == topic_folder(tier.topic_id)
            if tier.state is TierState.UPLOADING:
                self._note(f"R88: the table names {path} before it is published")


Watched = tuple[type, str, Callable[[Any], Any]]


def watched(seen: TieringInvariants) -> list[Watched]:
    """Each function that is looked at, and what replaces it."""
    return [
        (Ledger, "_read", _reading(seen)),
        (SimBucket, "put", _putting(seen)),
        (SimBucket, "remove", _removing(seen)),
    ]


def _reading(seen: TieringInvariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def read(self: Ledger) -> None:
            await original(self)
            seen.on_read(self.state)

        return read

    return replace


def _putting(seen: TieringInvariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def put(self: SimBucket, key: str, data: bytes) -> None:
            original(self, key, data)
            seen.on_put(key, data)

        return put

    return replace


def _removing(seen: TieringInvariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def remove(self: SimBucket, key: str) -> None:
            if key in self.objects:
                seen.on_removed(key)
            original(self, key)

        return remove

    return replace
