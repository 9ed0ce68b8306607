"""Taking a backup of the metadata: read in parts, written to a file, noted when it is safe."""

import asyncio
from pathlib import Path

from icecore.client.cluster.connection import Connection
from icecore.client.types import MetadataBackup
from icecore.errors import InternalError
from icecore.metadata_backup import BackupEntry, BackupHeader, BackupWriter
from icecore.v1 import admin_pb2


async def take_backup(connection: Connection, path: Path, *, timeout_s: float) -> MetadataBackup:
    """Write the metadata of this moment into a file.

    Args:
        connection: The way to the coordinator.
        path: Of the file; an earlier backup of this cluster is replaced when the new one is whole.
        timeout_s: For each part.

    Raises:
        ConfigurationError: The path is something else than a backup of this cluster.
        StorageError: The file can't be written.
        IcecoreError: No coordinator answered in time, or it was started again meanwhile.
    """
    part = await _part(connection, b"", 0, timeout_s)
    header = BackupHeader(
        part.cluster_id, part.coordinator_epoch, part.revision, part.records, part.taken_at_ms
    )
    writer = await asyncio.to_thread(BackupWriter, path, header)
    try:
        start = 0
        while start < header.records:
            if not part.entries:
                raise InternalError(f"the coordinator has {start} of {header.records} records")
            entries = [BackupEntry(each.key, each.value, each.version) for each in part.entries]
            await asyncio.to_thread(writer.write, entries)
            start += len(entries)
            part = await _part(connection, part.snapshot_id, start, timeout_s)
        length_bytes = await asyncio.to_thread(writer.finish)
    finally:
        writer.abandon()
    await connection.admin(
        "NoteBackup",
        admin_pb2.NoteBackupRequest(revision=header.revision),
        admin_pb2.NoteBackupResponse,
        timeout_s=timeout_s,
    )
    return MetadataBackup(
        cluster_id=header.cluster_id,
        revision=header.revision,
        records=header.records,
        length_bytes=length_bytes,
    )


async def _part(
    connection: Connection, snapshot_id: bytes, start: int, timeout_s: float
) -> admin_pb2.ReadMetadataResponse:
    return await connection.admin(
        "ReadMetadata",
        admin_pb2.ReadMetadataRequest(snapshot_id=snapshot_id, start=start),
        admin_pb2.ReadMetadataResponse,
        timeout_s=timeout_s,
    )
