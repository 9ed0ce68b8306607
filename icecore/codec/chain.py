"""Binds the batches of a segment to it and to each other, by seeds and the seal digest.

A batch names the CRC of the header before it, the first one the seed of its segment; so a log can
hold no batch of another segment, none twice and none in another order. The seal digest rolls over
all stamped headers, so two logs with the same digest have the same batches in the same order.
"""

import hashlib
import struct
from collections.abc import Iterable

from icecore.codec.batch import BatchHeader, Buffer
from icecore.codec.checksum import crc32c
from icecore.errors import CorruptBatchError, InvalidRequestError
from icecore.model import Epoch, SegmentId

_SEED = struct.Struct("<16s16sIQqQ")


def segment_seed(
    cluster_id: bytes,
    topic_id: bytes,
    partition: int,
    segment_id: SegmentId,
    base_offset: int,
    epoch: Epoch,
) -> bytes:
    """Return the identity of a segment as 60 bytes, from which both seeds are made.

    Raises:
        InvalidRequestError: An id has not 16 bytes.
    """
    if len(cluster_id) != 16 or len(topic_id) != 16:
        raise InvalidRequestError("cluster and topic ids have 16 bytes")
    return _SEED.pack(cluster_id, topic_id, partition, segment_id, base_offset, epoch)


def chain_seed(seed: bytes) -> int:
    """Return the CRC that the first batch of a segment names as that of the header before it."""
    crc = crc32c(seed)
    return crc


def digest_seed(seed: bytes) -> bytes:
    """The seal digest (32 bytes) of a segment without batches."""
    return hashlib.sha256(seed).digest()


def digest_step(digest: bytes, header_bytes: Buffer) -> bytes:
    """The seal digest after one more batch, from its 152 stamped header bytes."""
    return hashlib.sha256(digest + header_bytes).digest()


# --- runs of batches ------------------------------------------------------------------------------

# Headers only: whoever has the bodies compares their CRCs (R10 of docs/design/protocol.md).


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
