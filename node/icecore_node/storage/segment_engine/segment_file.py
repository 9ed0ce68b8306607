"""The bytes of a segment file: its 4 KiB header, then batches; how to write, find and check them.

The header holds two slots of one sector each. ``create`` writes the first (base offset unknown),
``confirm`` the second: a slot is never overwritten by another content, so a crash cannot tear what
was durable. Batches follow from position 4096, each a multiple of 8 bytes long. A file may have
had a former life (``recycle.py``), so behind the last batch anything may follow: zeros, or
batches of another segment id. Positions are bytes, offsets count records.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

from icecore.codec.batch import (
    HEADER_LENGTH,
    MAGIC,
    VERSION,
    BatchHeader,
    chain_seed,
    crc32c,
    digest_seed,
    digest_step,
    parse_header,
    peek,
    verify_producer_crc,
)
from icecore.errors import CorruptBatchError, StorageError
from icecore_node.ports import File, FileSystem
from icecore_node.storage.engine import LogTail, SegmentIdentity

FILE_HEADER_LENGTH = 4096
LEAF_BYTES = 1 << 20
ASIDE = ".quarantined"
"""What the name of a file that was set aside has behind ``.log``, followed by a number."""

_FILE_MAGIC = b"iceseg\r\n"
_FILE_VERSION = 1
_SLOT_LENGTH = 512
_SLOT = struct.Struct("<8sII16s16sIIQqI")
_CRC = struct.Struct("<I")
_SLOT_COUNT = 2
_BATCH_SIGN = struct.pack("<IHH", MAGIC, VERSION, HEADER_LENGTH)
_CRC_AND_SEGMENT = struct.Struct("<IQ")
_PRODUCER_CRC_AT = 80
_SCAN_BYTES = 1 << 18
_WALK_BYTES = 1 << 16
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """One batch met by a scan."""

    position: int
    header: BatchHeader
    header_bytes: bytes


# --- names and the file header ------------------------------------------------------------------


def folder_name(identity: SegmentIdentity) -> str:
    """Folder of one partition's segments, relative to the data folder."""
    return f"segments/{identity.topic_id.hex()}/{identity.partition}"


def file_name(identity: SegmentIdentity) -> str:
    """Data file of one replica, relative to the data folder; built from ids only."""
    name = f"{identity.segment_id:020d}.{identity.generation}.log"
    return f"{folder_name(identity)}/{name}"


def aside_name(file_system: FileSystem, name: str) -> str:
    """A free name to set this file aside under."""
    number = 0
    while file_system.exists(f"{name}{ASIDE}{number}"):
        number += 1
    return f"{name}{ASIDE}{number}"


def set_aside_leftover(file_system: FileSystem, name: str) -> bool:
    """Rename a file without a (usable) record; whether it may have held confirmed data."""
    file = file_system.open(name)
    found = decode_file_header(file.pread(FILE_HEADER_LENGTH, 0))
    file.close()
    file_system.rename(name, aside_name(file_system, name))
    return found is not None and found.base_offset >= 0


def files_of(file_system: FileSystem, name: str) -> list[str]:
    """This file, if it is there, and what was set aside of it before."""
    folder, _, own = name.rpartition("/")
    names = file_system.list_dir(folder)
    return [f"{folder}/{each}" for each in names if each == own or each.startswith(own + ASIDE)]


def _encode_slot(identity: SegmentIdentity, base_offset: int) -> bytes:
    fields = _SLOT.pack(
        _FILE_MAGIC,
        _FILE_VERSION,
        FILE_HEADER_LENGTH,
        identity.cluster_id,
        identity.topic_id,
        identity.partition,
        identity.generation,
        identity.segment_id,
        base_offset,
        identity.epoch,
    )
    raw = fields.ljust(_SLOT_LENGTH - _CRC.size, b"\0")
    return raw + _CRC.pack(crc32c(raw))


def encode_file_header(identity: SegmentIdentity, *, is_confirmed: bool = False) -> bytes:
    """All 4 KiB as ``create`` writes them: first slot without a base; second one with it, or
    empty."""
    second = _encode_slot(identity, identity.base_offset) if is_confirmed else b""
    return (_encode_slot(identity, -1) + second).ljust(FILE_HEADER_LENGTH, b"\0")


def confirm_slot(identity: SegmentIdentity) -> tuple[bytes, int]:
    """Bytes and position of the second slot, which fixes the base offset."""
    return _encode_slot(identity, identity.base_offset), _SLOT_LENGTH


def decode_file_header(data: bytes) -> SegmentIdentity | None:
    """Whose file it is: the base offset is -1 unless it was confirmed. None when damaged."""
    found: SegmentIdentity | None = None
    for number in range(_SLOT_COUNT):
        slot = data[number * _SLOT_LENGTH : (number + 1) * _SLOT_LENGTH]
        if len(slot) < _SLOT_LENGTH:
            break
        (crc,) = _CRC.unpack_from(slot, _SLOT_LENGTH - _CRC.size)
        if crc32c(slot, 0, _SLOT_LENGTH - _CRC.size) != crc:
            continue
        fields = _SLOT.unpack_from(slot)
        if fields[:3] == (_FILE_MAGIC, _FILE_VERSION, FILE_HEADER_LENGTH):
            _, _, _, cluster_id, topic_id, partition, generation, segment_id, base, epoch = fields
            found = SegmentIdentity(
                cluster_id, topic_id, partition, segment_id, generation, epoch, base
            )
    return found


def empty_tail(identity: SegmentIdentity, max_append_timestamp_ms: int) -> LogTail:
    """The tail of a confirmed segment without batches."""
    seed = (
        identity.cluster_id,
        identity.topic_id,
        identity.partition,
        identity.segment_id,
        identity.base_offset,
        identity.epoch,
    )
    return LogTail(
        identity.base_offset, chain_seed(*seed), digest_seed(*seed), max_append_timestamp_ms, 0
    )


def next_tail(tail: LogTail, found: FoundBatch) -> LogTail:
    """The tail after one more batch."""
    header = found.header
    return LogTail(
        header.end_offset,
        header.header_crc32c,
        digest_step(tail.digest, found.header_bytes),
        max(tail.max_append_timestamp_ms, header.append_timestamp_ms),
        max(tail.max_known_high_watermark, header.high_watermark),
    )


# --- reading batches ------------------------------------------------------------------------------


class BatchScan(Iterator[FoundBatch]):
    """Walks the chained batches of one segment from a position with a known tail.

    Ends silently at the first thing that is no batch of this segment in this place; ``position``
    is then where, ``tail`` what came before, and ``stop`` why. Without ``with_bodies`` it reads
    headers only.
    """

    def __init__(
        self,
        file: File,
        identity: SegmentIdentity,
        position: int,
        tail: LogTail,
        end_position: int,
        *,
        with_bodies: bool,
    ) -> None:
        self.position = position
        self.tail = tail
        self.stop = ""
        self.torn_high_watermark = 0
        """HW stamp of a last batch whose header is whole and whose body is not."""
        self._file = file
        self.identity = identity
        self._end_position = end_position
        self._with_bodies = with_bodies
        self._chunk = b""
        self._chunk_at = 0

    def _bytes(self, position: int, length: int) -> tuple[bytes, int]:
        """A buffer and the index of ``position`` in it, with ``length`` bytes behind it."""
        start = position - self._chunk_at
        if start < 0 or start + length > len(self._chunk):
            # A jump past the chunk means large batches: then read no more than asked for.
            is_near = start <= len(self._chunk)
            want = max(length, _SCAN_BYTES if is_near or self._with_bodies else length)
            want = min(want, self._end_position - position)
            self._chunk = self._file.pread(want, position) if want > 0 else b""
            self._chunk_at, start = position, 0
        return self._chunk, start

    def __next__(self) -> FoundBatch:
        """The next batch, already part of ``tail``."""
        if self.position + HEADER_LENGTH > self._end_position:
            self.stop = "end of file"
            raise StopIteration
        try:
            found = self._parse()
        except CorruptBatchError as error:
            self.stop = str(error)
            raise StopIteration from None
        if found is None:
            raise StopIteration
        self.tail = next_tail(self.tail, found)
        self.position += found.header.batch_length
        return found

    def _parse(self) -> FoundBatch | None:
        data, start = self._bytes(self.position, HEADER_LENGTH)
        header = parse_header(data, start)
        raw = data[start : start + HEADER_LENGTH]
        identity = self.identity
        if header.segment_id != identity.segment_id or header.epoch != identity.epoch:
            self.stop = f"batch of segment {header.segment_id} epoch {header.epoch}"
        elif header.base_offset != self.tail.end_offset or header.end_offset <= header.base_offset:
            self.stop = f"offset {header.base_offset} where {self.tail.end_offset} is due"
        elif header.prev_header_crc32c != self.tail.last_header_crc32c:
            self.stop = "the chain is broken"
        elif self.position + header.batch_length > self._end_position:
            self.stop = "the file ends inside a batch"
            self.torn_high_watermark = header.high_watermark
        else:
            if self._with_bodies:
                self.torn_high_watermark = header.high_watermark
                data, start = self._bytes(self.position, header.batch_length)
                verify_producer_crc(data, start, header)
                self.torn_high_watermark = 0
            return FoundBatch(self.position, header, raw)
        return None


def find_own_batches(
    file: File, identity: SegmentIdentity, position: int, end_position: int, min_offset: int
) -> Iterator[FoundBatch]:
    """Whole, valid batches of this segment anywhere in [position, end_position), chained or not.

    Batches start at multiples of 8, and their first 8 bytes are constant.
    """
    position = (position + 7) & ~7
    while position + HEADER_LENGTH <= end_position:
        chunk = file.pread(min(_SEARCH_BYTES, end_position - position), position)
        if not chunk:
            return
        at = chunk.find(_BATCH_SIGN)
        while at >= 0:
            if at % 8 == 0:
                found = _own_batch(file, identity, position + at, end_position)
                if found is not None and found.header.base_offset >= min_offset:
                    yield found
            at = chunk.find(_BATCH_SIGN, at + 1)
        # A read may stop at the end of the file in the middle of 8 bytes; nothing starts there.
        position += max(len(chunk) & ~7, 8)


def _own_batch(
    file: File, identity: SegmentIdentity, position: int, end_position: int
) -> FoundBatch | None:
    raw = file.pread(HEADER_LENGTH, position)
    try:
        header = parse_header(raw)
        if header.segment_id != identity.segment_id or header.epoch != identity.epoch:
            return None
        if position + header.batch_length > end_position:
            return None
        verify_producer_crc(file.pread(header.batch_length, position), 0, header)
    except CorruptBatchError:
        return None
    return FoundBatch(position, header, raw)


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
        if len(raw) < HEADER_LENGTH:
            raise CorruptBatchError(f"cut short at {position}")
        crc, segment_id = _CRC_AND_SEGMENT.unpack_from(raw, 12)
        batch_length, base_offset, end_offset = peek(raw)
        if google_crc32c.value(raw[:12] + b"\0\0\0\0" + raw[16:]) != crc:
            raise CorruptBatchError(f"header CRC mismatch at {position}")
        if segment_id != identity.segment_id or base_offset > offset or end_offset <= offset:
            raise CorruptBatchError(f"segment {segment_id} offset {base_offset} at {position}")
        if with_bodies:
            (crc,) = _CRC.unpack_from(raw, _PRODUCER_CRC_AT)
            body_start = position + _PRODUCER_CRC_AT + _CRC.size
            if crc32c(data, body_start, position + batch_length) != crc:
                raise CorruptBatchError(f"producer CRC mismatch at {position}")
        offset = end_offset
        position += batch_length
    if position != length:
        raise CorruptBatchError(f"a batch is cut short at {length}")
    return offset


def walk_to(file: File, position: int, end_position: int, offset: int) -> tuple[int, int, int]:
    """(position, length, end offset) of the batch that holds ``offset``, at or after ``position``.

    Hops over headers without checking them: what it arrives at is for the caller to verify.

    Raises:
        CorruptBatchError: The hops lead nowhere.
    """
    chunk, start = b"", position
    while position + HEADER_LENGTH <= end_position:
        at = position - start
        if at + HEADER_LENGTH > len(chunk):
            # The first hop beyond a chunk tells whether batches are large: then headers only.
            want = HEADER_LENGTH if at > len(chunk) else _WALK_BYTES
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


class TreeHash:
    """SHA-256 tree over bytes given in pieces: leaves of 1 MiB, and a root over their digests."""

    def __init__(self) -> None:
        self._root = hashlib.sha256(b"\x01")
        self._leaf, self._room = hashlib.sha256(b"\x00"), LEAF_BYTES

    def update(self, data: bytes) -> None:
        """The next piece, however long."""
        position = 0
        while position < len(data):
            piece = data[position : position + self._room]
            self._leaf.update(piece)
            position += len(piece)
            self._room -= len(piece)
            if self._room == 0:
                self._root.update(self._leaf.digest())
                self._leaf, self._room = hashlib.sha256(b"\x00"), LEAF_BYTES

    def digest(self) -> bytes:
        """Of everything so far; nothing may follow."""
        if self._room < LEAF_BYTES:
            self._root.update(self._leaf.digest())
        return self._root.digest()


def tree_digest(file: File, end_position: int, scan: BatchScan) -> bytes:
    """The tree hash over the batch bytes of a whole log.

    ``scan`` (with bodies) must walk all of it: each batch is CRC-checked on the way.

    Raises:
        StorageError: A batch is damaged, or the log does not end at ``end_position``.
    """
    position = scan.position
    for _ in scan:
        pass
    if scan.position != end_position:
        raise StorageError(f"damaged at position {scan.position}: {scan.stop}")
    tree = TreeHash()
    while position < end_position:
        data = file.pread(min(LEAF_BYTES, end_position - position), position)
        if not data:
            raise StorageError(f"the file ends at {position}, not at {end_position}")
        tree.update(data)
        position += len(data)
    return tree.digest()
