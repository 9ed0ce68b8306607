"""Files of new replicas: made, headed, and durable under their names before anybody hears of them.

Several are made at once, so that their folders are synced once. What can't be made leaves nothing
behind. Nothing is made when few descriptors are left: what is there needs them more (R54).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    OutOfResourcesError,
    StorageError,
)
from icecore_node.ports import DiskFailedError, File, FileSystem
from icecore_node.storage.control.control_store import (
    CONFIRMED,
    QUARANTINED,
    SEALED,
    ControlStore,
    ReplicaRow,
)
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.files.open_files import OpenFiles
from icecore_node.storage.segment_engine.recycle import FOLDER, RecyclePool
from icecore_node.storage.segment_engine.segment_header import encode_file_header
from icecore_node.storage.segment_engine.segment_log import FIRST_ALLOCATION_BYTES, StoreSettings
from icecore_node.storage.segment_engine.segment_names import (
    file_name,
    folder_name,
    set_aside_leftover,
)
from icecore_node.storage.store import SegmentIdentity

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Created:
    """One new file, closed, and the row that is to be stored for it."""

    row: ReplicaRow
    identity: SegmentIdentity
    size_bytes: int


class Creation:
    """Makes the files of one data folder; used by one thread at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        control: ControlStore,
        settings: StoreSettings,
        fail_stop: FailStop,
        pool: RecyclePool,
        open_files: OpenFiles,
        is_open: Callable[[int], bool],
    ) -> None:
        """
        Args:
            is_open: Whether a segment has a log already.
        """
        self._fs = file_system
        self._control = control
        self._settings = settings
        self._fail_stop = fail_stop
        self._pool = pool
        self._open_files = open_files
        self._is_open = is_open

    def make(
        self,
        identities: Sequence[SegmentIdentity],
        starts: Mapping[int, tuple[bytes, int]],
        cluster_id: bytes,
    ) -> tuple[list[Created], list[IcecoreError | None]]:
        """New files, and for each identity an error; neither for those that are there already."""
        errors: dict[int, IcecoreError] = {}
        made: list[Created] = []
        shortage = self._shortage()
        for identity in identities:
            segment_id = identity.segment_id
            try:
                is_rebuilding = self._check(identity, cluster_id)
                if is_rebuilding is None:
                    continue
                if shortage is not None:
                    raise shortage
                made.append(self._make(identity, starts.get(segment_id), is_rebuilding, cluster_id))
            except DiskFailedError:
                raise
            except IcecoreError as error:
                errors[segment_id] = error
        if made and (problem := self._sync_folders(made)) is not None:
            errors.update((each.identity.segment_id, problem) for each in made)
            made = []
        return made, [errors.get(identity.segment_id) for identity in identities]

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
        _log.warning("event=descriptors_short used=%d free=%d reserve=%d", used, free, reserve)
        return OutOfResourcesError(
            f"too few file descriptors: {used} of {used + free} are used, and {reserve} are kept"
            " for what is open; raise the limit of open files (ulimit -n, LimitNOFILE) or close"
            " connections",
            used=used,
            limit=used + free,
        )

    def _check(self, identity: SegmentIdentity, cluster_id: bytes) -> int | None:
        """None when the replica is here already, else whether it is one that was lost (1)."""
        segment_id = identity.segment_id
        if identity.cluster_id != cluster_id:
            raise InvalidRequestError("a replica of another cluster")
        row = self._control.row(segment_id)
        if row is None:
            return 0
        have = replace(row.identity(cluster_id), base_offset=-1)
        if have != replace(identity, base_offset=-1) and row.state != QUARANTINED:
            raise InvalidRequestError(f"segment {segment_id} is here as {have}")
        if self._is_open(segment_id):
            return None
        if row.state in (CONFIRMED, SEALED):
            raise StorageError(f"segment {segment_id} is UNKNOWN: {row.damage}")
        return int(row.state == QUARANTINED)

    def _make(
        self,
        identity: SegmentIdentity,
        start: tuple[bytes, int] | None,
        is_rebuilding: int,
        cluster_id: bytes,
    ) -> Created:
        """A synced file with its header, in a folder that is not synced yet."""
        name = file_name(identity)
        self._fail_stop.sync([], partial(self._fs.make_dirs, folder_name(identity)))
        if self._fs.exists(name):
            is_rebuilding |= set_aside_leftover(self._fs, name)
        header = encode_file_header(identity, is_confirmed=start is not None)
        size_bytes = self._new_file(identity.segment_id, name, header)
        row = ReplicaRow.prepared(identity, is_rebuilding)
        if start is not None:
            row = row.confirmed(identity.base_offset, *start)
        return Created(row, row.identity(cluster_id), size_bytes)

    def _new_file(self, segment_id: int, name: str, header: bytes) -> int:
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
        folders = {folder_name(each.identity) for each in made}
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
            self._fs.unlink(file_name(each.identity))
