"""Makes stamped batches and append requests, as a leader would, and knows what a log must hold."""

import struct
from dataclasses import replace

from icecore.codec.batch import HEADER_LENGTH, Compacted, assemble, pad8, parse_header, stamp
from icecore.codec.chain import digest_step
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.engine import AppendRequest, BatchMark, LogTail, SegmentIdentity

CLUSTER = bytes(range(16))
TOPIC = bytes(range(16, 32))


def identity(segment_id: int, base_offset: int = -1, **changes: int) -> SegmentIdentity:
    """A replica of partition 0 in epoch 1."""
    fields = {"partition": 0, "generation": 0, "epoch": 1} | changes
    return SegmentIdentity(
        CLUSTER,
        TOPIC,
        fields["partition"],
        segment_id,
        fields["generation"],
        fields["epoch"],
        base_offset,
    )


def produced(values: list[bytes]) -> bytes:
    """An unstamped batch; its payload is opaque to the store."""
    index = struct.pack(f"<{len(values)}q", *range(len(values)))
    payload = b"".join(values)
    fields = (30, 0, len(values), len(index), len(payload), 0, len(values), 0, 0, 0, 0)
    return assemble((*fields, len(payload)), [index, payload.ljust(pad8(len(payload)), b"\0")])


class LogBuilder:
    """The whole log of one segment: ``batches`` in order, and the tail after each."""

    def __init__(
        self,
        segment_id: int,
        base_offset: int = 0,
        start_timestamp_ms: int = 0,
        engine: str = SEGMENT_ENGINE,
    ) -> None:
        self.identity = replace(identity(segment_id, base_offset), engine=engine)
        self.batches: list[bytes] = []
        self.tails: list[LogTail] = [empty_tail(self.identity, start_timestamp_ms)]

    @property
    def tail(self) -> LogTail:
        """After all batches made so far."""
        return self.tails[-1]

    def make(
        self, records: int, size: int = 100, *, time_ms: int | None = None, high_watermark: int = 0
    ) -> bytes:
        """One more stamped batch of ``records`` values of ``size`` bytes."""
        fill = (self.tail.end_offset * 31 + len(self.batches)) % 251
        raw = produced([bytes([(fill + number) % 251]) * size for number in range(records)])
        return self.add(raw, time_ms=time_ms, high_watermark=high_watermark)

    def add(
        self,
        raw: bytes,
        *,
        time_ms: int | None = None,
        high_watermark: int = 0,
        compacted: Compacted | None = None,
    ) -> bytes:
        """One more stamped batch, from an unstamped one."""
        before, parsed = self.tail, parse_header(raw)
        time_ms = before.max_append_timestamp_ms if time_ms is None else time_ms
        header, crc = stamp(
            raw,
            0,
            parsed,
            segment_id=self.identity.segment_id,
            epoch=self.identity.epoch,
            base_offset=before.end_offset,
            append_timestamp_ms=time_ms,
            high_watermark=high_watermark,
            prev_header_crc32c=before.last_header_crc32c,
            compacted=compacted,
        )
        self.batches.append(header + raw[HEADER_LENGTH:])
        self.tails.append(
            LogTail(
                end_offset=parse_header(header).end_offset,
                last_header_crc32c=crc,
                digest=digest_step(before.digest, header),
                max_append_timestamp_ms=max(before.max_append_timestamp_ms, time_ms),
                max_known_high_watermark=max(before.max_known_high_watermark, high_watermark),
                length_bytes=before.length_bytes + len(self.batches[-1]),
            )
        )
        return self.batches[-1]

    def request(self, batches: int = 1, records: int = 1, size: int = 100) -> AppendRequest:
        """An append of new batches; each is given as two buffers, header and body."""
        first = len(self.batches)
        for _ in range(batches):
            self.make(records, size)
        return self.request_of(first, len(self.batches))

    def request_of(self, first: int, stop: int) -> AppendRequest:
        """An append of batches made before."""
        chosen = self.batches[first:stop]
        marks = []
        for batch in chosen:
            header = parse_header(batch)
            marks.append(BatchMark(header.base_offset, header.append_timestamp_ms, len(batch)))
        buffers = [
            part
            for batch in chosen
            for part in (batch[:HEADER_LENGTH], memoryview(batch)[HEADER_LENGTH:])
        ]
        return AppendRequest(self.identity.segment_id, list(buffers), marks, self.tails[stop])

    def bytes_between(self, first_offset: int, end_offset: int) -> bytes:
        """All batches with offsets in [first_offset, end_offset)."""
        return b"".join(
            batch
            for batch, before, after in zip(self.batches, self.tails, self.tails[1:], strict=False)
            if before.end_offset >= first_offset and after.end_offset <= end_offset
        )

    def headers(self) -> list[bytes]:
        """Headers of all batches."""
        return [batch[:HEADER_LENGTH] for batch in self.batches]
