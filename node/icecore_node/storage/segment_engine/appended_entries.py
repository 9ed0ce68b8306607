"""Index entries of a group of appends: added in memory, and returned as puts for the database.

Leaders and followers do the same, because both append through ``group_commit.py``. Each log's share
of a group is one put, if it has any entries; the put also covers the offsets of batches before it
that have none. Nothing here can fail an append: batches whose entries can't be made are a gap.
"""

from collections.abc import Iterator, Sequence

from icecore.codec.batch import HEADER_LENGTH, Buffer
from icecore.codec.index_entries import BatchEntries, batch_entries
from icecore_node.storage.engine import BatchMark
from icecore_node.storage.index.points import Put
from icecore_node.storage.index.stored_entries import recent_put
from icecore_node.storage.segment_engine.index_upkeep import IndexDue
from icecore_node.storage.segment_engine.segment_log import SegmentLog


class AppendedEntries:
    """For one data folder; each log has one writer at a time.

    Args:
        due: Told of logs that have something to be maintained.
        entries_per_run: From so many entries on.
    """

    def __init__(self, due: IndexDue, entries_per_run: int) -> None:
        self._due = due
        self._entries_per_run = entries_per_run

    def puts(
        self,
        log: SegmentLog,
        buffers: Sequence[Buffer],
        marks: Sequence[BatchMark],
        end_offset: int,
    ) -> list[Put]:
        """Take over batches that are durable now.

        Args:
            buffers: Of all batches: header and body of each in turn, or cut in any other way.
            marks: One for each batch.
            end_offset: Of the last.
        """
        base = log.identity.base_offset
        ends = [mark.base_offset for mark in marks[1:]]
        ends.append(end_offset)
        puts: list[Put] = []
        waiting: list[BatchEntries] = []
        start = marks[0].base_offset
        for mark, end, header, body in zip(marks, ends, *_split(buffers, marks), strict=True):
            found = batch_entries(header, body, mark.base_offset - base)
            if found is not None:
                waiting.append(found)
                continue
            self._add(log, start, mark.base_offset, waiting, puts)
            self._due.note(log.identity.segment_id)
            waiting, start = [], end
        self._add(log, start, end_offset, waiting, puts)
        return puts

    def _add(
        self,
        log: SegmentLog,
        start: int,
        end_offset: int,
        waiting: list[BatchEntries],
        puts: list[Put],
    ) -> None:
        if not waiting:
            return
        found = waiting[0] if len(waiting) == 1 else _joined(waiting)
        recent = log.coverage.append(start, end_offset, found)
        if recent is None:
            self._due.note(log.identity.segment_id)
        elif found.hashes:
            puts.append(recent_put(log.prefix, recent.stored_end_offset, end_offset, found))
            recent.stored_end_offset = end_offset
            if recent.entries >= self._entries_per_run:
                self._due.note_full(log.identity.segment_id)


def _joined(found: Sequence[BatchEntries]) -> BatchEntries:
    return BatchEntries(
        b"".join([each.hashes for each in found]), b"".join([each.ordinals for each in found])
    )


def _split(
    buffers: Sequence[Buffer], marks: Sequence[BatchMark]
) -> tuple[Sequence[Buffer], Sequence[Buffer]]:
    """Headers, and what follows each."""
    headers, bodies = buffers[::2], buffers[1::2]
    if len(buffers) == 2 * len(marks) and all(len(header) == HEADER_LENGTH for header in headers):
        return headers, bodies
    batches = list(_batches(memoryview(b"".join(buffers)), marks))
    return [each[:HEADER_LENGTH] for each in batches], [each[HEADER_LENGTH:] for each in batches]


def _batches(data: memoryview, marks: Sequence[BatchMark]) -> Iterator[memoryview]:
    at = 0
    for mark in marks:
        yield data[at : at + mark.length_bytes]
        at += mark.length_bytes
