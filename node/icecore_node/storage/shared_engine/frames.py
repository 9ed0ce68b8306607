"""The format of shared files: frames, each followed by the batches of which it tells.

One write of a worker is one frame, the batches of all its logs behind it, and one sync. A frame
says of each log what its batches are and where the log ends now, so that a start learns from frames
alone where everything is, and names the logs that a bad place hits. Each frame says how far its
file was on disk when it was written: what is bad before that has been damaged, what is bad behind
the last such place was torn by a crash. Little-endian, all lengths multiples of 8::

    frame   magic, CRC of the whole frame with this field zero, version, flags, file number,
            sequence number in the file, synced position, number of entries, CRC of the frame
            before, length of the batches, 8 reserved bytes
    entry   segment id, generation, kind, first offset, end offset, length of its batches,
            CRC of the header before the end offset, highest known high watermark

A frame without batches is written twice (*twins*): it says what batches can't, as that a log was
cut, and must not be lost to one bad sector.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from icecore.codec.checksum import crc32c
from icecore.model import Generation, SegmentId
from icecore_node.storage.batches.batch_log import Readable

MAGIC: Final = b"icegrp\r\n"
VERSION: Final = 1
FIRST_TWIN, SECOND_TWIN = 1, 2
"""Flags."""
APPENDED, COPIED, STANDS, BEGUN, GONE = range(1, 6)
"""Kinds of entries: batches behind the end; batches that lay in an older file; the log is here and
ends there, whatever was found of it before; the same of a new log, of which nothing before counts;
it is no more."""
NO_BATCHES: Final = -1
"""The end offset of a log without batches: its base is in the control store, and may change."""

_HEADER = struct.Struct("<8sIHHQQQIIQ8x")
_ENTRY = struct.Struct("<QIIqqQI4xq")
_CRC = struct.Struct("<I")
_CRC_AT = 8
_ENTRIES_MAX = 1 << 20
_SEARCH_BYTES = 1 << 20


class Entry(NamedTuple):
    """One log's entry in a frame.

    Without batches ``first_offset`` is the base of the log, -1 where that is not known.
    """

    segment_id: SegmentId
    generation: Generation
    kind: int
    first_offset: int
    end_offset: int
    length: int
    last_header_crc32c: int
    high_watermark: int


class LogFrame(NamedTuple):
    """One frame as it was found."""

    position: int
    sequence: int
    flags: int
    synced_position: int
    """All before this was on disk when the frame was written."""
    entries: tuple[Entry, ...]
    batches_length: int
    crc32c: int
    previous_crc32c: int

    @property
    def batches_position(self) -> int:
        """Return where its batches begin."""
        return self.position + frame_length(len(self.entries))

    @property
    def end_position(self) -> int:
        """Return where the next frame begins."""
        return self.batches_position + self.batches_length


def frame_length(entries: int) -> int:
    """Bytes of a frame."""
    return _HEADER.size + entries * _ENTRY.size


def encode_frame(
    number: int,
    sequence: int,
    flags: int,
    synced_position: int,
    previous_crc32c: int,
    entries: Sequence[Entry],
) -> tuple[bytes, int]:
    """A frame of file ``number``, and its CRC."""
    batches_length = 0
    for entry in entries:
        batches_length += entry[5]
    header = _HEADER.pack(
        MAGIC,
        0,
        VERSION,
        flags,
        number,
        sequence,
        synced_position,
        len(entries),
        previous_crc32c,
        batches_length,
    )
    frame = bytearray(b"".join([header, *(_ENTRY.pack(*entry) for entry in entries)]))
    crc = crc32c(bytes(frame))
    _CRC.pack_into(frame, _CRC_AT, crc)
    return bytes(frame), crc


def read_frame(file: Readable, position: int, number: int) -> LogFrame | None:
    """The frame of file ``number`` that begins there; None when there is none that is whole."""
    header = file.pread(_HEADER.size, position)
    if len(header) < _HEADER.size or header[:8] != MAGIC:
        return None
    found = _HEADER.unpack(header)
    _, crc, version, flags, of, sequence, synced_position, count, previous, length = found
    if version != VERSION or of != number or count > _ENTRIES_MAX or synced_position > position:
        return None
    entries = file.pread(count * _ENTRY.size, position + _HEADER.size)
    without_crc = header[:_CRC_AT] + bytes(_CRC.size) + header[_CRC_AT + _CRC.size :]
    if len(entries) < count * _ENTRY.size or crc32c(without_crc + entries) != crc:
        return None
    told = tuple(map(Entry._make, _ENTRY.iter_unpack(entries)))
    if sum(entry.length for entry in told) != length:
        return None
    return LogFrame(position, sequence, flags, synced_position, told, length, crc, previous)


def find_frame(file: Readable, position: int, number: int, sequence: int) -> LogFrame | None:
    """The next whole frame at or behind a position, with at least this sequence number."""
    position = (position + 7) & ~7
    while len(chunk := file.pread(_SEARCH_BYTES, position)) >= _HEADER.size:
        at = chunk.find(MAGIC)
        while at >= 0:
            if at % 8 == 0:
                frame = read_frame(file, position + at, number)
                if frame is not None and frame.sequence >= sequence:
                    return frame
            at = chunk.find(MAGIC, at + 1)
        position += max((len(chunk) - len(MAGIC)) & ~7, 8)
    return None
