"""Nodes and metadata for Admin: what becomes of a node, of a store that is old, and a backup."""

import asyncio
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from icecore.client import checks
from icecore.client.admin.tiering import bucket_parts
from icecore.client.cluster.connection import AdminCalls
from icecore.client.cluster_types import (
    AdoptedMetadata,
    ClusterDescription,
    MetadataBackup,
    SegmentMove,
)
from icecore.errors import InternalError
from icecore.metadata_backup import BackupEntry, BackupHeader, BackupWriter
from icecore.rpc.messages import value_of
from icecore.v1 import admin_pb2

# --- nodes ----------------------------------------------------------------------------------------


async def describe_cluster(calls: AdminCalls) -> ClusterDescription:
    """As ``Admin.describe_cluster``."""
    request = admin_pb2.DescribeClusterRequest()
    answer = await calls.call("DescribeCluster", request, admin_pb2.DescribeClusterResponse)
    return value_of(ClusterDescription, answer)


async def accept_disk(calls: AdminCalls, node_id: int) -> int:
    """As ``Admin.accept_disk``."""
    request = admin_pb2.AcceptDiskRequest(node_id=_node(node_id))
    answer = await calls.call("AcceptDisk", request, admin_pb2.AcceptDiskResponse)
    return int(answer.last_copies)


async def remove_node(calls: AdminCalls, node_id: int, *, disk_gone: bool) -> int:
    """As ``Admin.remove_node``."""
    request = admin_pb2.RemoveNodeRequest(
        node_id=_node(node_id), disk_gone=checks.flag("disk_gone", disk_gone)
    )
    answer = await calls.call("RemoveNode", request, admin_pb2.RemoveNodeResponse)
    return int(answer.given_up_copies)


async def drain_node(
    calls: AdminCalls, node_id: int, *, undrain: bool = False, allow_fewer_copies: bool = False
) -> None:
    """As ``Admin.drain_node`` and ``Admin.undrain_node``."""
    request = admin_pb2.DrainNodeRequest(
        node_id=_node(node_id),
        undrain=undrain,
        allow_fewer_copies=checks.flag("allow_fewer_copies", allow_fewer_copies),
    )
    await calls.call("DrainNode", request, admin_pb2.DrainNodeResponse)


async def balance_cluster(calls: AdminCalls, *, dry_run: bool) -> tuple[SegmentMove, ...]:
    """As ``Admin.balance_cluster``."""
    request = admin_pb2.BalanceClusterRequest(dry_run=checks.flag("dry_run", dry_run))
    answer = await calls.call("BalanceCluster", request, admin_pb2.BalanceClusterResponse)
    return tuple(value_of(SegmentMove, each) for each in answer.moves)


def _node(node_id: int) -> int:
    return checks.whole("node_id", node_id, 1, checks.UINT32_MAX)


# --- metadata -------------------------------------------------------------------------------------


async def adopt_metadata(
    calls: AdminCalls,
    *,
    dry_run: bool,
    without_nodes: Sequence[int],
    skip_gaps: bool,
    bucket: Sequence[Mapping[str, Any]] | None,
) -> AdoptedMetadata:
    """As ``Admin.adopt_metadata``. The coordinator decides with the last part of the bucket."""
    wish = admin_pb2.AdoptMetadataRequest(
        dry_run=checks.flag("dry_run", dry_run),
        without_nodes=checks.node_ids("without_nodes", without_nodes),
        skip_gaps=checks.flag("skip_gaps", skip_gaps),
    )
    parts = bucket_parts(bucket) if bucket is not None else []
    for page, part in enumerate(parts[:-1]):
        # An older coordinator decides with each call: dry runs change nothing there.
        some = admin_pb2.AdoptMetadataRequest(bucket=part, page=page, more=True, dry_run=True)
        await calls.call("AdoptMetadata", some, admin_pb2.AdoptMetadataResponse)
    if parts:
        wish.bucket.CopyFrom(parts[-1])
        wish.page = len(parts) - 1
    answer = await calls.call("AdoptMetadata", wish, admin_pb2.AdoptMetadataResponse)
    return value_of(AdoptedMetadata, answer)


async def backup_metadata(calls: AdminCalls, path: str | PathLike[str]) -> MetadataBackup:
    """As ``Admin.backup_metadata``: read in parts, written to a file, noted when it is safe."""
    if not isinstance(path, str | PathLike) or not (name := fspath(path)):
        raise checks.wrong_type("path", path, "the path of a file")
    part = await _part(calls, b"", 0)
    header = BackupHeader(
        part.cluster_id, part.coordinator_epoch, part.revision, part.records, part.taken_at_ms
    )
    writer = await asyncio.to_thread(BackupWriter, Path(name), header)
    try:
        start = 0
        while start < header.records:
            if not part.entries:
                raise InternalError(f"the coordinator has {start} of {header.records} records")
            entries = [BackupEntry(each.key, each.value, each.version) for each in part.entries]
            await asyncio.to_thread(writer.write, entries)
            start += len(entries)
            part = await _part(calls, part.snapshot_id, start)
        length_bytes = await asyncio.to_thread(writer.finish)
    finally:
        writer.abandon()
    note = admin_pb2.NoteBackupRequest(revision=header.revision)
    await calls.call("NoteBackup", note, admin_pb2.NoteBackupResponse)
    return MetadataBackup(
        cluster_id=header.cluster_id,
        revision=header.revision,
        records=header.records,
        length_bytes=length_bytes,
    )


async def _part(
    calls: AdminCalls, snapshot_id: bytes, start: int
) -> admin_pb2.ReadMetadataResponse:
    request = admin_pb2.ReadMetadataRequest(snapshot_id=snapshot_id, start=start)
    return await calls.call("ReadMetadata", request, admin_pb2.ReadMetadataResponse)
