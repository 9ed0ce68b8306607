"""Batches in the order of their log: each names the header CRC of the one before it.

What a leader sends must be such a run before a follower looks where it continues its own log
(``follower.py``). Headers only: CRCs of bodies are the shell's to compare. Rule R10 of
docs/design/protocol.md.
"""

from collections.abc import Iterable

from icecore.codec.batch import BatchHeader
from icecore.errors import CorruptBatchError
from icecore.model import Epoch, SegmentId


def check_run(headers: Iterable[BatchHeader], segment_id: SegmentId, epoch: Epoch) -> None:
    """Each batch is of this segment and epoch, and follows the one before it without a gap.

    Raises:
        CorruptBatchError: Otherwise.
    """
    previous: BatchHeader | None = None
    for header in headers:
        if header.segment_id != segment_id or header.epoch != epoch:
            raise CorruptBatchError("a batch of another segment or epoch")
        if previous is not None and not follows(header, previous):
            raise CorruptBatchError("batches are not a chain")
        previous = header


def follows(header: BatchHeader, previous: BatchHeader) -> bool:
    """Return whether this batch was written directly behind ``previous``."""
    return (header.base_offset, header.prev_header_crc32c) == (
        previous.end_offset,
        previous.header_crc32c,
    )
