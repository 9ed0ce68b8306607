"""Reading the batches of a log one after the other, each checked before it is shown.

Batches follow the header without gaps, each a multiple of 8 bytes long, and each names the CRC of
the one before it. A file may have had a former life (``recycle.py``), so behind the last batch
anything may follow: zeros, or batches of another segment id. ``BatchScan`` therefore trusts the
chain alone; ``find_own_batches`` looks for what lies behind a hole in it. Positions are bytes,
offsets count records. Reads of clients take the shorter way in ``batch_runs.py``.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from icecore.codec.batch import (
    HEADER_LENGTH,
    MAGIC,
    VERSION,
    BatchHeader,
    parse_header,
    verify_producer_crc,
)
from icecore.codec.chain import chain_seed, digest_seed, digest_step, segment_seed
from icecore.errors import CorruptBatchError
from icecore_node.storage.batches.batch_log import Readable
from icecore_node.storage.engine import LogTail, SegmentIdentity

_BATCH_SIGN = struct.pack("<IHH", MAGIC, VERSION, HEADER_LENGTH)
_SCAN_BYTES = 1 << 18
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """One batch met by a scan."""

    position: int
    header: BatchHeader
    header_bytes: bytes


def empty_tail(identity: SegmentIdentity, max_append_timestamp_ms: int) -> LogTail:
    """The tail of a confirmed segment without batches."""
    seed = segment_seed(
        identity.cluster_id,
        identity.topic_id,
        identity.partition,
        identity.segment_id,
        identity.base_offset,
        identity.epoch,
    )
    return LogTail(
        end_offset=identity.base_offset,
        last_header_crc32c=chain_seed(seed),
        digest=digest_seed(seed),
        max_append_timestamp_ms=max_append_timestamp_ms,
        max_known_high_watermark=0,
        length_bytes=0,
    )


def next_tail(tail: LogTail, found: FoundBatch) -> LogTail:
    """The tail after one more batch."""
    header = found.header
    return LogTail(
        end_offset=header.end_offset,
        last_header_crc32c=header.header_crc32c,
        digest=digest_step(tail.digest, found.header_bytes),
        max_append_timestamp_ms=max(tail.max_append_timestamp_ms, header.append_timestamp_ms),
        max_known_high_watermark=max(tail.max_known_high_watermark, header.high_watermark),
        length_bytes=tail.length_bytes + header.batch_length,
    )


class BatchScan(Iterator[FoundBatch]):
    """Walks the chained batches of one segment from a position with a known tail.

    Ends silently at the first thing that is no batch of this segment in this place; ``position``
    is then where, ``tail`` what came before, and ``stop`` why. Without ``with_bodies`` it reads
    headers only.
    """

    def __init__(
        self,
        file: Readable,
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
        self.end_position = end_position
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
            want = min(want, self.end_position - position)
            self._chunk = self._file.pread(want, position) if want > 0 else b""
            self._chunk_at, start = position, 0
        return self._chunk, start

    def __next__(self) -> FoundBatch:
        """The next batch, already part of ``tail``."""
        if self.position + HEADER_LENGTH > self.end_position:
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
        elif self.position + header.batch_length > self.end_position:
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
    file: Readable, identity: SegmentIdentity, position: int, end_position: int, min_offset: int
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
    file: Readable, identity: SegmentIdentity, position: int, end_position: int
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
