"""Row groups on their way to clients that decode Parquet themselves: as they lie, in the frame of a
batch (``icecore/codec/row_group.py``). Nothing is decoded, compressed or copied here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from icecore.codec import batch, row_group
from icecore.topic_settings import BATCH_BYTES_CAP
from icecore_node.ports import Buffer
from icecore_node.remote.format.manifest import RawBatch, RowGroup, SegmentFacts

FRAME_BYTES_MAX: Final = BATCH_BYTES_CAP
"""As stored; a larger row group is cut into batches."""
_AROUND_BYTES: Final = 4096
"""Upper bound on the size of a header and a footer of one row group."""


@dataclass(frozen=True, slots=True)
class RowFrame:
    """A row group in its stamped frame, ready to send."""

    buffers: list[Buffer]
    length_bytes: int


def is_framed(part: RowGroup | RawBatch) -> TypeGuard[RowGroup]:
    """Return whether the part is a row group small enough to be sent as it lies. A raw batch is
    not."""
    return isinstance(part, RowGroup) and part.end - part.start <= FRAME_BYTES_MAX


def framed_bytes(group: RowGroup) -> int:
    """About how long its frame is."""
    return group.end - group.start + _AROUND_BYTES


def row_frame(file: Sequence[Buffer], group: RowGroup, facts: SegmentFacts) -> RowFrame:
    """Put a row group into the frame of a batch. Blocking: computes a CRC of all of it.

    Args:
        file: The row group as a Parquet file of its own.
        group: The manifest's description of the row group.
        facts: The segment of the row group.
    """
    times_ms = group.min_timestamp_ms, group.max_timestamp_ms
    head, body = row_group.frame(file, group.records, times_ms)
    stamped, _ = batch.stamp(
        head,
        0,
        batch.parse_header(head),
        segment_id=facts.segment_id,
        epoch=facts.epoch,
        base_offset=group.base_offset,
        append_timestamp_ms=group.max_append_timestamp_ms,
        high_watermark=facts.end_offset,
        prev_header_crc32c=0,
        compacted=batch.Compacted(group.end_offset, is_row_group=True),
    )
    buffers: list[Buffer] = [stamped, *body]
    return RowFrame(buffers, sum(map(len, buffers)))
