"""Old files are emptied, so that a few logs that nobody writes do not keep gigabytes.

A file goes when no log has bytes in it. Most have none once their logs are sealed and handed over;
an idle log would keep each file in which it has anything. So when the dead bytes of all files are
more than one file holds, and more than the live ones, the file with the least of them is emptied:
with each group of a worker a little of what its logs have there is copied behind the group, in the
same write and with the same sync. A copy that a crash cuts short does not count, for what it is a
copy of is still there; the file goes after the sync, when the note of how far the new file is on
disk is durable. Logs that are sealed are never copied: they are about to go.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.storage.batches.batch_runs import check_run
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.shared_engine.frames import COPIED, Entry
from icecore_node.storage.shared_engine.lane import Block
from icecore_node.storage.shared_engine.shared_files import SharedFile, SharedFiles
from icecore_node.storage.shared_engine.shared_log import FileRun, Runs, SharedLog, place_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Copy:
    """Some runs of one log, which follow each other, as they will lie in the new file."""

    log: SharedLog
    runs: Runs
    """Its own: what cuts it waits for the group."""
    first: int
    """Index of the first."""
    old: SharedFile
    lengths: list[int]
    entry: Entry
    data: list[bytes]


class Compaction:
    """Empties old shared files of one data folder; one thread at a time for each lane."""

    def __init__(
        self,
        files: SharedFiles,
        logs: Mapping[SegmentId, SharedLog],
        settings: LogSettings,
    ) -> None:
        """
        Args:
            files: All.
            logs: Those in use; the engine's, and only looked at.
            settings: Sizes.
        """
        self._files = files
        self._logs = logs
        self._settings = settings
        self._emptied: dict[int, SharedFile] = {}
        """By lane."""

    def consider(self) -> None:
        """Choose the file to be emptied, after bytes have died."""
        files = [file for file in self._files.all() if not file.is_appended]
        lives = {file.number: sum(file.live.copy().values()) for file in files}
        dead = sum(file.end_position - lives[file.number] for file in files)
        if dead <= max(self._settings.shared_file_bytes, sum(lives.values())):
            self._emptied.clear()
            return
        chosen: dict[int, SharedFile] = {}
        for file in sorted(files, key=lambda file: lives[file.number]):
            logs = [self._logs.get(segment_id) for segment_id in list(file.live)]
            is_full = 2 * lives[file.number] > file.end_position
            if is_full or file.is_damaged or any(log is None or log.is_sealed for log in logs):
                continue  # of no use: something else keeps it, or it is empty soon
            for log in logs:
                assert log is not None
                chosen.setdefault(log.lane, file)
        self._emptied = chosen

    def copies(self, lane: int) -> list[Copy]:
        """Return the copies to write with the next group of this lane."""
        file = self._emptied.get(lane)
        if file is None:
            return []
        left, copies = self._settings.shared_copy_bytes, list[Copy]()
        for segment_id in list(file.live):
            log = self._logs.get(segment_id)
            if log is None or log.lane != lane or log.is_sealed:
                continue
            try:
                copy = self._copy(log, file, left)
            except IcecoreError as error:
                file.is_damaged = True
                event(_log, logging.ERROR, "not_copied", segment_id=segment_id, error=error)
                copies.clear()
                break
            if copy is not None:
                copies.append(copy)
                left -= sum(copy.lengths)
            if left <= 0:
                break
        if not copies:
            self._emptied.pop(lane, None)
        return copies

    def _copy(self, log: SharedLog, file: SharedFile, max_bytes: int) -> Copy | None:
        """The first runs of a log in a file, at least one and about ``max_bytes``."""
        runs, end = log.runs, log.end
        indexes: list[int] = []
        found: list[FileRun] = []
        data: list[bytes] = []
        for index in runs.in_file(file.number):
            run = runs.at(index, end)
            is_next = not indexes or index == indexes[-1] + 1
            if not is_next or (found and sum(map(len, data)) + run.length > max_bytes):
                break
            indexes.append(index)
            found.append(run)
            data.append(self._files.pread(run.number, run.length, run.position))
            check_run(data[-1], log.identity, run.first_offset, with_bodies=True)
        if not found:
            return None
        entry = Entry(
            log.identity.segment_id,
            log.identity.generation,
            COPIED,
            found[0].first_offset,
            found[-1].end_offset,
            sum(run.length for run in found),
            0,
            0,
        )
        lengths = [run.length for run in found]
        return Copy(log, runs, indexes[0], file, lengths, entry, data)

    def copied(self, copies: Sequence[Copy], file: SharedFile, position: int) -> None:
        """They are durable there, one behind the other."""
        for copy in copies:
            self._moved(copy, file, position)
            position += copy.entry.length

    def _moved(self, copy: Copy, file: SharedFile, position: int) -> None:
        segment_id, total = copy.entry.segment_id, copy.entry.length
        if self._logs.get(segment_id) is not copy.log:
            return  # it was dropped meanwhile
        self._files.count(file, {segment_id: total})
        for index, length in enumerate(copy.lengths, copy.first):
            copy.runs.move(index, place_of(file.number, position))
            position += length
        self._files.count(copy.old, {segment_id: -total})


def block_of(copies: Sequence[Copy]) -> list[Block]:
    """One frame for all of them, if there are any."""
    if not copies:
        return []
    return [Block([copy.entry for copy in copies], [data for copy in copies for data in copy.data])]
