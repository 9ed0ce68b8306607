"""Appends to the database: what came together is written in few changes and synced once.

Batches and the new tail of their log are one change, so that after a crash a log ends where its
tail says, or is damaged. A change that could not be written concerns the logs in it alone: they
take nothing more until they are cut. A sync that fails concerns all that was on its way, also that
of other workers, and ends the process (R53).
"""

from collections.abc import Callable, Sequence

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import SegmentId
from icecore_node.ports import Buffer, DiskFailedError
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import AppendRequest, BatchMark
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange, LogDatabase
from icecore_node.storage.rocksdb_engine.log_keys import pack_tail, tail_key
from icecore_node.storage.rocksdb_engine.rocks_log import RocksLog, values_of


class _Part:
    """The appends to one log in one change."""

    def __init__(self, log: RocksLog) -> None:
        self.log = log
        self.requests: list[AppendRequest] = []
        self.buffers: list[Buffer] = []
        self.marks: list[BatchMark] = []

    def add(self, request: AppendRequest) -> None:
        """One more request, which follows."""
        self.requests.append(request)
        self.buffers += request.buffers
        self.marks += request.marks

    def puts(self) -> list[tuple[bytes, bytes]]:
        """Its batches, and the tail that they make."""
        log, data = self.log, b"".join(self.buffers)
        slot, position = log.handle.slot, log.end[1]
        tail = self.requests[-1].tail
        return [
            *values_of(slot, position, self.marks, data),
            (tail_key(slot), pack_tail((tail, position + len(data)))),
        ]

    def fail(self, error: IcecoreError) -> None:
        """Nothing of it is durable, and nothing follows it."""
        self.log.failed = error
        for request in self.requests:
            request.error = error


class DatabaseCommit:
    """Writes groups.

    Args:
        database: Where to.
        find: The log of a segment that may be appended to; raises an IcecoreError otherwise.
        fail_stop: Syncs.
        change_bytes_max: About so much is written at once, so that other threads get a turn.
    """

    def __init__(
        self,
        database: LogDatabase,
        find: Callable[[SegmentId], RocksLog],
        fail_stop: FailStop,
        change_bytes_max: int,
    ) -> None:
        self._database = database
        self._find = find
        self._fail_stop = fail_stop
        self._change_bytes_max = change_bytes_max
        self._unsynced: set[SegmentId] = set()
        """Segments with batches that were written and not yet synced, of all workers."""

    def append(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        written: list[_Part] = []
        mine: list[SegmentId] = []
        try:
            for parts in self._rounds(requests):
                mine += [part.log.identity.segment_id for part in parts]
                self._unsynced.update(mine)
                written += parts if self._write(parts) else []
            if written:
                self._sync(written)
        finally:
            self._unsynced.difference_update(mine)

    def _rounds(self, requests: Sequence[AppendRequest]) -> list[list[_Part]]:
        """By log, and not too much at once."""
        parts: dict[SegmentId, _Part] = {}
        for request in requests:
            try:
                self._add(parts, request)
            except IcecoreError as error:
                request.error = error
        rounds: list[list[_Part]] = []
        room = 0
        for part in parts.values():
            size = sum(mark.length_bytes for mark in part.marks)
            if not rounds or size > room:
                rounds.append([])
                room = self._change_bytes_max
            rounds[-1].append(part)
            room -= size
        return rounds

    def _add(self, parts: dict[SegmentId, _Part], request: AppendRequest) -> None:
        segment_id = request.segment_id
        part = parts.get(segment_id)
        log = self._find(segment_id) if part is None else part.log
        due = log.end[0].end_offset if part is None else part.requests[-1].tail.end_offset
        if not request.marks or request.marks[0].base_offset != due:
            raise InvalidRequestError(
                f"segment {segment_id} ends at {due}, an append starts elsewhere"
            )
        parts.setdefault(segment_id, part or _Part(log)).add(request)

    def _write(self, parts: Sequence[_Part]) -> bool:
        try:
            self._database.write(DatabaseChange([put for part in parts for put in part.puts()]))
        except DiskFailedError:
            raise
        except IcecoreError as error:
            for part in parts:
                part.fail(error)
            return False
        return True

    def _sync(self, written: Sequence[_Part]) -> None:
        doubtful = self._unsynced.union(part.log.identity.segment_id for part in written)
        try:
            self._fail_stop.sync(sorted(doubtful), self._database.sync)
        except DiskFailedError:
            raise
        except IcecoreError as error:  # it could not even be tried
            for part in written:
                part.fail(error)
            return
        for part in written:
            part.log.advance(part.marks, part.requests[-1].tail)
