"""Record batch header and framing: the unit of append, checksum, replication and disk.

A batch is a fixed 152-byte little-endian header, an index section and a payload (both described in
``icecore/codec/record.py``). The header has three parts: the *frame* (whose CRC covers the whole
header), the *leader* part (zero until a leader stamps it) and the *producer* part, whose CRC covers
every byte after itself to the end of the batch, padding included. A leader therefore stamps a batch
without touching its body, and nobody but compaction may change what the producer wrote. Each header
names the CRC of the header before it; with the segment's seed this makes a chain
(``codec/chain.py``). The module is pure: no I/O, no clock.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from icecore.codec.checksum import crc32c, crc32c_between, crc32c_of_parts
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRequestError,
    RecordTooLargeError,
)
from icecore.model import Epoch, ProducerEpoch, ProducerId, SegmentId
from icecore.topic_settings import BATCH_BYTES_CAP, RECORD_BYTES_CAP, UNCOMPRESSED_BYTES_CAP

Buffer = bytes | bytearray | memoryview
"""Input of every function here: bytes, bytearray, or a memoryview of single bytes."""

MAGIC = int.from_bytes(b"iceb", "little")
VERSION = 1
HEADER_LENGTH = 152
BATCH_BYTES_LIMIT = 1 << 30
"""No batch of the format is longer: i32 offsets stay far from overflow, topics set lower caps."""

MIN_TIMESTAMP_MS = -62_135_596_800_000
"""0001-01-01: with the maximum, what every client language, Arrow and Spark can represent."""
MAX_TIMESTAMP_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z."""

_FRAME_AND_LEADER = struct.Struct("<IHHIIQQqqqqqII")
# The codec's three reserved bytes are read as its high bytes: non-zero makes the codec unknown.
_PRODUCER = struct.Struct("<IIIIIIqqQQIIII")
_FORMAT = struct.Struct("<IHH")
_FIELDS = struct.Struct("<IIQQqqqqqIIIIIIIIqqQQIII")
"""Those of ``BatchHeader``, in their order."""
_U32 = struct.Struct("<I")
_PRODUCER_IDS = struct.Struct("<QQI")
_PEEK = struct.Struct("<I20xqq")
"""Batch length, base offset and end offset, from ``_FIELDS_START`` on."""

_FIELDS_START = 8
_LEADER_START = 16
_PREVIOUS_CRC_AT = 72
_PRODUCER_START = 80
_PRODUCER_CRC_FROM = 84
_PRODUCER_IDS_START = 120
_RESERVED_START = 148
_ZEROS = (0,) * 9
_RESERVED = bytes(HEADER_LENGTH - _RESERVED_START)
_UNSTAMPED = bytes(_PRODUCER_START - _LEADER_START)
_MAX_OFFSET = (1 << 63) - 1
_MAX_SEQUENCE = (1 << 64) - 1


class Codec(IntEnum):
    """The compression of the payload; LZ4 and ZSTD are single frames of their standard formats."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


class LeaderFlag:
    """Bits of ``leader_flags``; the first two are reserved until compaction and transactions use
    them. ROW_GROUP stands only in answers to who asked for it: ``codec/row_group.py``.

    Plain numbers like ``ProducerFlag``: an operation with an enum member takes a microsecond, and
    each batch needs a dozen.
    """

    COMPACTED: Final = 1
    CONTROL: Final = 2
    ROW_GROUP: Final = 4


class ProducerFlag:
    """Bits of ``producer_flags``: columns that are absent, and the reserved TRANSACTIONAL."""

    NO_KEYS: Final = 1
    NO_TAGS: Final = 2
    NO_HEADERS: Final = 4
    NO_HEADER_HASHES: Final = 8
    TRANSACTIONAL: Final = 16


KNOWN_PRODUCER_FLAGS = 31
_KNOWN_LEADER_FLAGS = LeaderFlag.COMPACTED | LeaderFlag.CONTROL | LeaderFlag.ROW_GROUP
_CODECS = tuple(Codec)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Caps on one batch; by default those of a topic that sets none.

    A record's bytes are its key, value, header names and header values. Its tags, written out, may
    have as many once more; those of a whole batch as many as an uncompressed payload.
    """

    record_bytes_max: int = 1 << 20
    batch_bytes_max: int = 4 << 20
    uncompressed_bytes_max: int = 32 << 20
    records_max: int = 1_000_000


READER_LIMITS = BatchLimits(RECORD_BYTES_CAP, BATCH_BYTES_CAP, UNCOMPRESSED_BYTES_CAP)
"""Limits of every reader, whatever a topic has set: there is nothing to tune."""


class BatchHeader(NamedTuple):
    """The fields of a checked header; constants (magic, version, lengths, zeros) are left out."""

    batch_length: int
    header_crc32c: int
    segment_id: SegmentId
    epoch: Epoch
    base_offset: int
    end_offset: int
    append_timestamp_ms: int
    high_watermark: int
    delete_horizon_ms: int
    prev_header_crc32c: int
    leader_flags: int
    producer_crc32c: int
    producer_flags: int
    codec: Codec
    record_count: int
    index_length: int
    uncompressed_length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    base_sequence: int
    producer_epoch: ProducerEpoch
    schema_id: int
    payload_length: int


_CODEC = BatchHeader._fields.index("codec")


class ProducerPart(NamedTuple):
    """Header fields that a producer writes, in the order of the format, without the CRC."""

    producer_flags: int
    codec: int
    record_count: int
    index_length: int
    uncompressed_length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    schema_id: int
    payload_length: int


class Compacted(NamedTuple):
    """Further values in the leader part of a batch that compaction has rewritten."""

    end_offset: int
    """Exclusive; more than base + count, where records were dropped."""
    delete_horizon_ms: int = 0
    """When tombstones may be dropped, 0 when unset."""
    is_row_group: bool = False


def pad8(length: int) -> int:
    """``length`` rounded up to a multiple of 8 bytes."""
    return (length + 7) & ~7


def peek(buffer: Buffer, position: int = 0) -> tuple[int, int, int]:
    """``(batch_length, base_offset, end_offset)``, unchecked: only for headers checked before."""
    found: tuple[int, int, int] = _PEEK.unpack_from(buffer, position + _FIELDS_START)
    return found


def peek_previous_crc(buffer: Buffer, position: int = 0) -> int:
    """``prev_header_crc32c``, unchecked as ``peek``."""
    found: int = _U32.unpack_from(buffer, position + _PREVIOUS_CRC_AT)[0]
    return found


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The checked header at ``position``; the body need not be in the buffer.

    Raises:
        CorruptBatchError: Magic, version, CRC, a length or a count is wrong, or the header is cut
            short. ``metadata["position"]`` says where.
    """
    if position < 0 or len(buffer) - position < HEADER_LENGTH:
        raise _corrupt(position, "the header is cut short")
    magic, version, header_length = _FORMAT.unpack_from(buffer, position)
    if magic != MAGIC:
        raise _corrupt(position, f"magic is {magic:#010x}")
    if version != VERSION or header_length != HEADER_LENGTH:
        raise _corrupt(position, f"version {version} with header length {header_length}")
    raw = bytes(buffer[position : position + HEADER_LENGTH])
    fields = list(_FIELDS.unpack_from(raw, _FIELDS_START))
    codec = fields[_CODEC]
    is_known = codec < len(_CODECS) and raw[_RESERVED_START:] == _RESERVED
    fields[_CODEC] = _CODECS[codec] if is_known else Codec.NONE
    header = BatchHeader._make(fields)
    if crc32c(raw[:12] + b"\0\0\0\0" + raw[16:]) != header.header_crc32c:
        raise _corrupt(position, "header CRC mismatch")
    if not is_known:
        raise _corrupt(position, "unknown codec or reserved bytes not zero")
    _check_lengths(header, position)
    return header


def _check_lengths(header: BatchHeader, position: int) -> None:
    """Lengths, counts and offsets of one header must agree with each other."""
    count, index_length = header.record_count, header.index_length
    expected = HEADER_LENGTH + index_length + pad8(header.payload_length)
    if header.batch_length != expected or index_length & 7 or expected > BATCH_BYTES_LIMIT:
        raise _corrupt(position, f"batch length {header.batch_length}, its parts have {expected}")
    if count * 8 > index_length and not header.leader_flags & LeaderFlag.ROW_GROUP:
        raise _corrupt(position, f"{count} records do not fit {index_length} index bytes")
    if header.codec is Codec.NONE and header.payload_length != header.uncompressed_length:
        raise _corrupt(position, "payload and uncompressed length differ without a codec")
    if header.leader_flags & ~_KNOWN_LEADER_FLAGS:
        raise _corrupt(position, f"unknown leader flags {header.leader_flags:#x}")
    base, end = header.base_offset, header.end_offset
    if base == 0 and end == 0:
        return  # not stamped by a leader yet
    dense = not header.leader_flags & LeaderFlag.COMPACTED
    if base < 0 or end - base < count or (dense and end - base != count):
        raise _corrupt(position, f"offsets {base}..{end} do not hold {count} records")


def verify_producer_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check every byte the producer wrote.

    Raises:
        CorruptBatchError: The batch is cut short or its producer CRC does not match.
    """
    end = position + header.batch_length
    if end > len(buffer):
        raise _corrupt(position, "the batch is cut short")
    if crc32c_between(buffer, position + _PRODUCER_CRC_FROM, end) != header.producer_crc32c:
        raise _corrupt(position, "producer CRC mismatch")


def iter_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """``(position, header)`` of contiguous batches that fill the buffer exactly.

    Raises:
        CorruptBatchError: A header is corrupt or the last batch is cut short.
    """
    position, end = 0, len(buffer)
    while position < end:
        header = parse_header(buffer, position)
        if header.batch_length > end - position:
            raise _corrupt(position, "the batch is cut short")
        yield position, header
        position += header.batch_length


def stamp(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    segment_id: SegmentId,
    epoch: Epoch,
    base_offset: int,
    append_timestamp_ms: int,
    high_watermark: int,
    prev_header_crc32c: int,
    compacted: Compacted | None = None,
) -> tuple[bytes, int]:
    """The leader's header for the batch at ``position`` and its CRC; the body stays as it is.

    The fields are arguments and no value of their own: to build one takes as long as to stamp.

    Args:
        buffer: Holds the batch; only the producer part of its header is read.
        position: Bytes.
        header: The batch's checked header.
        segment_id: The segment it is appended to.
        epoch: The segment's epoch.
        base_offset: Of its first record.
        append_timestamp_ms: The leader's clock at append.
        high_watermark: At append.
        prev_header_crc32c: The chain: CRC of the previous header, or ``chain_seed``.
        compacted: Of a batch that compaction has rewritten.

    Raises:
        InvalidRequestError: The offsets would leave the range of i63.
    """
    if compacted is None:
        end, delete_horizon_ms, flags = base_offset + header.record_count, 0, 0
    else:
        end, delete_horizon_ms, is_row_group = compacted
        flags = LeaderFlag.COMPACTED | (LeaderFlag.ROW_GROUP if is_row_group else 0)
    if not 0 <= base_offset <= end <= _MAX_OFFSET:
        raise InvalidRequestError(f"offsets {base_offset}..{end} leave the range of i63")
    front = _FRAME_AND_LEADER.pack(
        MAGIC,
        VERSION,
        HEADER_LENGTH,
        header.batch_length,
        0,
        segment_id,
        epoch,
        base_offset,
        end,
        append_timestamp_ms,
        high_watermark,
        delete_horizon_ms,
        prev_header_crc32c,
        flags,
    )
    raw = front + buffer[position + _PRODUCER_START : position + HEADER_LENGTH]
    crc = crc32c(raw)
    return raw[:12] + _U32.pack(crc) + raw[16:], crc


def check_produced(buffer: Buffer, position: int, limits: BatchLimits) -> BatchHeader:
    """A leader's whole cheap check of one produced batch; columns are ``record.check_columns``.

    Raises:
        CorruptBatchError: Framing, CRC, a length or a count is wrong.
        InvalidRequestError: The batch is well-formed and may not be produced.
        BatchTooLargeError: Stored or uncompressed bytes, or the record count, exceed their cap.
        RecordTooLargeError: Some record must exceed its cap.
    """
    header = parse_header(buffer, position)
    _check_caps(header, limits)
    if buffer[position + _LEADER_START : position + _PRODUCER_START] != _UNSTAMPED:
        raise InvalidRequestError("the leader part of a produced batch must be zero")
    if header.record_count < 1:
        raise InvalidRequestError("a produced batch holds at least one record")
    if header.producer_flags & ~KNOWN_PRODUCER_FLAGS:
        raise InvalidRequestError(f"unknown producer flags {header.producer_flags:#x}")
    if header.producer_flags & ProducerFlag.TRANSACTIONAL:
        raise InvalidRequestError("transactional batches are reserved")
    if header.base_sequence + header.record_count > _MAX_SEQUENCE:
        raise InvalidRequestError(f"base sequence {header.base_sequence} overflows")
    low, high = header.min_timestamp_ms, header.max_timestamp_ms
    if not MIN_TIMESTAMP_MS <= low <= high <= MAX_TIMESTAMP_MS:
        raise InvalidRequestError(f"timestamps {low}..{high} ms are not in the years 1 to 9999")
    verify_producer_crc(buffer, position, header)
    return header


def _check_caps(header: BatchHeader, limits: BatchLimits) -> None:
    stored, inflated, count = header.batch_length, header.uncompressed_length, header.record_count
    if stored > limits.batch_bytes_max:
        raise BatchTooLargeError(f"{stored} bytes exceed {limits.batch_bytes_max}")
    if inflated > limits.uncompressed_bytes_max:
        raise BatchTooLargeError(
            f"{inflated} uncompressed bytes exceed {limits.uncompressed_bytes_max}"
        )
    if count > limits.records_max:
        raise BatchTooLargeError(f"{count} records exceed {limits.records_max}")
    # Without a look inside: more bytes than all records together may have. The slack is what
    # offsets and validity bits take beside them; the exact check is in record.check_columns.
    if inflated > count * (limits.record_bytes_max + 16) + (1 << 16):
        raise RecordTooLargeError(
            f"{count} records in {inflated} bytes: one exceeds {limits.record_bytes_max}"
        )


def assemble(part: ProducerPart, body: list[Buffer], leader_flags: int = 0) -> bytes:
    """A whole batch with a zero leader part, but for the flags of a compacted one.

    Args:
        part: What the producer says of it.
        body: Index section and payload, padded: its bytes follow the header as they are.
        leader_flags: ``LeaderFlag`` bits; zero in a Produce.

    Raises:
        BatchTooLargeError, InvalidRequestError: As ``header_of``.
    """
    return b"".join((header_of(part, body, leader_flags), *body))


def header_of(part: ProducerPart, body: list[Buffer], leader_flags: int = 0) -> bytes:
    """The header alone of what ``assemble`` makes of the same.

    Raises:
        BatchTooLargeError: The batch exceeds ``BATCH_BYTES_LIMIT``.
        InvalidRequestError: A number does not fit its field.
    """
    batch_length = HEADER_LENGTH + sum(map(len, body))
    if batch_length > BATCH_BYTES_LIMIT:
        raise BatchTooLargeError(f"{batch_length} bytes exceed the format's {BATCH_BYTES_LIMIT}")
    try:
        producer = _PRODUCER.pack(0, *part, 0)
    except struct.error as error:
        raise InvalidRequestError(f"a header field is out of range: {error}") from error
    producer_crc = crc32c_of_parts([producer[4:], *body])
    raw = b"".join(
        (
            _FRAME_AND_LEADER.pack(
                MAGIC, VERSION, HEADER_LENGTH, batch_length, *_ZEROS, leader_flags
            ),
            _U32.pack(producer_crc),
            producer[4:],
        )
    )
    header_crc = crc32c(raw)
    return b"".join((raw[:12], _U32.pack(header_crc), raw[16:]))


def set_producer(
    batch: bytes | bytearray, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytes:
    """A copy of one whole batch under other producer ids, with both CRCs recomputed.

    Raises:
        CorruptBatchError: ``batch`` is not one whole batch.
        InvalidRequestError: A number does not fit its field.
    """
    if parse_header(batch).batch_length != len(batch):
        raise _corrupt(0, "not one whole batch")
    copy = bytearray(batch)
    try:
        _PRODUCER_IDS.pack_into(
            copy, _PRODUCER_IDS_START, producer_id, base_sequence, producer_epoch
        )
    except struct.error as error:
        raise InvalidRequestError(f"a producer field is out of range: {error}") from error
    refresh_crcs(copy)
    return bytes(copy)


def refresh_crcs(batch: bytearray) -> None:
    """Recompute both CRCs of one whole batch in place, after its bytes were changed on purpose."""
    _U32.pack_into(batch, _PRODUCER_START, crc32c_between(batch, _PRODUCER_CRC_FROM, len(batch)))
    _U32.pack_into(batch, 12, 0)
    _U32.pack_into(batch, 12, crc32c_between(batch, 0, HEADER_LENGTH))


def _corrupt(position: int, what: str) -> CorruptBatchError:
    return CorruptBatchError(f"record batch at position {position}: {what}", position=position)
