"""Runs of batches as reads take them: found by hopping over headers, checked without objects.

A read of a client touches thousands of batches a second, so nothing is built per batch here. A run
is whole batches, one behind the other; whether they are the right ones is proved by their CRCs, the
segment id and the offsets, not by the chain (``batch_scan.py``). Positions are bytes, offsets
count records.
"""

import struct

from icecore.codec.batch import BATCH_BYTES_LIMIT, HEADER_LENGTH, peek
from icecore.codec.checksum import crc32c, crc32c_between
from icecore.errors import CorruptBatchError
from icecore_node.storage.batches.batch_log import Readable
from icecore_node.storage.engine import SegmentIdentity

_CRC = struct.Struct("<I")
_CRC_AND_SEGMENT = struct.Struct("<IQ")
_PRODUCER_CRC_AT = 80
_WALK_BYTES = 1 << 16


def check_run(
    data: bytes, identity: SegmentIdentity, offset: int, *, with_bodies: bool = False
) -> int:
    """The offset after a run of whole batches whose headers, ids and offsets are right.

    The cheap check of every read, without objects per batch.

    Raises:
        CorruptBatchError: Something else is there.
    """
    position, length = 0, len(data)
    while position < length:
        raw = data[position : position + HEADER_LENGTH]
        batch_length, base_offset, end_offset = check_header(raw, identity, position)
        if base_offset > offset or end_offset <= offset:
            raise CorruptBatchError(f"offset {base_offset} where {offset} is due, at {position}")
        if with_bodies:
            (crc,) = _CRC.unpack_from(raw, _PRODUCER_CRC_AT)
            body_start = position + _PRODUCER_CRC_AT + _CRC.size
            if crc32c_between(data, body_start, position + batch_length) != crc:
                raise CorruptBatchError(f"producer CRC mismatch at {position}")
        offset = end_offset
        position += batch_length
    if position != length:
        raise CorruptBatchError(f"a batch is cut short at {length}")
    return offset


def check_header(raw: bytes, identity: SegmentIdentity, position: int) -> tuple[int, int, int]:
    """``peek`` of a header that is whole and belongs to this segment.

    Args:
        raw: Its bytes.
        identity: Of the segment.
        position: For the error.

    Raises:
        CorruptBatchError: It is cut short, damaged or another segment's.
    """
    if len(raw) < HEADER_LENGTH:
        raise CorruptBatchError(f"cut short at {position}")
    crc, segment_id = _CRC_AND_SEGMENT.unpack_from(raw, 12)
    if crc32c(raw[:12] + b"\0\0\0\0" + raw[16:]) != crc:
        raise CorruptBatchError(f"header CRC mismatch at {position}")
    if segment_id != identity.segment_id:
        raise CorruptBatchError(f"a batch of segment {segment_id} at {position}")
    return peek(raw)


def walk_to(file: Readable, position: int, end_position: int, offset: int) -> tuple[int, int, int]:
    """(position, length, end offset) of the batch that holds ``offset``, at or after ``position``.

    Hops over headers without checking them: what it arrives at is for the caller to verify.

    Raises:
        CorruptBatchError: The hops lead nowhere.
    """
    chunk, start, length = b"", position, BATCH_BYTES_LIMIT
    while position + HEADER_LENGTH <= end_position:
        at = position - start
        if at + HEADER_LENGTH > len(chunk):
            # Headers only, until a hop has told that batches are small.
            want = HEADER_LENGTH if length > _WALK_BYTES // 4 else _WALK_BYTES
            chunk, start, at = file.pread(want, position), position, 0
            if len(chunk) < HEADER_LENGTH:
                break
        length, base_offset, end_offset = peek(chunk, at)
        if length < HEADER_LENGTH or base_offset > offset:
            break
        if end_offset > offset:
            return position, length, end_offset
        position += length
    raise CorruptBatchError(f"no batch for offset {offset} at {position}")
