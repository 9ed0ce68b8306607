"""The content of the shared files on a host's disk, read without its node, as a crash leaves it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from icecore.codec.batch import parse_header
from icecore.model import SegmentId
from icecore_node.storage.batches.batch_scan import FoundBatch, empty_tail, next_tail
from icecore_node.storage.control.control_store import ReplicaRow
from icecore_node.storage.engine import NO_TAIL, KnownLog, LogTail, SegmentIdentity
from icecore_node.storage.engines import SHARED_ENGINE
from icecore_node.storage.port import Store
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.shared_engine.file_scan import scan_file
from icecore_node.storage.shared_engine.frames import LogFrame
from icecore_node.storage.shared_engine.judgement import CopyVerdict, judge
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from icecore_node.storage.shared_engine.shared_files import FOLDER, NOTE_KEY, NOTES, file_name
from icecore_node.storage.shared_engine.trails import Trails
from tests.simulation.disk import SimDisk
from tests.simulation.durable_file import DurableFile
from tests.simulation.index import SimIndexDisk

if TYPE_CHECKING:
    from tests.simulation.cluster import Host


def noted(index: SimIndexDisk) -> dict[int, int]:
    """Return the position to which each shared file is durable, as the index's durable part
    says."""
    return {
        int.from_bytes(key[len(NOTE_KEY) :], "big"): int.from_bytes(value, "big")
        for key, value in index.durable(NOTES).items()
        if key.startswith(NOTE_KEY)
    }


def is_shared(row: ReplicaRow) -> bool:
    """Return whether its batches lie in shared files."""
    return row.engine == SHARED_ENGINE


class SharedDisk:
    """The durable content of all shared files but those that are left out.

    Args:
        disk: Of a host, also of one that is down.
        without: A file that is about to go.
        noted: By number, how far the index says that a file is on disk.
    """

    def __init__(
        self, disk: SimDisk, without: str = "", noted: Mapping[int, int] | None = None
    ) -> None:
        names = sorted(name for name in disk.durable_names if _is_shared_file(name))
        self._files = {
            _number(name): DurableFile(disk.durable_names[name])
            for name in names
            if name != without
        }
        self._trails = Trails()
        for number, file in self._files.items():
            noted_position = noted.get(number, 0) if noted else 0
            self._trails.add_file(number, scan_file(file, number, noted_position))

    def pread(self, number: int, length: int, position: int) -> bytes:
        """See ``Bytes.pread``."""
        return self._files[number].pread(length, position)

    def judge(self, row: ReplicaRow, identity: SegmentIdentity) -> CopyVerdict:
        """Judge what there is of one log; callable once for each."""
        known = KnownLog(identity, row.start_timestamp_ms)
        return judge(self, known, self._trails.take((row.segment_id, row.generation)))


def tail_at(
    row: ReplicaRow, identity: SegmentIdentity, verdict: CopyVerdict, end_offset: int
) -> LogTail:
    """Return the end of a log, or its tail at ``end_offset`` if the log is longer."""
    tail = NO_TAIL
    if identity.base_offset >= 0:
        tail = empty_tail(identity, row.start_timestamp_ms)
    for raw in verdict.headers:
        if tail.end_offset >= end_offset:
            break
        tail = next_tail(tail, FoundBatch(0, parse_header(raw), raw))
    return tail


def first_batches(disk: SimDisk) -> Iterator[tuple[str, int]]:
    """(file, position) of the first batch of each log that has its first in a shared file."""
    seen: set[SegmentId] = set()
    for name in sorted(name for name in disk.durable_names if _is_shared_file(name)):
        scanned = scan_file(DurableFile(disk.durable_names[name]), _number(name), 0)
        for frame in scanned.parts:
            position = frame.batches_position if isinstance(frame, LogFrame) else 0
            for entry in frame.entries if isinstance(frame, LogFrame) else ():
                if entry.length and entry.segment_id not in seen:
                    seen.add(entry.segment_id)
                    yield name, position
                position += entry.length


def runs_in(host: "Host", segment_id: int, store: Store) -> list[str]:
    """Shared files of a host in which a log of its node has batches."""
    logs = shared_engine(store)._logs
    runs = logs[segment_id].all_runs() if segment_id in logs else []
    names = dict.fromkeys(file_name(run.number) for run in runs)
    return [name for name in names if name in host.disk.names]


def shared_engine(store: Store) -> SharedEngine:
    """Return the shared engine of a node's store."""
    assert isinstance(store, ReplicaStore)
    engine = store._catalog.engines[SHARED_ENGINE]
    assert isinstance(engine, SharedEngine)
    return engine


def _is_shared_file(name: str) -> bool:
    return name.startswith(f"{FOLDER}/") and name.endswith(".log")


def _number(name: str) -> int:
    return int(name.removeprefix(f"{FOLDER}/").removesuffix(".log"))
