"""What can still be proved of a log that is UNKNOWN, and how it is used again by a person's word.

A log may be condemned although most of its bytes are right: a sync failed, the folder was an
old copy, one sector is bad. Whatever chains from the segment's seed under right CRCs is what the
leader wrote; only what may have followed is not known. Nothing is patched: the provable part is
copied into a new file, synced (what a failed sync left in the page cache may be on no disk), and
the old file stays aside.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from icecore.errors import IcecoreError, InvalidRequestError, NotReplicaError, StorageError
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, File, FileSystem
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import FoundLog, KnownLog, LogTail, SegmentIdentity
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    decode_file_header,
    encode_file_header,
)
from icecore_node.storage.segment_engine.segment_names import (
    aside_name,
    file_name,
    files_of,
    folder_name,
)
from icecore_node.storage.segment_engine.segment_scan import BatchScan, empty_tail

COPY_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class Provable(NamedTuple):
    """The part of one file that is right from the first byte on."""

    name: str
    tail: LogTail
    position: int


class FileSalvage:
    """``LogSalvage`` over segment files. All methods block; only ``restore`` changes anything.

    Args:
        file_system: Of the data folder.
        fail_stop: Of the engine.
        use: Judges a log whose file was put in its place, as a start would, and uses it.
    """

    def __init__(
        self,
        file_system: FileSystem,
        fail_stop: FailStop,
        use: Callable[[KnownLog], FoundLog],
    ) -> None:
        self._fs = file_system
        self._fail_stop = fail_stop
        self._use = use

    def tail(self, log: KnownLog) -> LogTail | None:
        """See ``LogSalvage.tail``. None when no file has any record that can be proved: that is no
        empty log."""
        found = self._longest(log)
        return None if found is None else found.tail

    def restore(self, log: KnownLog, remember: Callable[[], object]) -> FoundLog:
        """See ``LogSalvage.restore``."""
        identity = log.identity
        found = self._longest(log)
        if found is None:
            raise NotReplicaError(f"nothing of segment {identity.segment_id} can be salvaged here")
        name = file_name(identity)
        self._fs.rename(self._copy(found, identity), name)
        self._fail_stop.sync([], lambda: self._fs.sync_dir(folder_name(identity)))
        remember()
        event(
            _log,
            logging.CRITICAL,
            "log_salvaged",
            segment_id=identity.segment_id,
            end_offset=found.tail.end_offset,
            file=name,
        )
        return self._use(log)

    def _longest(self, log: KnownLog) -> Provable | None:
        """Of the file in its place and those set aside before."""
        best: Provable | None = None
        for name in files_of(self._fs, file_name(log.identity)):
            found = self._provable(name, log)
            end_offset = log.identity.base_offset if best is None else best.tail.end_offset
            if found is not None and found.tail.end_offset > end_offset:
                best = found
        return best

    def _provable(self, name: str, log: KnownLog) -> Provable | None:
        """Scan one file until something is not right; what can't be read is not right either."""
        identity = log.identity
        try:
            start = empty_tail(identity, log.start_timestamp_ms)
            file = self._fs.open(name)
        except (StorageError, InvalidRequestError) as error:
            event(_log, logging.WARNING, "not_salvageable", file=name, error=error)
            return None
        scan = BatchScan(
            file,
            identity,
            FILE_HEADER_LENGTH,
            start,
            file.size(),
            with_bodies=True,
        )
        try:
            if decode_file_header(file.pread(FILE_HEADER_LENGTH, 0)) != identity:
                return None
            for _ in scan:
                pass
        except StorageError as error:
            event(
                _log,
                logging.WARNING,
                "salvage_ends",
                file=name,
                position=scan.position,
                error=error,
            )
        finally:
            file.close()
        return Provable(name, scan.tail, scan.position)

    def _copy(self, found: Provable, identity: SegmentIdentity) -> str:
        """A new, synced file with this part alone; its name is one of those set aside, so that
        it goes with them should it stay."""
        name = aside_name(self._fs, file_name(identity))
        source, copy = self._fs.open(found.name), self._fs.open(name, create=True)
        try:
            copy.pwritev([encode_file_header(identity, is_confirmed=True)], 0)
            _copy_bytes(source, copy, found.position)
            self._fail_stop.sync([identity.segment_id], copy.fdatasync)
        except IcecoreError as error:
            if not isinstance(error, DiskFailedError):
                self._fs.unlink(name)
            raise
        finally:
            source.close()
            copy.close()
        return name


def _copy_bytes(source: File, copy: File, end_position: int) -> None:
    position = FILE_HEADER_LENGTH
    while position < end_position:
        data = source.pread(min(COPY_BYTES, end_position - position), position)
        if not data:
            raise StorageError(f"the file ended at {position} while it was copied")
        copy.pwritev([data], position)
        position += len(data)
