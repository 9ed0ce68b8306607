"""Files of sealed logs that other engines hand over: written aside, renamed once they are whole.

What was copied is judged like a sealed log at the start of a process before it is used: sizes,
header chain and digest must be those of the seal. That also gives it its points in the index.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.ports import File, FileSystem
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import KnownLog, LogEnd, NotAsSealed
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    encode_file_header,
)
from icecore_node.storage.segment_engine.segment_names import (
    file_name,
    folder_name,
    unfinished_copy_name,
)
from icecore_node.storage.segment_engine.start_up import FileVerdict, StartUp

_log = logging.getLogger(__name__)


class Incoming:
    """Begins copies for one data folder.

    Args:
        file_system: Of the data folder.
        fail_stop: Syncs.
        start_up: Judges what was copied.
        use: Makes a judged log one in use.
        let_go: The opposite.
    """

    def __init__(
        self,
        file_system: FileSystem,
        fail_stop: FailStop,
        start_up: StartUp,
        use: Callable[[KnownLog, FileVerdict], None],
        let_go: Callable[[KnownLog], None],
    ) -> None:
        self.file_system = file_system
        self.fail_stop = fail_stop
        self.start_up = start_up
        self.use = use
        self.let_go = let_go

    def receive(self, log: KnownLog) -> "IncomingLog":
        """See ``SealedLogs.receive``."""
        assert log.sealed is not None, "only sealed logs are handed over"
        identity = replace(log.identity, engine=SEGMENT_ENGINE)
        position = FILE_HEADER_LENGTH + log.sealed.tail.length_bytes
        here = replace(log, identity=identity, sealed=replace(log.sealed, position=position))
        folder, name = folder_name(identity), unfinished_copy_name(identity)
        self.fail_stop.sync([], partial(self.file_system.make_dirs, folder))
        if self.file_system.exists(name):
            self.file_system.unlink(name)
        copy = IncomingLog(self, here, self.file_system.open(name, create=True))
        try:
            copy.append(encode_file_header(identity, is_confirmed=True))
        except BaseException:
            copy.abandon()
            raise
        return copy


class IncomingLog:
    """A ``SealedCopy`` in a file."""

    def __init__(self, incoming: Incoming, log: KnownLog, file: File) -> None:
        self._incoming = incoming
        self._log = log
        self._file: File | None = file
        self._name = unfinished_copy_name(log.identity)
        self._length = 0

    def append(self, data: bytes) -> None:
        """See ``SealedCopy.append``."""
        assert self._file is not None, "the copy has ended"
        self._file.pwritev([data], self._length)
        self._length += len(data)

    def sync(self) -> None:
        """See ``SealedCopy.sync``."""
        assert self._file is not None, "the copy has ended"
        # No log has this file yet, but a disk that fails a sync is trusted with nothing more.
        self._incoming.fail_stop.sync([], self._file.fdatasync)

    def finish(self, remember: Callable[[LogEnd], None]) -> None:
        """See ``SealedCopy.finish``."""
        log, files = self._log, self._incoming.file_system
        assert log.sealed is not None
        self._close()
        files.rename(self._name, file_name(log.identity))
        self._incoming.fail_stop.sync([], partial(files.sync_dir, folder_name(log.identity)))
        verdict = self._incoming.start_up.judge(log)
        if verdict.damage:
            files.unlink(file_name(log.identity))
            raise NotAsSealed(f"segment {log.identity.segment_id}: {verdict.damage}")
        self._incoming.use(log, verdict)
        try:
            remember(log.sealed)
        except BaseException:
            self._incoming.let_go(log)
            raise

    def abandon(self) -> None:
        """See ``SealedCopy.abandon``."""
        if self._file is None:
            return
        self._close()
        try:
            self._incoming.file_system.unlink(self._name)
        except IcecoreError as error:  # the next attempt removes it
            event(_log, logging.WARNING, "unfinished_copy_left", file=self._name, error=error)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
