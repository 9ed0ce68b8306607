"""The shared files of a data folder as they are, read without an engine, and changed by nobody."""

from icecore.errors import StorageError
from icecore_node.ports import File, FileSystem
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.engine import KnownLog
from icecore_node.storage.shared_engine.file_scan import scan_file
from icecore_node.storage.shared_engine.judgement import CopyVerdict, judge, provable
from icecore_node.storage.shared_engine.shared_files import FOLDER, file_name, number_of
from icecore_node.storage.shared_engine.trails import Trails
from icecore_replication.digest import FullDigest

_READ_BYTES = 1 << 20


class SharedFolder:
    """Reads the shared files of one data folder. Holds them open until ``close``.

    Raises StorageError when one of them can't be read.
    """

    def __init__(self, file_system: FileSystem) -> None:
        self._files: dict[int, File] = {}
        self._trails = Trails()
        numbers = [number_of(name) for name in file_system.list_dir(FOLDER)]
        for number in sorted(number for number in numbers if number is not None):
            file = self._files[number] = file_system.open(file_name(number))
            self._trails.add_file(number, scan_file(file, number, 0))

    def pread(self, number: int, length: int, position: int) -> bytes:
        """See ``Bytes.pread``."""
        return self._files[number].pread(length, position)

    def judge(self, log: KnownLog) -> CopyVerdict:
        """Judge one log, with the CRCs of all its batches; once for each log."""
        identity = log.identity
        trail = self._trails.take((identity.segment_id, identity.generation))
        verdict = judge(self, log, trail)
        if trail is None or verdict.damage or identity.base_offset < 0:
            return verdict
        start = empty_tail(identity, log.start_timestamp_ms)
        tail, _ = provable(self, log, trail.runs, start)
        if tail.end_offset < verdict.tail.end_offset:
            return verdict.damaged(f"a batch behind offset {tail.end_offset} is damaged")
        return verdict

    def full_digest(self, verdict: CopyVerdict) -> bytes:
        """Return the full digest of the batches that were found of a log."""
        full = FullDigest()
        for run in verdict.runs:
            position, end = run.position, run.position + run.length
            while position < end:
                data = self.pread(run.number, min(_READ_BYTES, end - position), position)
                if not data:
                    raise StorageError(f"shared file {run.number} ends at {position}")
                full.update(data)
                position += len(data)
        return full.digest()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
