"""What a node sent: damaged, of another place or not all of it never counts as records."""

import pytest

from icecore.client.fetched import checked_batches
from icecore.codec.batch import HEADER_LENGTH, parse_header
from icecore.errors import CorruptBatchError
from icecore.v1 import data_pb2
from tests.conformance.log_builder import LogBuilder

LOG = LogBuilder(3, 10)
for count in (2, 3, 4):  # offsets 10, 12, 15; the end is 19
    LOG.make(count, 50)
A, B, C = LOG.batches


def ends(data: bytes, offset: int, next_offset: int, segment_id: int = 3) -> list[int]:
    """Where the batches end that are believed, until an error."""
    result = data_pb2.FetchPartitionResult(segment_id=segment_id, next_offset=next_offset)
    found = []
    for position, header in checked_batches(memoryview(data), result, offset):
        assert header == parse_header(data, position)
        found.append(header.end_offset)
    return found


def test_whole_batches_from_the_one_that_holds_the_offset() -> None:
    assert ends(A + B + C, 10, 19) == [12, 15, 19]
    assert ends(B + C, 14, 19) == [15, 19]
    assert ends(b"", 14, 14) == []


@pytest.mark.parametrize(
    ("data", "offset", "next_offset", "segment_id"),
    [
        (A + B, 10, 15, 4),  # of another segment
        (B + C, 11, 19, 3),  # begins too late
        (A + B, 12, 15, 3),  # begins too early
        (A + C, 10, 19, 3),  # one is missing,
        (A + B, 10, 19, 3),  # the last one is
        (A + A + B, 10, 15, 3),  # one is there twice
        (B + A, 12, 12, 3),  # in another order
        (A + B + C, 10, 15, 3),  # more than was said
        (A + B[:-1], 10, 15, 3),  # cut short
        (A + B[: HEADER_LENGTH - 1], 10, 15, 3),
        (A + bytes(len(B)), 10, 15, 3),
    ],
)
def test_what_does_not_belong_there(
    data: bytes, offset: int, next_offset: int, segment_id: int
) -> None:
    with pytest.raises(CorruptBatchError):
        ends(data, offset, next_offset, segment_id)


@pytest.mark.parametrize("at", range(0, len(B), 7))
def test_any_flipped_byte_is_found_and_what_is_before_it_counts(at: int) -> None:
    wrong = bytearray(A + B + C)
    wrong[len(A) + at] ^= 1
    result = data_pb2.FetchPartitionResult(segment_id=3, next_offset=19)
    found = []
    with pytest.raises(CorruptBatchError):
        for _, header in checked_batches(memoryview(bytes(wrong)), result, 10):
            found.append(header.end_offset)
    assert found == [12]
