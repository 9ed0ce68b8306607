"""Plain records: all of them once, in pieces of bounded size, up to a batch nobody can decode."""

import tracemalloc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import batch, record
from icecore.codec.batch import Codec
from icecore.v1 import common_pb2
from icecore_node.serving.fetch.plain_records import PlainRecords, plain_records
from tests.support import rotation
from tests.support.poison import garbage_in_frame

MANY = 1 << 20


def stored(raw: bytes, base_offset: int, epoch: int = 1) -> bytes:
    """As a leader stamps it."""
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=1,
        epoch=epoch,
        base_offset=base_offset,
        append_timestamp_ms=1000 + base_offset,
        high_watermark=base_offset,
        prev_header_crc32c=0,
    )
    return header + raw[batch.HEADER_LENGTH :]


def full(count: int, base: int, codec: Codec = Codec.ZSTD) -> dict[str, Any]:
    """Columns with everything, nulls included."""
    numbers = range(base, base + count)
    return {
        "values": [None if n % 5 == 0 else b"v%d" % n for n in numbers],
        "keys": [None if n % 3 == 0 else b"k%d" % n for n in numbers],
        "timestamps_ms": [10 * n for n in numbers],
        "tags": [(f"t{n % 4}", "all")[: n % 3] for n in numbers],
        "headers": [(("h", b"%d" % n), ("none", None))[: n % 3] for n in numbers],
        "codec": codec,
    }


def as_message(each: record.Record) -> common_pb2.Record:
    return common_pb2.Record(
        offset=each.offset,
        timestamp_ms=each.timestamp_ms,
        append_timestamp_ms=each.append_timestamp_ms,
        key=each.key,
        value=each.value,
        tags=each.tags,
        headers=[common_pb2.Header(name=n, value=v) for n, v in each.headers],
    )


@settings(max_examples=rotation.examples(30))
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    start=st.integers(0, 30),
    max_bytes=st.integers(1, 4000),
    max_records=st.integers(1, 50),
)
def test_pieces_hold_every_record_once(
    sizes: list[int], start: int, max_bytes: int, max_records: int
) -> None:
    batches, wanted, end = [], [], 0
    for size in sizes:
        raw = stored(record.encode_columns(**full(size, end)), end)
        wanted += record.decode(raw, 0, batch.parse_header(raw)).to_records()
        batches.append(raw)
        end += size
    start = min(start, end - 1)
    got: list[common_pb2.Record] = []
    offset = start
    while offset < end:
        piece = plain_records([b"".join(batches)], offset, max_bytes, max_records)
        assert piece.error is None
        assert piece.next_offset > offset
        assert 1 <= len(piece.part.records) <= max_records
        assert len(piece.part.records) == 1 or piece.size_bytes <= max_bytes
        got += piece.part.records
        offset = piece.next_offset
    assert got == [as_message(each) for each in wanted if each.offset >= start]


def test_a_large_batch_comes_in_pieces_of_bounded_memory() -> None:
    values = [bytes(1000)] * 30_000  # 30 MB in some KB
    raw = stored(
        record.encode_columns(values=values, timestamps_ms=[1] * 30_000, codec=Codec.ZSTD), 0
    )
    tracemalloc.start()
    try:
        piece = plain_records([raw], 20_000, 1 << 20, 10_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert piece.part.records[0].offset == 20_000
    assert len(b"".join(each.SerializeToString() for each in piece.part.records)) <= 1 << 20
    assert peak < 40 << 20, "the payload, and a window of records"


def test_one_record_larger_than_the_room_comes_alone() -> None:
    raw = stored(record.encode_columns(values=[bytes(5000)] * 3, timestamps_ms=[1] * 3), 0)
    piece = plain_records([raw], 1, 100, 10)
    assert [each.offset for each in piece.part.records] == [1]
    assert piece.next_offset == 2


def test_tags_count_as_what_is_sent() -> None:
    rows = [("x" * 10_000,)] * 1000
    raw = stored(record.encode_columns(values=[b""] * 1000, timestamps_ms=[1] * 1000, tags=rows), 0)
    assert len(raw) < 50_000
    piece = plain_records([raw], 0, 1 << 20, 10_000)
    assert sum(each.ByteSize() for each in piece.part.records) < 1 << 20


def poisoned() -> list[bytes]:
    """Offsets 0 and 1, three that nobody can decode, 5 and 6."""
    return [
        stored(record.encode_columns(values=[b"0", b"1"], timestamps_ms=[1, 1]), 0),
        stored(garbage_in_frame(Codec.ZSTD), 2),
        stored(record.encode_columns(values=[b"5", b"6"], timestamps_ms=[1, 1]), 5),
    ]


def offsets(piece: PlainRecords) -> list[int]:
    return [each.offset for each in piece.part.records]


def test_what_is_before_a_corrupt_batch_comes_then_an_error_that_names_the_next_offset() -> None:
    before = plain_records([*poisoned()], 0, MANY, MANY)
    assert (offsets(before), before.next_offset, before.error) == ([0, 1], 2, None)
    at = plain_records([*poisoned()[1:]], 2, MANY, MANY)
    assert (offsets(at), at.next_offset) == ([], 5)
    assert at.error is not None
    assert at.error.metadata == {"offset": "2", "next_offset": "5"}
    inside = plain_records([*poisoned()[1:]], 3, MANY, MANY)
    assert (offsets(inside), inside.next_offset) == ([], 5)
    behind = plain_records([*poisoned()[2:]], 5, MANY, MANY)
    assert (offsets(behind), behind.next_offset) == ([5, 6], 7)
