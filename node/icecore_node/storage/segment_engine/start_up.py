"""Start-up judgement of one log: clean, torn, damaged or lost, and what it really holds.

What is beyond the durable end is read from the disk itself, not from the page cache, which may hold
what an earlier process failed to sync.

A crash may drop, keep or garble any sector written since the last sync; everything before that
must be there. Since at most G bytes go to a file between two syncs, three cases can be told apart
at the first invalid batch (position p): before the durable end, the durable tail is lost; with a
valid batch of this segment at p + G or later, p had been synced and is damaged; otherwise the
tail is torn, and only then is it cut. Whatever is not proven complete is UNKNOWN, never empty.

Batches are not aligned to sectors, so a new batch shares its first sector with synced bytes. That
a disk writes a sector whole or not at all, and so never harms those, is assumed (SQLite calls it
powersafe overwrite).

What is wrong with one log, a read error included, costs that log alone (R55). A shortage of
descriptors or memory is nobody's damage, and ends the start instead.
"""

import logging
from dataclasses import dataclass, field, replace

from icecore.errors import SHORTAGES, IcecoreError, OutOfSpaceError, StorageError
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, File, FileSystem
from icecore_node.storage.batches.batch_log import with_high_watermark
from icecore_node.storage.batches.batch_scan import BatchScan, empty_tail, find_own_batches
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import (
    NO_TAIL,
    BatchMark,
    KnownLog,
    LogEnd,
    LogTail,
    SegmentIdentity,
)
from icecore_node.storage.index.points import (
    EntryStore,
    PointMaker,
    Put,
    has_points,
    key_prefix,
    pack_durable,
    read_durable,
)
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    decode_file_header,
)
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import ASIDE, file_name, is_derived

_PUTS_PER_WRITE = 5000
_BLANK_BYTES = 16 << 10
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FileVerdict:
    """The judgement of one log. ``damage`` is empty for an intact log."""

    damage: str = ""
    why: str = "clean"
    tail: LogTail = NO_TAIL
    position: int = FILE_HEADER_LENGTH
    size_bytes: int = 0
    """Size of the file; 0 when it is missing or unreadable."""
    headers: list[bytes] = field(default_factory=list)
    cut_bytes: int = 0


class StartUp:
    """Judges the logs of one data folder."""

    def __init__(
        self,
        file_system: FileSystem,
        index: EntryStore,
        settings: LogSettings,
        fail_stop: FailStop,
    ) -> None:
        self._fs = file_system
        self._index = index
        self._settings = settings
        self._fail_stop = fail_stop

    def judge(self, log: KnownLog) -> FileVerdict:
        """Examine one log, cut a torn tail, bring its index entries up to date.

        Raises:
            OutOfResourcesError: It could not be looked at.
            DiskFailedError: A sync failed; the log is condemned.
        """
        verdict = FileVerdict()
        try:
            verdict.tail = _first_tail(log)  # refuses a record that no segment can have
            name = file_name(log.identity)
            if not self._fs.exists(name):
                return _damaged(verdict, "the file is missing")
            file = self._fs.open(name)
            try:
                self._examine(log, file, verdict)
                verdict.size_bytes = file.size()
            finally:
                file.close()
        except (DiskFailedError, *SHORTAGES):
            raise
        except IcecoreError as error:
            return _damaged(verdict, f"it cannot be read: {error}")
        return verdict

    def _examine(self, log: KnownLog, file: File, verdict: FileVerdict) -> None:
        identity = log.identity
        is_prepared = identity.base_offset < 0
        found = decode_file_header(file.pread(FILE_HEADER_LENGTH, 0))
        if found is None:
            _damaged(verdict, "the file header is damaged")
            return
        if is_prepared:
            # A confirm that did not finish may have left its base in the file: not yet promised.
            found = replace(found, base_offset=-1)
        if found != identity:
            _damaged(verdict, f"the file belongs to {found}")
        elif is_prepared:
            verdict.why = "prepared"
        elif log.sealed is not None:
            self._sealed(log, log.sealed, file, verdict)
        else:
            self._unsealed(log, file, verdict)

    # --- sealed -------------------------------------------------------------------------------

    def _sealed(self, log: KnownLog, end: LogEnd, file: File, verdict: FileVerdict) -> None:
        """Size and last tail are those of its seal; the bytes are scrubbed elsewhere."""
        identity = log.identity
        size = file.size()
        if size < end.position:
            _damaged(verdict, f"{size} bytes of a sealed log of {end.position}")
            return
        if size > end.position:
            file.truncate(end.position)
            self._fail_stop.sync([identity.segment_id], file.fdatasync)
        verdict.position = end.position
        durable = read_durable(self._index, key_prefix(identity), FILE_HEADER_LENGTH)
        is_empty = end.tail.end_offset == identity.base_offset
        is_known = durable is not None and durable[0] == end.position
        if is_known and (is_empty or has_points(self._index, identity)):
            return
        start = empty_tail(identity, log.start_timestamp_ms)
        scan = BatchScan(file, identity, FILE_HEADER_LENGTH, start, end.position, with_bodies=False)
        points = self._points(scan, [])
        if scan.position != end.position or scan.tail.digest != verdict.tail.digest:
            _damaged(verdict, f"sealed log broken at {scan.position}: {scan.stop}")
            return
        # Synced when it was sealed, whatever the index has forgotten since.
        self._write_index(points, identity, scan.position, verdict.tail)

    # --- unsealed -----------------------------------------------------------------------------

    def _unsealed(self, log: KnownLog, file: File, verdict: FileVerdict) -> None:
        identity = log.identity
        start = empty_tail(identity, log.start_timestamp_ms)
        durable = self._durable_entry(identity)
        durable_position, durable_tail = durable or (FILE_HEADER_LENGTH, start)
        # Of a log that was synced late the index tells what was written, not what is on disk.
        is_whole = not identity.flush and is_blank(file, durable_position, file.size())
        if not is_whole:
            shown = FILE_HEADER_LENGTH if identity.flush else durable_position
            self._show_disk(identity, file, shown)
        size = file.size()

        # Below the durable end headers are enough: their chain must arrive exactly there.
        known = BatchScan(
            file,
            identity,
            FILE_HEADER_LENGTH,
            start,
            min(durable_position, size),
            with_bodies=False,
        )
        points: list[Put] = []
        if durable is None or has_points(self._index, identity):
            verdict.headers += [found.header_bytes for found in known]
        else:
            points = self._points(known, verdict.headers)
        verdict.tail, verdict.position = known.tail, known.position
        if known.position != durable_position or (
            known.tail.last_header_crc32c != durable_tail.last_header_crc32c
        ):
            _damaged(
                verdict,
                f"lost durable tail: {known.stop} at {known.position} before {durable_position}",
            )
            return
        tail = with_high_watermark(known.tail, durable_tail.max_known_high_watermark)
        end = durable_position if is_whole else size
        scan = BatchScan(file, identity, durable_position, tail, end, with_bodies=True)
        points += self._points(scan, verdict.headers)
        verdict.tail, verdict.position = scan.tail, scan.position
        if not is_whole and not self._judge_stop(identity, file, scan, size, verdict):
            return
        if durable == (verdict.position, verdict.tail) and not verdict.cut_bytes:
            if points:
                self._write_index(points, identity, verdict.position, verdict.tail)
            return  # nothing was seen that the index did not know
        # What the scan saw was synced before it was read. An index that said so earlier would lead
        # the file: a power cut in between would make a torn tail look like a lost one.
        self._write_index(points, identity, verdict.position, verdict.tail)

    def _show_disk(self, identity: SegmentIdentity, file: File, durable_position: int) -> None:
        """Make the file look as it is on disk beyond what is known to be durable.

        An earlier process may have died between a sync that failed and the note of it, or found no
        room for the note (R53). Its bytes are in the page cache, clean and not on disk, and the
        kernel reports an error once only.
        """
        self._fail_stop.sync([identity.segment_id], file.fdatasync)
        file.drop_cached(durable_position)

    def _durable_entry(self, identity: SegmentIdentity) -> tuple[int, LogTail] | None:
        try:
            return read_durable(self._index, key_prefix(identity), FILE_HEADER_LENGTH)
        except OutOfSpaceError:
            raise
        except StorageError as error:
            event(
                _log,
                logging.WARNING,
                "no_durable_entry",
                segment_id=identity.segment_id,
                error=error,
            )
            return None

    def _judge_stop(
        self,
        identity: SegmentIdentity,
        file: File,
        scan: BatchScan,
        size: int,
        verdict: FileVerdict,
    ) -> bool:
        """Torn tail or damage in the middle? Cuts the former; False for the latter."""
        stop, group = scan.position, self._settings.group_bytes_max
        if is_blank(file, stop, size):
            return True
        high_watermark = scan.torn_high_watermark
        after = 0
        for found in find_own_batches(file, identity, stop + 8, size, scan.tail.end_offset):
            if found.position >= stop + group:
                damage = f"mid-log damage at {stop} ({scan.stop}), more at {found.position}"
                _damaged(verdict, damage)
                return False
            after += 1
            high_watermark = max(high_watermark, found.header.high_watermark)
        # A stamp in the discarded tail is a promise somebody may have seen: keep it.
        verdict.tail = with_high_watermark(scan.tail, high_watermark)
        if after or scan.torn_high_watermark or any(file.pread(512, stop)[:8]):
            verdict.why = f"tail cut at {stop}: {scan.stop}"
            verdict.cut_bytes = size - stop
        file.truncate(stop)
        # What is behind must never come back.
        self._fail_stop.sync([identity.segment_id], file.fdatasync)
        return True

    def _points(self, scan: BatchScan, headers: list[bytes]) -> list[Put]:
        """Walk the scan to its end, adding headers on the way; the index points of what it saw."""
        settings = self._settings
        prefix = key_prefix(scan.identity)
        maker = PointMaker(prefix, settings.records_per_point, settings.bytes_per_point)
        puts: list[Put] = []
        for found in scan:
            header = found.header
            headers.append(found.header_bytes)
            mark = BatchMark(header.base_offset, header.append_timestamp_ms, header.batch_length)
            puts += maker.points([mark], found.position)
        return puts

    def _write_index(
        self, points: list[Put], identity: SegmentIdentity, position: int, tail: LogTail
    ) -> None:
        """Write the index points of a log that is durable up to ``position``."""
        for start in range(0, len(points), _PUTS_PER_WRITE):
            self._index.write(points[start : start + _PUTS_PER_WRITE])
        self._index.write([pack_durable(key_prefix(identity), position, tail)])


def report_unknown_files(file_system: FileSystem, known: set[str]) -> None:
    """Files without a record are kept: no node deletes data on its own judgement."""
    for topic in file_system.list_dir("segments"):
        for partition in file_system.list_dir(f"segments/{topic}"):
            folder = f"segments/{topic}/{partition}"
            for name in file_system.list_dir(folder):
                if f"{folder}/{name}" not in known and ASIDE not in name and not is_derived(name):
                    event(_log, logging.WARNING, "unknown_file_kept", file=f"{folder}/{name}")


def is_blank(file: File, position: int, size: int) -> bool:
    """Return whether nothing was ever written from here on: space that was reserved may stay. What
    would begin here is read in any case, the rest only where the file system says that it has
    data."""
    while position < size:
        length = min(_BLANK_BYTES, size - position)
        following = file.next_data(position + length)  # asked first: reading here reads ahead
        if file.pread(length, position) != bytes(length):
            return False
        position = following
    return True


def _first_tail(log: KnownLog) -> LogTail:
    if log.identity.base_offset < 0:
        return NO_TAIL
    if log.sealed is not None:
        return log.sealed.tail
    return empty_tail(log.identity, log.start_timestamp_ms)


def _damaged(verdict: FileVerdict, damage: str) -> FileVerdict:
    verdict.damage = verdict.why = damage
    return verdict
