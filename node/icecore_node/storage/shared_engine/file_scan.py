"""Reading one shared file back: its frames in order, and the holes in which one should be.

What lies before the *synced position*, which later frames and the note in the index tell, was on
disk once. A bad place before it is a *hole*: damage, behind which the next frame is looked for. A
bad place behind it is what a crash has torn, and the end of the file; nobody was told of more.

Batches are not looked at here but for one case. A frame that is bad itself while its batches are
all right is made again from them: a bad sector in a frame then costs nobody anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from icecore.codec.batch import BatchHeader, parse_header
from icecore.errors import CorruptBatchError
from icecore.model import Generation
from icecore_node.storage.batches.batch_log import Readable
from icecore_node.storage.shared_engine.frames import (
    APPENDED,
    FIRST_TWIN,
    SECOND_TWIN,
    Entry,
    LogFrame,
    find_frame,
    frame_length,
    read_frame,
)

ANY_GENERATION = Generation(-1)
"""Generation of an entry that was made from batches, which don't say it."""
_HEADER_BYTES = 152


@dataclass(frozen=True, slots=True)
class Hole:
    """Here was something of which nothing is known."""

    position: int
    end_position: int
    sequence: int
    """Sequence number of the first frame that is missing."""


@dataclass(slots=True)
class ScannedFile:
    """Frames and holes of one file, as they were found."""

    parts: list[LogFrame | Hole] = field(default_factory=list)
    """As they lie."""
    synced_position: int = 0
    end_position: int = 0

    def is_synced(self, frame: LogFrame) -> bool:
        """Return whether its batches must be there."""
        return frame.end_position <= self.synced_position


def scan_file(file: Readable, number: int, noted_position: int) -> ScannedFile:
    """Read the frames of file ``number``.

    Args:
        noted_position: Up to where the index says that it was on disk.
    """
    found = ScannedFile()
    parts = list(_parts(file, number))
    frames = [part for part in parts if isinstance(part, LogFrame)]
    found.synced_position = max([noted_position, *(frame.synced_position for frame in frames)])
    for part in parts:
        if isinstance(part, Hole) and part.position >= found.synced_position:
            break  # torn, and so is what one write has put behind it
        found.parts.append(part)
        found.end_position = part.end_position
    if found.end_position < found.synced_position:
        last = frames[-1].sequence + 1 if frames else 0
        found.parts.append(Hole(found.end_position, found.synced_position, last))
    found.parts = [_mended(file, found.parts, at) for at in range(len(found.parts))]
    return found


def _parts(file: Readable, number: int) -> Iterator[LogFrame | Hole]:
    position = sequence = crc32c = 0
    while True:
        frame = read_frame(file, position, number)
        is_next = frame is not None and (frame.sequence, frame.previous_crc32c) == (
            sequence,
            crc32c,
        )
        if frame is None or not is_next:
            frame = find_frame(file, position + 8, number, sequence + 1)
            if frame is None:
                return
            yield Hole(position, frame.position, sequence)
        yield frame
        position, sequence, crc32c = frame.end_position, frame.sequence + 1, frame.crc32c


def _mended(file: Readable, parts: list[LogFrame | Hole], at: int) -> LogFrame | Hole:
    """The frame that was in a hole, where that can be told."""
    hole, follows = parts[at], parts[at + 1] if at + 1 < len(parts) else None
    if not isinstance(hole, Hole):
        return hole
    if isinstance(follows, LogFrame):
        if follows.sequence != hole.sequence + 1:
            return hole
        if follows.flags == SECOND_TWIN:
            return _made(hole, follows.entries, follows.previous_crc32c)
    crc32c = follows.previous_crc32c if isinstance(follows, LogFrame) else 0
    before = parts[at - 1] if at else None
    length = hole.end_position - hole.position
    if isinstance(before, LogFrame) and before.flags == FIRST_TWIN:
        is_twin = length == frame_length(len(before.entries))
        return _made(hole, before.entries, crc32c) if is_twin else hole
    entries = tuple(_entries_of(file, hole))
    return _made(hole, entries, crc32c) if entries else hole


def _made(hole: Hole, entries: tuple[Entry, ...], crc32c: int) -> LogFrame:
    length = sum(entry.length for entry in entries)
    return LogFrame(hole.position, hole.sequence, 0, hole.position, entries, length, crc32c, 0)


def _entries_of(file: Readable, hole: Hole) -> Iterator[Entry]:
    """Make the entries of a missing frame from its batches. Yield none unless the frame and the
    batches fill the hole exactly."""
    for count in range(1, (hole.end_position - hole.position) // frame_length(1) + 1):
        start = hole.position + frame_length(count)
        headers = _headers(file, start, hole.end_position)
        if headers:
            entries = list(_joined(headers))
            if len(entries) == count:
                yield from entries
            return


def _headers(file: Readable, position: int, end_position: int) -> list[BatchHeader]:
    """Return the headers of contiguous batches that end exactly at ``end_position``, or none."""
    headers: list[BatchHeader] = []
    while position < end_position:
        try:
            header = parse_header(file.pread(_HEADER_BYTES, position))
        except CorruptBatchError:
            return []
        headers.append(header)
        position += header.batch_length
    return headers if position == end_position else []


def _joined(headers: list[BatchHeader]) -> Iterator[Entry]:
    """One entry for the batches of each log, which follow each other."""
    start = 0
    for at, header in enumerate(headers):
        is_last = at + 1 == len(headers) or headers[at + 1].segment_id != header.segment_id
        if not is_last:
            continue
        own = headers[start : at + 1]
        start = at + 1
        yield Entry(
            header.segment_id,
            ANY_GENERATION,
            APPENDED,
            own[0].base_offset,
            header.end_offset,
            sum(each.batch_length for each in own),
            header.header_crc32c,
            max(each.high_watermark for each in own),
        )
