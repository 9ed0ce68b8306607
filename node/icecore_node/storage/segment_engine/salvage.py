"""Salvage of an UNKNOWN log from segment files; ``proven_logs.py`` has the rule.

Nothing is patched: the provable part is copied into a new file and synced, and the old file stays
aside. Bytes that a failed sync left in the page cache may be on no disk.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from icecore.errors import IcecoreError, InvalidRequestError, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, File, FileSystem
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import FoundLog, KnownLog, SegmentIdentity
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

COPY_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class Provable(NamedTuple):
    """The part of one file that is right from the first byte on."""

    name: str
    end: Place


class FileRemains:
    """``Remains`` in segment files. All methods block.

    Args:
        file_system: Of the data folder.
        fail_stop: Of the engine.
        judge: Judges a log whose file was put in its place, as a start would, and uses it.
    """

    def __init__(
        self,
        file_system: FileSystem,
        fail_stop: FailStop,
        judge: Callable[[KnownLog], FoundLog],
    ) -> None:
        self._fs = file_system
        self._fail_stop = fail_stop
        self._judge = judge

    def strays(self) -> list[SegmentId]:
        """See ``Remains.strays``: files that are not known are reported at the start, and stay."""
        return []

    def provable(self, log: KnownLog) -> Iterator[Provable]:
        """See ``Remains.provable``."""
        for name in files_of(self._fs, file_name(log.identity)):
            found = self._provable(name, log)
            if found is not None:
                yield found

    def put_back(self, log: KnownLog, found: Provable) -> None:
        """See ``Remains.put_back``."""
        identity = log.identity
        self._fs.rename(self._copy(found, identity), file_name(identity))
        self._fail_stop.sync([], lambda: self._fs.sync_dir(folder_name(identity)))

    def use(self, log: KnownLog, found: Provable) -> FoundLog:
        """See ``Remains.use``."""
        event(
            _log,
            logging.CRITICAL,
            "log_salvaged",
            segment_id=log.identity.segment_id,
            end_offset=found.end[0].end_offset,
            file=file_name(log.identity),
        )
        return self._judge(log)

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
        return Provable(name, (scan.tail, scan.position))

    def _copy(self, found: Provable, identity: SegmentIdentity) -> str:
        """A new, synced file with this part alone; its name is one of those set aside, so that
        it goes with them should it stay."""
        name = aside_name(self._fs, file_name(identity))
        source, copy = self._fs.open(found.name), self._fs.open(name, create=True)
        try:
            copy.pwritev([encode_file_header(identity, is_confirmed=True)], 0)
            _copy_bytes(source, copy, found.end[1])
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
