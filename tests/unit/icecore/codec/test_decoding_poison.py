"""R70: what the leader's check lets pass, every reader can decode; and nothing else passes."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec import arrow, batch, record
from icecore.codec.batch import BatchLimits, Codec
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    IcecoreError,
    RecordTooLargeError,
)
from tests.support.poison import POISONS, compress, good, no_content_size, payload_of, with_payload

COMPRESSED = [Codec.LZ4, Codec.ZSTD]
LIMITS = BatchLimits()


def leader_takes(raw: bytes, limits: BatchLimits = LIMITS) -> None:
    """Check a batch as a leader does."""
    header = batch.check_produced(raw, 0, limits)
    record.check_columns(raw, 0, header, limits=limits)


def reader_reads(raw: bytes) -> list[record.Record]:
    """Read a batch as consumers do, with columns, records and Arrow."""
    columns = record.decode(raw, 0, batch.parse_header(raw))
    rows = arrow.record_batch(columns)
    rows.validate(full=True)
    records = columns.to_records()
    assert len(records) == rows.num_rows
    return records


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("make", POISONS)
def test_poison_is_refused(make: Callable[[Codec], bytes], codec: Codec) -> None:
    raw = make(codec)
    batch.check_produced(raw, 0, LIMITS)  # all that can be seen from outside is right
    with pytest.raises(CorruptBatchError):
        record.check_columns(raw, 0, batch.parse_header(raw))
    with pytest.raises(CorruptBatchError):
        reader_reads(raw)


@pytest.mark.parametrize("make", POISONS)
def test_refusing_it_takes_no_memory(make: Callable[[Codec], bytes]) -> None:
    raw = make(Codec.ZSTD)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            leader_takes(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 18


def test_a_frame_without_its_size_is_read() -> None:
    raw = no_content_size()
    leader_takes(raw)
    assert [each.value for each in reader_reads(raw)] == [b"v" * 100] * 3


def test_readers_take_what_any_topic_may_allow() -> None:
    caps = batch.READER_LIMITS
    raw = record.encode_columns(
        values=[bytes((1 << 20) - 64)] * 60, timestamps_ms=[1] * 60, codec=Codec.ZSTD
    )
    with pytest.raises(BatchTooLargeError):
        leader_takes(raw)
    leader_takes(raw, caps)
    assert len(reader_reads(raw)) == 60
    larger = with_payload(raw, payload_of(raw), caps.uncompressed_bytes_max + 1)
    with pytest.raises(BatchTooLargeError):
        record.decode(larger, 0, batch.parse_header(larger))


def tagged(tag: str, per_record: int, records: int = 100) -> bytes:
    """Records with one tag, again and again."""
    return record.encode_columns(
        values=[b""] * records, timestamps_ms=[1] * records, tags=[[tag] * per_record] * records
    )


def test_tags_count_as_what_they_are_when_written_out() -> None:
    limits = BatchLimits(record_bytes_max=1000, uncompressed_bytes_max=10_000)
    leader_takes(tagged("x" * 50, 2), limits)
    with pytest.raises(RecordTooLargeError, match="tags of 1500 bytes"):
        leader_takes(tagged("x" * 50, 30, records=2), limits)
    with pytest.raises(BatchTooLargeError, match="tags of 12000 bytes"):
        leader_takes(tagged("x" * 60, 2), limits)


def test_a_tag_bomb_is_refused_by_readers_too() -> None:
    raw = tagged("x" * (1 << 20), 1)  # 100 MiB out of one
    with pytest.raises(BatchTooLargeError):
        reader_reads(raw)


@given(
    st.sampled_from(Codec),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    st.booleans(),
)
def test_whatever_the_leader_takes_is_read(
    codec: Codec, recompress: bool, changes: list[tuple[int, int]], cut: bool
) -> None:
    """Bytes of the body are changed, before or after compression, and the CRCs made right."""
    columns: dict[str, Any] = {
        "keys": [b"a", None, b"c"],
        "tags": [("x", "ü"), (), ("x",)],
        "headers": [(("name", b"1"),), (), (("other", None),)],
    }
    raw = good(codec, **columns)
    if codec is not Codec.NONE and recompress:
        payload = changed(payload_of(good(Codec.NONE, **columns)), changes)
        raw = with_payload(raw, compress(payload, codec))
    else:
        body = changed(raw[batch.HEADER_LENGTH :], changes)
        mutated = bytearray(raw[: batch.HEADER_LENGTH] + body)
        batch.refresh_crcs(mutated)
        raw = bytes(mutated)
    if cut and codec is not Codec.NONE:
        raw = with_payload(raw, payload_of(raw)[:-1])
    try:
        leader_takes(raw)
    except IcecoreError as error:
        assert isinstance(error, CorruptBatchError | RecordTooLargeError | BatchTooLargeError)
    else:
        assert len(reader_reads(raw)) == 3


@given(st.binary(max_size=400), st.sampled_from(Codec), st.integers(0, 500))
def test_any_payload_is_read_or_refused(payload: bytes, codec: Codec, declared: int) -> None:
    raw = good(codec)
    length = len(payload) if codec is Codec.NONE else declared
    raw = with_payload(raw, payload, length)
    try:
        leader_takes(raw)
    except IcecoreError as error:
        assert isinstance(error, CorruptBatchError)
    else:
        assert len(reader_reads(raw)) == 3


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Some bytes replaced."""
    found = bytearray(data)
    for position, value in changes:
        found[position % len(found)] = value
    return bytes(found)
