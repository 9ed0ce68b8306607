"""Positions for Admin: offsets of partitions, saved positions of readers, holds of snapshots, and
names of producers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from icecore.client import checks
from icecore.client.cluster.connection import AdminCalls
from icecore.client.cluster.metadata import Metadata
from icecore.client.cluster.offsets import OffsetLookup, Position, check_position
from icecore.client.consume.saved_positions import (
    NOWHERE,
    ReaderPlace,
    SavedPositions,
    check_name,
    list_positions,
)
from icecore.client.types import OffsetResult, PositionChange, SnapshotHold
from icecore.errors import InvalidRequestError
from icecore.v1 import admin_pb2

LEASE_ID_BYTES: Final = 16


async def list_offsets(
    calls: AdminCalls,
    metadata: Metadata,
    topic: str,
    position: Position,
    partitions: Iterable[int] | None,
) -> dict[int, OffsetResult]:
    """As ``Admin.list_offsets``."""
    checks.topic_name(topic)
    check_position(position)
    wanted = checks.partitions(partitions)
    found = await metadata.topic(topic, timeout_s=calls.timeout_s, is_fresh=True)
    count = len(found.partitions)
    wanted = tuple(range(count)) if wanted is None else wanted
    if any(partition >= count for partition in wanted):
        raise InvalidRequestError(f"{topic} has partitions 0 to {count - 1}")
    lookup = OffsetLookup(calls.connection, metadata, topic, timeout_s=calls.timeout_s)
    results = {partition: await lookup.find(partition, position) for partition in wanted}
    topic_id = lookup.topic_id or found.topic_id
    return {each: replace(result, topic_id=topic_id) for each, result in results.items()}


async def reset_position(
    calls: AdminCalls,
    metadata: Metadata,
    name: str,
    topic: str,
    position: Position,
    partitions: Iterable[int] | None,
    *,
    dry_run: bool,
) -> dict[int, PositionChange]:
    """As ``Admin.reset_position``."""
    check_name(checks.text("name", name))
    is_dry_run = checks.flag("dry_run", dry_run)
    found = await list_offsets(calls, metadata, topic, position, partitions)
    if isinstance(position, int) and position >= 0:
        await _check_offsets(calls, metadata, topic, position, list(found))
    known = metadata.known(topic)
    assert known is not None  # the offsets are of it
    stored = await list_positions(calls.connection, name, [topic], timeout_s=calls.timeout_s)
    before = {each.partition: each.offset for each in stored}
    changes = {
        number: PositionChange(before.get(number), each.offset) for number, each in found.items()
    }
    if not is_dry_run:
        saved = SavedPositions(calls.connection, name, calls.timeout_s)
        # Where it stands there already, too: a reader that runs has come further since.
        saved.note(replace(each, offset=NOWHERE) for each in stored)
        places = [ReaderPlace(known.topic_id, number, each.to) for number, each in changes.items()]
        await saved.save(lambda: places)
    return changes


async def _check_offsets(
    calls: AdminCalls, metadata: Metadata, topic: str, offset: int, partitions: Iterable[int]
) -> None:
    first = await list_offsets(calls, metadata, topic, "earliest", partitions)
    end = await list_offsets(calls, metadata, topic, "latest", partitions)
    for number in first:
        if not first[number].offset <= offset <= end[number].offset:
            raise InvalidRequestError(
                f"{topic}/{number} has offsets {first[number].offset} to {end[number].offset}, "
                f"not {offset}"
            )


async def hold_snapshot(
    calls: AdminCalls, topic: str, hold_ms: int, lease_id: bytes, owner: str
) -> SnapshotHold:
    """As ``Admin.hold_snapshot``."""
    if not isinstance(lease_id, bytes) or len(lease_id) not in (0, LEASE_ID_BYTES):
        raise checks.wrong_type("lease_id", lease_id, f"{LEASE_ID_BYTES} bytes")
    request = admin_pb2.HoldSnapshotRequest(
        topic=checks.topic_name(topic),
        lease_id=lease_id or calls.connection.rng.bytes(LEASE_ID_BYTES),
        hold_ms=checks.whole("hold_ms", hold_ms, 1, checks.UINT64_MAX),
        owner=checks.text("owner", owner),
        renew=bool(lease_id),
    )
    answer = await calls.call("HoldSnapshot", request, admin_pb2.HoldSnapshotResponse)
    held = answer.hold
    return SnapshotHold(answer.topic_id, held.lease_id, held.left_ms, held.owner)


async def release_snapshot(calls: AdminCalls, topic: str, lease_id: bytes) -> None:
    """As ``Admin.release_snapshot``."""
    if not isinstance(lease_id, bytes):
        raise checks.wrong_type("lease_id", lease_id, "bytes")
    request = admin_pb2.ReleaseSnapshotRequest(topic=checks.topic_name(topic), lease_id=lease_id)
    await calls.call("ReleaseSnapshot", request, admin_pb2.ReleaseSnapshotResponse)


async def delete_producer_name(calls: AdminCalls, name: str) -> None:
    """As ``Admin.delete_producer_name``."""
    request = admin_pb2.DeleteProducerNameRequest(name=checks.text("name", name))
    await calls.call("DeleteProducerName", request, admin_pb2.DeleteProducerNameResponse)
