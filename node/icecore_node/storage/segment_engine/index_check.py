"""Compares an index file with the segment that it was made of: is it whole, and what it should be?

For a person who looks at a folder from the outside; a node at work compares checksums only, and
makes anew what fails.
"""

from collections.abc import Iterator

import numpy as np

from icecore.codec.batch import HEADER_LENGTH, peek
from icecore.codec.index_entries import batch_entries
from icecore_node.ports import File
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.index.entries import Entries, joined, sorted_entries
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.segment_engine.sealed_index import SealedIndex
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH


def check_index_file(
    index_file: File, log_file: File, identity: SegmentIdentity, seal_digest: bytes, end: int
) -> int:
    """Compare every entry with those of the batches, which were proved before.

    Args:
        index_file: The index.
        log_file: The data file of a sealed segment.
        identity: Of the replica.
        seal_digest: Of the segment.
        end: The position behind the last batch.

    Returns:
        The number of entries.

    Raises:
        DamagedIndexError: It is damaged, belongs to another segment, or has other entries.
    """
    index = SealedIndex(index_file.pread)
    facts = index.facts
    if (facts.segment_id, facts.generation, facts.seal_digest) != (
        identity.segment_id,
        identity.generation,
        seal_digest,
    ):
        raise DamagedIndexError(f"it belongs to segment {facts.segment_id}, or to other bytes")
    if index_file.size() != index.length_bytes:
        raise DamagedIndexError(f"{index_file.size()} bytes, not {index.length_bytes}")
    count = index.verify()
    found = joined(list(index.run.walk()))
    made = sorted_entries(joined(list(_entries(log_file, identity.base_offset, end))))
    if not (
        np.array_equal(found.hashes, made.hashes) and np.array_equal(found.ordinals, made.ordinals)
    ):
        raise DamagedIndexError(f"{count} entries, which are not those of the segment's batches")
    return count


def _entries(file: File, base_offset: int, end: int) -> Iterator[Entries]:
    position = FILE_HEADER_LENGTH
    while position < end:
        header = file.pread(HEADER_LENGTH, position)
        length, offset, _ = peek(header)
        body = file.pread(length - HEADER_LENGTH, position + HEADER_LENGTH)
        made = batch_entries(header, body, offset - base_offset)
        if made is None:
            raise DamagedIndexError(f"the batch at {offset} has no index section that makes sense")
        hashes, ordinals = np.frombuffer(made.hashes, "<u8"), np.frombuffer(made.ordinals, "<u4")
        yield Entries(hashes, ordinals)
        position += length
