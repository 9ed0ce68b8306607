"""Files of new logs: made, headed, and durable under their names before anybody hears of them.

Several are made at once, so that their folders are synced once. What can't be made leaves nothing
behind. Nothing is made when few descriptors are left: what is there needs them more (R54).
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
from icecore_node.storage.segment_engine.segment_log import FIRST_ALLOCATION_BYTES, StoreSettings
from icecore_node.storage.segment_engine.segment_names import (
    file_name,
    folder_name,
    set_aside_leftover,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Created:
    """One new file, closed."""

    log: NewLog
    size_bytes: int
    replaces_data: bool
    """A file of that name was set aside, and may have held confirmed data."""


class Creation:
    """Makes the files of one data folder; used by one thread at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        settings: StoreSettings,
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
        shortage = self._shortage()
        for log in logs:
            try:
                if shortage is not None:
                    raise shortage
                made.append(self._make(log))
            except DiskFailedError:
                raise
            except IcecoreError as error:
                errors[log.identity.segment_id] = error
        if made and (problem := self._sync_folders(made)) is not None:
            errors.update((each.log.identity.segment_id, problem) for each in made)
            made = []
        return made, errors

    def _shortage(self) -> OutOfResourcesError | None:
        """Why nothing may be made now: idle files have to go first, and that was not enough."""
        reserve = self._settings.descriptors_reserve
        if reserve == 0:
            return None
        used, free = self._fs.descriptors()
        if free < reserve and self._open_files.make_room(reserve - free):
            used, free = self._fs.descriptors()
        if free >= reserve:
            return None
        event(
            _log,
            logging.WARNING,
            "descriptors_short",
            used=used,
            free=free,
            reserve=reserve,
        )
        return OutOfResourcesError(
            f"too few file descriptors: {used} of {used + free} are used, and {reserve} are kept"
            " for what is open; raise the limit of open files (ulimit -n, LimitNOFILE) or close"
            " connections",
            used=used,
            limit=used + free,
        )

    def _make(self, log: NewLog) -> Created:
        """A synced file with its header, in a folder that is not synced yet."""
        identity = log.identity
        name = file_name(identity)
        self._fail_stop.sync([], partial(self._fs.make_dirs, folder_name(identity)))
        replaces_data = self._fs.exists(name) and set_aside_leftover(self._fs, name)
        header = encode_file_header(identity, is_confirmed=identity.base_offset >= 0)
        size_bytes = self._new_file(identity.segment_id, name, header)
        return Created(log, size_bytes, replaces_data)

    def _new_file(self, segment_id: SegmentId, name: str, header: bytes) -> int:
        """Its size. No log has this file yet, so that a sync that fails condemns none."""
        recycled = self._pool.take(segment_id)
        if recycled is not None:
            file = self._open_files.open(recycled)
            try:
                self._write_header(file, header)
                self._fs.rename(recycled, name)
                return file.size()
            finally:
                file.close()
        file = self._fs.open(name, create=True)
        try:
            file.allocate(0, min(FIRST_ALLOCATION_BYTES, self._settings.allocation_step_bytes))
            self._write_header(file, header)
            return file.size()
        except IcecoreError as error:
            if not isinstance(error, DiskFailedError):
                self._fs.unlink(name)
            raise
        finally:
            file.close()

    def _write_header(self, file: File, header: bytes) -> None:
        file.pwritev([header], 0)
        self._fail_stop.sync([], file.fdatasync)

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
