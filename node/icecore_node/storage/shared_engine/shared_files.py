"""The shared files of one data folder: their names, who has bytes in which, and when one may go.

``shared/<number>.log``; a number is given once, so that of two files the one with the higher number
was begun later. A file is kept for as long as any log that is in use, or not trusted, has bytes in
it, and for as long as a worker appends to it. How far each file is on disk is noted in the index,
without a sync: such a note never leads the file, and is forgotten, durably, before the file goes.
"""

import logging
import struct
from collections.abc import Iterable, Mapping
from functools import partial

from icecore.errors import SHORTAGES, NotReplicaError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import FileSystem
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.files.open_files import LogFile, OpenFiles
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.points import Put

FOLDER = "shared"
_SUFFIX, GONE = ".log", ".gone"
NOTES = "durable"
NOTE_KEY = b"shared file "
_NUMBER = struct.Struct(">Q")
_NOBODY = SegmentId(0)
_OPEN_FILES_MAX = 64
_log = logging.getLogger(__name__)


class SharedFile:
    """One file."""

    __slots__ = (
        "end_position",
        "handle",
        "is_appended",
        "is_damaged",
        "is_own",
        "live",
        "number",
    )

    def __init__(self, number: int, handle: LogFile) -> None:
        self.number = number
        self.handle = handle
        self.end_position = 0
        """Up to where it is on disk, and holds something."""
        self.live: dict[SegmentId, int] = {}
        """Bytes by log."""
        self.is_appended = False
        self.is_own = False
        """It was begun by this process, which knows how far it is on disk."""
        self.is_damaged = False
        """Something in it could not be copied."""


class SharedFiles:
    """Used by any number of threads; its lock is never held while anything waits for the disk."""

    def __init__(self, file_system: FileSystem, index: DerivedIndex, fail_stop: FailStop) -> None:
        """Raises StorageError when the folder can't be used."""
        self._fs = file_system
        self._index = index
        self._fail_stop = fail_stop
        self._open_files = OpenFiles(_OPEN_FILES_MAX, file_system.open)
        self._lock = Lock()
        self._removing = Lock()
        self._files: dict[int, SharedFile] = {}
        self._gone: set[int] = set()
        """Numbers of files that hold nothing, and whose notes may be there."""
        file_system.make_dirs(FOLDER)
        for name in file_system.list_dir(FOLDER):
            if (number := number_of(name)) is not None:
                self._add(number)
            elif (number := number_of(name, GONE)) is not None:
                self._gone.add(number)
        self._next = max([0, *self._files, *self._gone]) + 1
        index.also_stands(self._standing)

    def _add(self, number: int) -> SharedFile:
        handle = LogFile(_NOBODY, file_name(number), self._open_files)
        file = self._files[number] = SharedFile(number, handle)
        return file

    def all(self) -> list[SharedFile]:
        """The older one first."""
        with self._lock:
            return sorted(self._files.values(), key=lambda file: file.number)

    def pread(self, number: int, length: int, position: int) -> bytes:
        """See ``Bytes.pread``."""
        file = self._files.get(number)
        if file is None:
            raise NotReplicaError(f"shared file {number} was removed")
        with file.handle.using() as opened:
            return opened.pread(length, position)

    # --- making -------------------------------------------------------------------------------

    def begin(self, allocated_bytes: int) -> SharedFile:
        """A new file to append to. Its name is durable after ``sync_names``."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        made = self._fs.open(file_name(number), create=True)
        try:
            made.allocate(0, allocated_bytes)
        except BaseException:
            made.close()
            self._fs.unlink(file_name(number))
            raise
        made.close()
        with self._lock:
            file = self._add(number)
            file.is_appended = file.is_own = True
        return file

    def undo(self, file: SharedFile) -> None:
        """Remove a file in which nothing counts; it may come back in a power cut."""
        with self._lock:
            del self._files[file.number]
        file.handle.close()
        self._fs.unlink(file_name(file.number))

    def sync_names(self) -> None:
        """Make names durable."""
        self._fail_stop.sync([], partial(self._fs.sync_dir, FOLDER))

    # --- what is in use -----------------------------------------------------------------------

    def count(self, file: SharedFile, added: Mapping[SegmentId, int]) -> None:
        """These logs have so many bytes more in it, or fewer."""
        with self._lock:
            for segment_id, length in added.items():
                left = file.live.get(segment_id, 0) + length
                if left > 0:
                    file.live[segment_id] = left
                else:
                    file.live.pop(segment_id, None)

    def count_all(self, segment_id: SegmentId, lengths: Mapping[int, int]) -> None:
        """This log has so many bytes in each file, and none in others."""
        with self._lock:
            for file in self._files.values():
                length = lengths.get(file.number, 0)
                if length:
                    file.live[segment_id] = length
                else:
                    file.live.pop(segment_id, None)

    # --- notes --------------------------------------------------------------------------------

    def note(self, file: SharedFile) -> None:
        """Remember how far it is on disk."""
        self._index.write([_note(file)])

    def noted(self) -> dict[int, int]:
        """By number, also of files that are not here, how far each was on disk at least."""
        found: dict[int, int] = {}
        for key, value in self._index.page(NOTES, NOTE_KEY, NOTE_KEY + b"\xff" * 9, 1 << 30):
            if len(key) == len(NOTE_KEY) + _NUMBER.size and len(value) == _NUMBER.size:
                found[_NUMBER.unpack_from(key, len(NOTE_KEY))[0]] = _NUMBER.unpack(value)[0]
        return {number: noted for number, noted in found.items() if number not in self._gone}

    def _standing(self) -> list[Put]:
        return [_note(file) for file in self.all() if file.is_own and file.end_position]

    # --- removing -----------------------------------------------------------------------------

    def remove_dead(self) -> bool:
        """Remove files in which nobody has anything. Whether there was one.

        Notes of where the newer files end are made durable before: what was cut in a file that goes
        is known by its copies, and that these are on disk may be known by the notes alone. Files
        are renamed first, for a note without a file tells of a loss, and emptied, so that there is
        room again even where the index has none for notes.
        """
        with self._removing:
            dead = [file for file in self.all() if not file.live and not file.is_appended]
            if dead:
                self._sync_notes()
            for file in dead:
                file.handle.close()
                self._fs.rename(file_name(file.number), _gone_name(file.number))
                with self._lock:
                    del self._files[file.number]
                    self._gone.add(file.number)
            if dead:
                self.sync_names()
            if self._gone:
                self._remove_gone()
            return bool(dead)

    def _sync_notes(self) -> None:
        try:
            self._index.flush()
        except SHORTAGES as error:
            event(_log, logging.WARNING, "notes_not_synced", error=error)

    def _remove_gone(self) -> None:
        for number in sorted(self._gone):
            self._empty(number)
        try:
            self._forget_notes(self._gone)
            self._index.flush()
        except SHORTAGES as error:
            event(_log, logging.WARNING, "notes_kept", files=len(self._gone), error=error)
            return
        for number in sorted(self._gone):
            self._fs.unlink(_gone_name(number))
            self._gone.discard(number)

    def _empty(self, number: int) -> None:
        file = self._fs.open(_gone_name(number))
        try:
            file.truncate(0)
        finally:
            file.close()

    def settled(self, lost: Iterable[int]) -> None:
        """Note how far all files are on disk, and forget the notes of lost ones.

        The caller has written what was judged to newer files, so older files are not judged again.
        """
        if notes := [_note(file) for file in self.all() if file.end_position]:
            self._index.write(notes)
        self._forget_notes(lost)

    def _forget_notes(self, numbers: Iterable[int]) -> None:
        """Delete the notes of files that no longer exist."""
        for number in numbers:
            self._index.delete_range(NOTES, _key(number), _key(number) + b"\0")

    def close(self) -> None:
        """Let go of all files."""
        for file in self.all():
            file.handle.close()
        with self._lock:
            self._files.clear()


def number_of(name: str, suffix: str = _SUFFIX) -> int | None:
    """Return the number in the name of a shared file; None when it is no such name."""
    number = name.removesuffix(suffix)
    return int(number) if name.endswith(suffix) and number.isdigit() else None


def file_name(number: int) -> str:
    """Relative to the data folder."""
    return f"{FOLDER}/{number:020d}{_SUFFIX}"


def _gone_name(number: int) -> str:
    return f"{FOLDER}/{number:020d}{GONE}"


def _key(number: int) -> bytes:
    return NOTE_KEY + _NUMBER.pack(number)


def _note(file: SharedFile) -> Put:
    return NOTES, _key(file.number), _NUMBER.pack(file.end_position)
