"""``python -m icecore_node.storage.inspect DATA [--json]``: check a data folder from the outside.

It changes nothing and trusts nothing that the node computed: identities are read from file headers,
every batch is CRC-checked and chained from the segment's seed, seal and full digests are computed
again from the bytes, and index files are compared with the batches. The control store says what to
expect, and where further disks are; it is read from a copy, so even a folder whose node was killed
stays as it is. Of a running node only sealed replicas are reported exactly.
"""

import argparse
import json
import shutil
import sqlite3
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from icecore.errors import ConfigurationError, IcecoreError, StorageError
from icecore.model import (
    Epoch,
    Generation,
    SegmentId,
)
from icecore_node.storage.batches.batch_reader import (
    check_whole,
    digest_of,
)
from icecore_node.storage.batches.batch_scan import (
    BatchScan,
    empty_tail,
    find_own_batches,
)
from icecore_node.storage.control.control_store import (
    PREPARED,
    QUARANTINED,
    SEALED,
    ControlStore,
    ReplicaRow,
)
from icecore_node.storage.control.disk_identity import FIRST_DISK, KnownDisk, disk_of
from icecore_node.storage.data_folder import CONTROL_NAME
from icecore_node.storage.engine import KnownLog, SegmentIdentity
from icecore_node.storage.engines import SHARED_ENGINE
from icecore_node.storage.files.file_system import OsFile, OsFileSystem
from icecore_node.storage.folder_owner import read_owner
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.segment_engine.index_check import check_index_file
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    decode_file_header,
)
from icecore_node.storage.segment_engine.segment_names import file_name, index_file_name
from icecore_node.storage.shared_engine.shared_folder import SharedFolder
from icecore_replication.digest import current_digest

DELETING: Final = "deleting"


@dataclass(slots=True, kw_only=True)
class ReplicaReport:
    """The findings on one replica; digests are recomputed ones, in hexadecimal."""

    topic_id: str
    partition: int
    segment_id: SegmentId
    generation: Generation
    epoch: Epoch
    state: str
    """As the node has it, or ``deleting``: ordered to go, but its disk has not let it yet."""
    base_offset: int
    end_offset: int = -1
    batches: int = 0
    bytes: int = 0
    seal_digest: str = ""
    full_digest: str = ""
    problem: str = ""
    """Empty = intact."""
    index: str = ""
    """State of a sealed replica's index file: ``ok``, ``none`` (not made yet), or its damage. That
    is no damage of the replica: the node drops such a file and makes another one."""


def verify_folder(data: Path) -> list[ReplicaReport]:
    """Check all replicas of a data folder, in order of segment id.

    Raises ConfigurationError when the folder is not a node's data folder.
    """
    control = data / CONTROL_NAME
    if not control.is_file():
        raise ConfigurationError(f"{data} is not a node's data folder: it has no {CONTROL_NAME}")
    rows, leaving, paths, cluster_id = _remembered(control)
    first = OsFileSystem(data)
    disks: dict[str, OsFileSystem | str] = {FIRST_DISK: first}
    shared = SharedFolder(first)
    try:
        for disk in sorted({disk_of(row.engine) for row in rows} - {FIRST_DISK}):
            disks[disk] = _disk(paths, disk)
        reports = []
        for row in rows:
            if row.segment_id in leaving:
                reports.append(_leaving(row))
            elif row.engine == SHARED_ENGINE:
                reports.append(_verify_shared(shared, row, cluster_id))
            else:
                reports.append(_verify(disks[disk_of(row.engine)], row))
        return reports
    finally:
        shared.close()
        for file_system in disks.values():
            if isinstance(file_system, OsFileSystem):
                file_system.close()


def _disk(paths: dict[str, KnownDisk], disk: str) -> OsFileSystem | str:
    """One disk, or why it can't be read."""
    if disk not in paths:
        return f"nothing is known of disk {disk}"
    path = Path(paths[disk].path)
    try:
        owner = read_owner(path)
        if owner is None or owner.disk_id != disk:
            return f"disk {disk} is not at {path}"
        return OsFileSystem(path)
    except (OSError, ValueError, IcecoreError) as error:
        return f"disk {disk} at {path}: {error}"


def _remembered(
    control: Path,
) -> tuple[list[ReplicaRow], set[SegmentId], dict[str, KnownDisk], bytes]:
    """Replica rows, which of them are to be deleted, further disks, the cluster; from a copy: an
    opened database may be written."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            source = control.with_name(control.name + suffix)
            if source.exists():
                shutil.copy(source, folder)
        try:
            connection = sqlite3.connect(Path(folder) / control.name, isolation_level=None)
            try:
                store = ControlStore(connection)
                cluster_id = store.database.get("cluster_id") or b""
                return store.rows(), {*store.intents()}, store.known_disks.all(), cluster_id
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StorageError(f"{control}: {error}") from error


def _leaving(row: ReplicaRow) -> ReplicaReport:
    """Report a replica that was ordered to be deleted, as intact whatever state its disk is in."""
    return _report(replace(row, state=DELETING, damage=""))


def _report(row: ReplicaRow) -> ReplicaReport:
    report = ReplicaReport(
        topic_id=row.topic_id.hex(),
        partition=row.partition,
        segment_id=row.segment_id,
        generation=row.generation,
        epoch=row.epoch,
        state=row.state,
        base_offset=row.base_offset,
    )
    if row.state == QUARANTINED or row.damage:
        report.problem = row.damage or "set aside as damaged"
    return report


def _verify_shared(shared: SharedFolder, row: ReplicaRow, cluster_id: bytes) -> ReplicaReport:
    """Check a replica whose batches are in shared files."""
    report = _report(row)
    if report.problem:
        return report
    try:
        verdict = shared.judge(KnownLog(row.identity(cluster_id), row.start_timestamp_ms))
        report.problem = verdict.damage
        if row.state == PREPARED or verdict.damage:
            return report
        report.end_offset, report.batches = verdict.tail.end_offset, len(verdict.headers)
        report.bytes = verdict.tail.length_bytes
        report.seal_digest = verdict.tail.digest.hex()
        if row.state == SEALED:
            report.index = "none"  # made with the file of its own
            report.full_digest = shared.full_digest(verdict).hex()
            _compare(row, report)
    except IcecoreError as error:
        report.problem = error.message
    return report


def _verify(file_system: OsFileSystem | str, row: ReplicaRow) -> ReplicaReport:
    report = _report(row)
    if report.problem:
        return report
    if isinstance(file_system, str):
        report.problem = file_system
        return report
    name = file_name(row.identity(bytes(16)))  # names don't hold the cluster
    try:
        file = file_system.open(name)
        try:
            _verify_file(file, row, report)
            if row.state == SEALED:
                report.index = _index_state(file_system, file, row)
        finally:
            file.close()
    except IcecoreError as error:
        report.problem = error.message
    return report


def _verify_file(file: OsFile, row: ReplicaRow, report: ReplicaReport) -> None:
    """Fill in what the file holds. Raises StorageError for what is wrong with it."""
    found = decode_file_header(file.pread(FILE_HEADER_LENGTH, 0))
    if found is None:
        raise StorageError("the file header is damaged")
    expected = row.identity(found.cluster_id)
    if found != expected:
        raise StorageError(f"the file belongs to {found}, not to {expected}")
    if row.state == PREPARED:
        return
    is_sealed = row.state == SEALED
    end_position = row.end_position if is_sealed else file.size()
    scan = BatchScan(
        file,
        found,
        FILE_HEADER_LENGTH,
        empty_tail(found, row.start_timestamp_ms),
        end_position,
        with_bodies=True,
    )
    try:
        for _ in scan:
            report.batches += 1
        if is_sealed:
            check_whole(scan)
            report.full_digest = digest_of(file, FILE_HEADER_LENGTH, end_position).hex()
        else:
            _check_nothing_behind(file, found, scan)
    finally:
        report.end_offset = scan.tail.end_offset
        report.bytes = scan.position - FILE_HEADER_LENGTH
        report.seal_digest = scan.tail.digest.hex()
    if is_sealed:
        _compare(row, report)


def _index_state(file_system: OsFileSystem, file: OsFile, row: ReplicaRow) -> str:
    """Check the index file of an intact sealed replica; see ``ReplicaReport.index``."""
    identity = row.identity(bytes(16))
    name = index_file_name(identity)
    if not file_system.exists(name):
        return "none"
    index_file = file_system.open(name)
    try:
        check_index_file(index_file, file, identity, row.seal_digest, row.end_position)
    except DamagedIndexError as error:
        return f"damaged: {error}"
    finally:
        index_file.close()
    return "ok"


def _check_nothing_behind(file: OsFile, identity: SegmentIdentity, scan: BatchScan) -> None:
    """A torn tail is no damage: nothing of it was acknowledged. Batches behind a hole are."""
    behind = find_own_batches(file, identity, scan.position, file.size(), scan.tail.end_offset + 1)
    if (lost := next(behind, None)) is not None:
        raise StorageError(
            f"damaged at position {scan.position} ({scan.stop}): there are batches of this segment "
            f"behind it, from offset {lost.header.base_offset}"
        )


def _compare(row: ReplicaRow, report: ReplicaReport) -> None:
    known_full = current_digest(row.full_digest).hex()  # none while the node has not computed it
    for what, stored, computed in (
        ("end offset", row.end_offset, report.end_offset),
        ("seal digest", row.seal_digest.hex(), report.seal_digest),
        ("full digest", known_full or report.full_digest, report.full_digest),
    ):
        if stored != computed:
            raise StorageError(f"{what} is {computed}, the control store has {stored}")


def _print(report: list[ReplicaReport], damaged: int) -> None:
    for each in report:
        print(
            f"{each.segment_id:>8} {each.topic_id[:8]}/{each.partition} {each.state:10} "
            f"[{each.base_offset}, {each.end_offset}) {each.batches} batches {each.bytes} bytes "
            f"{each.problem or 'ok'}{f', index {each.index}' if each.index else ''}"
        )
    print(f"{len(report)} replicas, {damaged} damaged")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 intact, 1 damage found or no data folder."""
    parser = argparse.ArgumentParser(
        prog="python -m icecore_node.storage.inspect", description=verify_folder.__doc__
    )
    parser.add_argument("data", type=Path, help="data folder of a node")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    try:
        report = verify_folder(arguments.data)
    except IcecoreError as error:
        print(f"icecore: {error.message}", file=sys.stderr)
        return 1
    damaged = sum(bool(each.problem) for each in report)
    if arguments.json:
        document: dict[str, Any] = {
            "data": str(arguments.data),
            "damaged": damaged,
            "replicas": [asdict(each) for each in report],
        }
        print(json.dumps(document, indent=2))
    else:
        _print(report, damaged)
    return int(damaged > 0)


if __name__ == "__main__":
    sys.exit(main())
