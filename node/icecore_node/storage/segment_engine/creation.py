"""Files of new logs: made, headed, and durable under their names before anybody hears of them.

Several are made at once, step by step for all of them: a disk takes many files in one go when they
are begun together, and each on its own when each is synced before the next one is begun. A file
gets no more room than its header needs, for many partitions stay empty. What can't be made leaves
nothing behind. Nothing is made when few descriptors are left: what is there needs them more (R54).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from icecore.errors import IcecoreError, OutOfResourcesError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, File, FileSystem
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import NewLog
from icecore_node.storage.files.open_files import OpenFiles
from icecore_node.storage.segment_engine.recycle import FOLDER, RecyclePool
from icecore_node.storage.segment_engine.segment_header import encode_file_header
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import (
    file_name,
    folder_name,
    set_aside_leftover,
)

_log = logging.getLogger(__name__)

FILES_AT_ONCE = 64
"""So many are open while they are made, unless descriptors are scarce."""


@dataclass(frozen=True, slots=True)
class Created:
    """One new file, closed."""

    log: NewLog
    size_bytes: int
    replaces_data: bool
    """A file of that name was set aside, and may have held confirmed data."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """One file that has its header, which is not synced yet."""

    log: NewLog
    file: File
    recycled: str
    """Its name in the pool; empty when it is a new one."""
    replaces_data: bool


class Creation:
    """Makes the files of one data folder; used by one thread at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        settings: LogSettings,
        fail_stop: FailStop,
        pool: RecyclePool,
        open_files: OpenFiles,
    ) -> None:
        self._fs = file_system
        self._settings = settings
        self._fail_stop = fail_stop
        self._pool = pool
        self._open_files = open_files

    def make(self, logs: Sequence[NewLog]) -> tuple[list[Created], dict[SegmentId, IcecoreError]]:
        """New files, and by segment id why others could not be made."""
        errors: dict[SegmentId, IcecoreError] = {}
        made: list[Created] = []
        shortage, at_once = self._room()
        if shortage is not None:
            return [], {log.identity.segment_id: shortage for log in logs}
        for at in range(0, len(logs), at_once):
            made += self._make(logs[at : at + at_once], errors)
        if made and (problem := self._sync_folders(made)) is not None:
            errors.update((each.log.identity.segment_id, problem) for each in made)
            made = []
        return made, errors

    def _room(self) -> tuple[OutOfResourcesError | None, int]:
        """Return why nothing may be made now: idle files have to go first, and that was not enough;
        and how many may be open at once.
        """
        reserve = self._settings.descriptors_reserve
        if reserve == 0:
            return None, FILES_AT_ONCE
        used, free = self._fs.descriptors()
        if free < reserve and self._open_files.make_room(reserve - free):
            used, free = self._fs.descriptors()
        if free >= reserve:
            return None, max(1, min(FILES_AT_ONCE, free - reserve))
        event(
            _log,
            logging.WARNING,
            "descriptors_short",
            used=used,
            free=free,
            reserve=reserve,
        )
        why = OutOfResourcesError(
            f"too few file descriptors: {used} of {used + free} are used, and {reserve} are kept"
            " for what is open; raise the limit of open files (ulimit -n, LimitNOFILE) or close"
            " connections",
            used=used,
            limit=used + free,
        )
        return why, 0

    def _make(self, logs: Sequence[NewLog], errors: dict[SegmentId, IcecoreError]) -> list[Created]:
        """Synced files with their headers, in folders that are not synced yet; adds what failed."""
        folders = dict.fromkeys(folder_name(log.identity) for log in logs)
        begun: list[_Begun] = []
        made: list[Created] = []
        try:
            self._fail_stop.sync([], partial(self._fs.make_dirs, *folders))
            for log in logs:
                try:
                    begun.append(self._begin(log))
                except DiskFailedError:
                    raise
                except IcecoreError as error:
                    errors[log.identity.segment_id] = error
            for each in begun:
                try:
                    made.append(self._finish(each))
                except DiskFailedError:
                    raise
                except IcecoreError as error:
                    errors[each.log.identity.segment_id] = error
        except DiskFailedError:
            raise
        except IcecoreError as error:  # of the folders: nothing was begun
            errors.update((log.identity.segment_id, error) for log in logs)
        finally:
            for each in begun:
                each.file.close()
        return made

    def _begin(self, log: NewLog) -> _Begun:
        """A file with its header, on its way to the disk. A recycled one keeps its name until the
        header is there: under the new name nobody must find an old one."""
        identity = log.identity
        name = file_name(identity)
        replaces_data = self._fs.exists(name) and set_aside_leftover(self._fs, name)
        header = encode_file_header(identity, is_confirmed=identity.base_offset >= 0)
        recycled = self._pool.take(identity.segment_id) or ""
        file = self._open_files.open(recycled) if recycled else self._fs.open(name, create=True)
        try:
            file.pwritev([header], 0)
            file.start_write_back(0, len(header))
        except BaseException:
            file.close()
            if not recycled:
                self._fs.unlink(name)
            raise
        return _Begun(log, file, recycled, replaces_data)

    def _finish(self, begun: _Begun) -> Created:
        """No log has this file yet, so that a sync that fails condemns none."""
        file, name = begun.file, file_name(begun.log.identity)
        try:
            self._fail_stop.sync([], file.fdatasync)
            if begun.recycled:
                self._fs.rename(begun.recycled, name)
            return Created(begun.log, file.size(), begun.replaces_data)
        except IcecoreError as error:
            if not (begun.recycled or isinstance(error, DiskFailedError)):
                self._fs.unlink(name)
            raise

    def _sync_folders(self, made: Sequence[Created]) -> IcecoreError | None:
        """Make the names durable; when that can't even be tried the files go again, and why."""
        folders = {folder_name(each.log.identity) for each in made}
        folders.add(FOLDER)  # some may have come from the pool
        try:
            for folder in sorted(folders):
                self._fail_stop.sync([], partial(self._fs.sync_dir, folder))
        except DiskFailedError:
            raise
        except IcecoreError as error:
            self.undo(made)
            return error
        return None

    def undo(self, made: Sequence[Created]) -> None:
        """Remove files that nobody has heard of."""
        for each in made:
            self._fs.unlink(file_name(each.log.identity))
