"""What a node sent for one partition, checked: whole batches, the right ones, and all of them.

A checksum says that a batch is what it was; nodes leave those of sealed batches to us. Segment and
offsets say that it is the one that belongs there.
"""

from collections.abc import Iterator

from icecore.codec.batch import BatchHeader, iter_batches, verify_producer_crc
from icecore.errors import CorruptBatchError
from icecore.v1 import data_pb2


def checked_batches(
    data: memoryview, result: data_pb2.FetchPartitionResult, offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """``(position, header)`` of one batch after the other, each once it is checked.

    Args:
        data: What came for the partition.
        result: What its node says about it.
        offset: What was asked for; the first batch holds it.

    Raises:
        CorruptBatchError: Something is damaged, missing or of another place.
    """
    expected = -1
    for position, header in iter_batches(data):
        verify_producer_crc(data, position, header)
        follows = header.base_offset == expected
        is_first = expected < 0 and header.base_offset <= offset < header.end_offset
        if header.segment_id != result.segment_id or not (follows or is_first):
            raise CorruptBatchError(
                f"segment {header.segment_id} offset {header.base_offset} at {position}, where "
                f"offset {max(expected, offset)} of segment {result.segment_id} belongs"
            )
        expected = header.end_offset
        yield position, header
    if data and expected != result.next_offset:
        raise CorruptBatchError(f"the batches end at {expected}, not at {result.next_offset}")
