"""The content of a host's disk, read without its node: logs as a power cut would leave them, and an
index that must say the same as they do.

A node tells what it believes. Invariants that are about disks must hold while it is down, too, and
for what it would find if it came back.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from icecore.codec.batch import parse_header
from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE, SEGMENT_ENGINE
from icecore_node.ports import File
from icecore_node.storage.batches.batch_scan import BatchScan, FoundBatch, empty_tail
from icecore_node.storage.control.control_store import CONFIRMED, PREPARED, QUARANTINED, ReplicaRow
from icecore_node.storage.control.disk_identity import engine_of
from icecore_node.storage.engine import LogTail, SegmentIdentity
from icecore_node.storage.index.points import key_prefix
from icecore_node.storage.rocksdb_engine.log_keys import log_key, read_slot, read_tail, tail_key
from icecore_node.storage.rocksdb_engine.rocks_log import StoredBatches
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.simulation.durable_file import DurableFile
from tests.simulation.inode import Inode
from tests.simulation.log_database import SimLogDatabase
from tests.simulation.shared_logs import SharedDisk, is_shared, noted, tail_at

if TYPE_CHECKING:
    from tests.simulation.cluster import Host

_COLUMNS = ", ".join(ReplicaRow.__dataclass_fields__)


def replica_rows(host: "Host", segment_id: int | None = None) -> Iterator[ReplicaRow]:
    """Yield the control store's records of a host's replicas, of one segment or of all."""
    wanted = "" if segment_id is None else f" WHERE segment_id = {segment_id}"
    yield from (
        ReplicaRow(*row)
        for row in host.control.execute(f"SELECT {_COLUMNS} FROM replicas{wanted}").fetchall()
    )


def files_to_delete(host: "Host") -> set[str]:
    """Names of the files whose deletion is ordered, durably, and may not have ended."""
    ordered = host.control.execute("SELECT segment_id FROM intents").fetchall()
    rows = [row for (segment_id,) in ordered for row in replica_rows(host, segment_id)]
    return {file_name(identity_of(host, row)) for row in rows}


def identity_of(host: "Host", row: ReplicaRow) -> SegmentIdentity:
    """Return the identity of a replica in this host's folder."""
    found = host.control.execute("SELECT value FROM meta WHERE key = 'cluster_id'").fetchone()
    return row.identity(bytes(found[0]) if found else b"")


def durable_tail(host: "Host", segment_id: int, end_offset: int) -> LogTail | None:
    """Return the end of a segment's durable log, or its tail at ``end_offset`` if the log is
    longer. None = the host has no such log, or knows it to be damaged."""
    for row in replica_rows(host, segment_id):
        if row.damage or row.state in (PREPARED, QUARANTINED):
            return None
        if is_shared(row):
            identity = identity_of(host, row)
            verdict = SharedDisk(host.disk, noted=noted(host.index)).judge(row, identity)
            return None if verdict.damage else tail_at(row, identity, verdict, end_offset)
        scan = durable_scan(host, row)
        if scan is None:
            return None
        while scan.tail.end_offset < end_offset:
            if next(scan, None) is None:
                break
        return scan.tail
    return None


def durable_logs(host: "Host") -> dict[int, list[tuple[int, int]]]:
    """Base offset and header CRC of each batch in the durable logs that the host takes for intact,
    by segment. A header's CRC stands for its batch, and by the chain for all before it."""
    logs: dict[int, list[tuple[int, int]]] = {}
    shared = SharedDisk(host.disk, noted=noted(host.index))
    for row in _intact_rows(host):
        if is_shared(row):
            verdict = shared.judge(row, identity_of(host, row))
            headers = [parse_header(raw) for raw in verdict.headers]
            if not verdict.damage:
                logs[row.segment_id] = [(each.base_offset, each.header_crc32c) for each in headers]
            continue
        scan = durable_scan(host, row)
        if scan is not None:
            found = [each.header for each in scan]
            logs[row.segment_id] = [(each.base_offset, each.header_crc32c) for each in found]
    return logs


def _intact_rows(host: "Host") -> Iterator[ReplicaRow]:
    for row in replica_rows(host):
        if not (row.damage or row.rebuilding or row.state in (PREPARED, QUARANTINED)):
            yield row


def index_problems(host: "Host") -> Iterator[str]:
    """I20: what the index of a host says that a scan of its durable logs does not."""
    yield from shared_problems(host)
    for row in _intact_rows(host):
        if engine_of(row.engine) != SEGMENT_ENGINE:  # those derive nothing
            continue
        if row.flush and row.state == CONFIRMED:
            continue  # of what is written and not synced an index may tell (R80)
        identity = identity_of(host, row)
        if is_shared(row):
            continue
        inode = host.durable_file(file_name(identity))
        if inode is None:
            if file_name(identity) not in files_to_delete(host):  # its row goes last
                yield f"I20: segment {row.segment_id} has no durable file"
            continue
        scan = scan_log(host, row, inode)
        batches = {found.header.base_offset: found for found in scan}
        yield from _wrong_points(host, identity, batches)
        durable = _entries(host, "durable", identity)
        for value in durable.values():
            position = int.from_bytes(value[:8], "little")
            if position > scan.position:
                yield (
                    f"I20: segment {row.segment_id} is durable to {scan.position}, its index says"
                    f" {position}"
                )


def shared_problems(host: "Host", without: str = "") -> Iterator[str]:
    """I20: logs of a host that its shared files do not prove.

    Args:
        host: It may be down.
        without: A file that is about to go.
    """
    rows = [row for row in _intact_rows(host) if is_shared(row)]
    if not rows:
        return
    ordered = host.control.execute("SELECT segment_id FROM intents").fetchall()
    shared = SharedDisk(host.disk, without, noted(host.index))
    for row in rows:
        damage = shared.judge(row, identity_of(host, row)).damage
        if damage and (row.segment_id,) not in ordered:
            yield f"I20: segment {row.segment_id} is not on disk as it was written: {damage}"


def scan_log(host: "Host", row: ReplicaRow, inode: Inode) -> BatchScan:
    """Walk the durable batches of one replica."""
    identity = identity_of(host, row)
    file = cast(File, DurableFile(inode))
    end = row.end_position if row.end_position >= 0 else inode.durable_size
    start = empty_tail(identity, row.start_timestamp_ms)
    return BatchScan(file, identity, FILE_HEADER_LENGTH, start, end, with_bodies=False)


def durable_scan(host: "Host", row: ReplicaRow) -> BatchScan | None:
    """The same of a replica of any engine; None when there is nothing of it on disk."""
    identity = identity_of(host, row)
    if row.engine == ROCKSDB_ENGINE:
        database = SimLogDatabase(host.disk.database.as_synced())
        value = database.get(log_key(row.segment_id))
        if value is None:
            return None
        stored = StoredBatches(database, read_slot(value).number)
        told = database.get(tail_key(stored.slot))
        end = 0 if told is None else read_tail(told)[1]
        start = empty_tail(identity, row.start_timestamp_ms)
        return BatchScan(stored, identity, 0, start, end, with_bodies=False)
    inode = host.durable_file(file_name(identity))
    is_file = engine_of(row.engine) == SEGMENT_ENGINE and inode is not None
    return scan_log(host, row, cast(Inode, inode)) if is_file else None


def is_in_memory(host: "Host", segment_id: int) -> bool:
    """Return whether a copy is one that no disk has, nor ever promised to have."""
    return any(row.engine == MEMORY_ENGINE for row in replica_rows(host, segment_id))


def _entries(host: "Host", family: str, identity: SegmentIdentity) -> dict[bytes, bytes]:
    """Return the entries of one replica in a family of the index."""
    found = host.index.families.get(family)
    prefix = key_prefix(identity).to_bytes(8, "big")
    if found is None:
        return {}
    return {key: value for key, value in found.values.items() if key.startswith(prefix)}


def _wrong_points(
    host: "Host", identity: SegmentIdentity, batches: dict[int, FoundBatch]
) -> Iterator[str]:
    where = f"I20: segment {identity.segment_id}"
    for key, value in _entries(host, "offset", identity).items():
        offset, position = int.from_bytes(key[8:], "big"), int.from_bytes(value, "big")
        found = batches.get(offset)
        if found is None or found.position != position:
            yield f"{where}: its index has offset {offset} at {position}, a scan has {found}"
    for key, value in _entries(host, "time", identity).items():
        time_ms, offset = int.from_bytes(key[8:], "big"), int.from_bytes(value, "big")
        found = batches.get(offset)
        if found is None or max(found.header.append_timestamp_ms, 0) != time_ms:
            yield f"{where}: its index has time {time_ms} at offset {offset}, a scan has {found}"
