"""Batch header and framing: the layout byte by byte, and that nothing wrong gets past."""

import struct
from dataclasses import replace

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import batch
from icecore.codec.batch import BatchLimits, Codec, LeaderFlag, ProducerFlag
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRequestError,
    RecordTooLargeError,
)
from tests.support import rotation

LIMITS = BatchLimits()
CLUSTER, TOPIC = bytes(range(16)), bytes(range(16, 32))

# name: (position, struct code), written down apart from the code under test.
FIELDS = {
    "magic": (0, "I"),
    "version": (4, "H"),
    "header_length": (6, "H"),
    "batch_length": (8, "I"),
    "header_crc32c": (12, "I"),
    "segment_id": (16, "Q"),
    "epoch": (24, "Q"),
    "base_offset": (32, "q"),
    "end_offset": (40, "q"),
    "append_timestamp_ms": (48, "q"),
    "high_watermark": (56, "q"),
    "delete_horizon_ms": (64, "q"),
    "prev_header_crc32c": (72, "I"),
    "leader_flags": (76, "I"),
    "producer_crc32c": (80, "I"),
    "producer_flags": (84, "I"),
    "codec": (88, "I"),
    "record_count": (92, "I"),
    "index_length": (96, "I"),
    "uncompressed_length": (100, "I"),
    "min_timestamp_ms": (104, "q"),
    "max_timestamp_ms": (112, "q"),
    "producer_id": (120, "Q"),
    "base_sequence": (128, "Q"),
    "producer_epoch": (136, "I"),
    "schema_id": (140, "I"),
    "payload_length": (144, "I"),
    "reserved": (148, "I"),
}
CONSTANTS = {"magic", "version", "header_length", "reserved"}
BODY = [struct.pack("<3q", 10, 20, 30), bytes(range(40))]


def produced(count: int = 3, flags: int = 15, **changed: int) -> bytes:
    """A small batch; ``changed`` overwrites header fields and renews both CRCs."""
    raw = batch.assemble((flags, 0, count, 24, 40, 10, 30, 77, 5, 2, 9, 40), BODY)
    return with_fields(raw, **changed)


def with_fields(raw: bytes, **changed: int) -> bytes:
    copy = bytearray(raw)
    for name, value in changed.items():
        position, code = FIELDS[name]
        width = struct.calcsize(code)
        copy[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    batch.refresh_crcs(copy)
    return bytes(copy)


def stamped(raw: bytes, base_offset: int = 100, prev: int = 3) -> bytes:
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=7,
        epoch=4,
        base_offset=base_offset,
        append_timestamp_ms=5_000,
        high_watermark=90,
        prev_header_crc32c=prev,
    )
    return header + raw[batch.HEADER_LENGTH :]


def test_every_field_is_where_the_format_says() -> None:
    raw = stamped(produced())
    header = batch.parse_header(raw)
    for name, (position, code) in FIELDS.items():
        (value,) = struct.unpack_from("<" + code, raw, position)
        if name not in CONSTANTS:
            assert getattr(header, name) == value, name
    assert raw[:8] == b"iceb\x01\x00\x98\x00" and raw[148:152] == bytes(4)
    assert (header.base_offset, header.end_offset, header.batch_length) == (100, 103, 216)
    assert (header.segment_id, header.epoch, header.high_watermark) == (7, 4, 90)
    assert (header.producer_id, header.base_sequence, header.producer_epoch) == (77, 5, 2)
    assert google_crc32c.value(raw[84:]) == header.producer_crc32c
    assert google_crc32c.value(raw[:12] + bytes(4) + raw[16:152]) == header.header_crc32c


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_at_any_position(kind: type) -> None:
    raw = produced()
    buffer = kind(b"xyz" + raw)
    header = batch.check_produced(buffer, 3, LIMITS)
    assert header == batch.check_produced(raw, 0, LIMITS)
    assert batch.peek(kind(b"xyz" + stamped(raw)), 3) == (len(raw), 100, 103)
    new, _ = batch.stamp(
        buffer,
        3,
        header,
        segment_id=7,
        epoch=4,
        base_offset=100,
        append_timestamp_ms=5_000,
        high_watermark=90,
        prev_header_crc32c=3,
    )
    assert new == stamped(raw)[: batch.HEADER_LENGTH]


def test_stamp_keeps_the_producer_part_and_returns_the_crc() -> None:
    raw = produced()
    new = stamped(raw)
    assert new[80:] == raw[80:]
    header = batch.parse_header(new)
    batch.verify_producer_crc(new, 0, header)
    assert header.prev_header_crc32c == 3
    for base in (-1, (1 << 63) - 3):
        with pytest.raises(InvalidRequestError):
            stamped(raw, base)
    assert batch.parse_header(stamped(raw, (1 << 63) - 4)).end_offset == (1 << 63) - 1


def test_compacted_batches_may_have_gaps() -> None:
    raw = produced()
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=7,
        epoch=4,
        base_offset=100,
        append_timestamp_ms=0,
        high_watermark=0,
        prev_header_crc32c=0,
        compacted=batch.Compacted(end_offset=200, delete_horizon_ms=50),
    )
    parsed = batch.parse_header(header)
    assert (parsed.end_offset, parsed.delete_horizon_ms) == (200, 50)
    gap = with_fields(stamped(raw), end_offset=200)
    with pytest.raises(CorruptBatchError):
        batch.parse_header(gap)


def test_iter_batches_and_every_truncation() -> None:
    first, second = stamped(produced()), stamped(produced(), 103)
    both = memoryview(first + second)
    found = list(batch.iter_batches(both))
    assert [(at, header.base_offset) for at, header in found] == [(0, 100), (len(first), 103)]
    assert list(batch.iter_batches(b"")) == []
    for length in range(1, len(both)):
        if length != len(first):
            with pytest.raises(CorruptBatchError):
                list(batch.iter_batches(both[:length]))
    for length in range(len(first)):
        with pytest.raises(CorruptBatchError):
            batch.check_produced(produced()[:length], 0, LIMITS)


def test_every_flipped_bit_is_detected() -> None:
    for raw in (produced(), stamped(produced())):
        for index in range(len(raw) * 8):
            damaged = bytearray(raw)
            damaged[index // 8] ^= 1 << index % 8
            with pytest.raises(CorruptBatchError):
                batch.verify_producer_crc(damaged, 0, batch.parse_header(damaged))


@pytest.mark.parametrize("value", [-1, 0, (1 << 31) - 1, (1 << 63) - 1])
@pytest.mark.parametrize(
    "name",
    [
        *("magic", "version", "header_length", "batch_length", "record_count", "index_length"),
        *("uncompressed_length", "min_timestamp_ms", "max_timestamp_ms", "payload_length"),
    ],
)
def test_wrong_numbers_under_a_right_crc(name: str, value: int) -> None:
    raw = produced(**{name: value})
    low, high = struct.unpack_from("<2q", raw, 104)
    if name.endswith("timestamp_ms") and low <= high <= batch.MAX_TIMESTAMP_MS:
        batch.check_produced(raw, 0, LIMITS)  # plausible; check_index compares with the column
        return
    with pytest.raises(InvalidRequestError):
        batch.check_produced(raw, 0, LIMITS)


@pytest.mark.parametrize("value", [-1, 0, (1 << 31) - 1, (1 << 63) - 1])
@pytest.mark.parametrize("name", ["base_offset", "end_offset"])
def test_wrong_offsets_under_a_right_crc(name: str, value: int) -> None:
    with pytest.raises(CorruptBatchError):
        batch.parse_header(with_fields(stamped(produced()), **{name: value}))


@pytest.mark.parametrize(
    "name",
    [
        *("segment_id", "epoch", "append_timestamp_ms", "high_watermark"),
        *("delete_horizon_ms", "prev_header_crc32c", "leader_flags"),
    ],
)
def test_a_produced_batch_has_no_leader_part(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        batch.check_produced(produced(**{name: 1}), 0, LIMITS)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (produced(codec=3), CorruptBatchError),
        (produced(codec=1 << 8), CorruptBatchError),
        (produced(reserved=1), CorruptBatchError),
        (produced(leader_flags=8), CorruptBatchError),
        (produced(leader_flags=LeaderFlag.ROW_GROUP), InvalidRequestError),
        (produced(count=0), InvalidRequestError),
        (produced(flags=32), InvalidRequestError),
        (produced(flags=15 | ProducerFlag.TRANSACTIONAL), InvalidRequestError),
        (produced(base_sequence=(1 << 64) - 3), InvalidRequestError),
        (produced(max_timestamp_ms=batch.MAX_TIMESTAMP_MS + 1), InvalidRequestError),
        (produced(min_timestamp_ms=31), InvalidRequestError),
    ],
)
def test_what_a_leader_refuses(raw: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        batch.check_produced(raw, 0, LIMITS)


def test_caps() -> None:
    raw = produced()
    batch.check_produced(raw, 0, BatchLimits(10, len(raw), 40, 3))
    for limits in (
        replace(LIMITS, batch_bytes_max=len(raw) - 1),
        replace(LIMITS, uncompressed_bytes_max=39),
        replace(LIMITS, records_max=2),
    ):
        with pytest.raises(BatchTooLargeError):
            batch.check_produced(raw, 0, limits)
    inflated = produced(codec=Codec.ZSTD, uncompressed_length=3 * (1 << 20) + (1 << 17))
    with pytest.raises(RecordTooLargeError):
        batch.check_produced(inflated, 0, LIMITS)
    assert batch.check_produced(produced(base_sequence=(1 << 64) - 4), 0, LIMITS)


def test_set_producer_changes_only_the_ids() -> None:
    raw = produced()
    new = batch.set_producer(raw, 1 << 63, 6, 1 << 40)
    header = batch.check_produced(new, 0, LIMITS)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        1 << 63,
        6,
        1 << 40,
    )
    assert batch.set_producer(new, 77, 2, 5) == raw
    with pytest.raises(InvalidRequestError):
        batch.set_producer(raw, -1, 0, 0)
    with pytest.raises(CorruptBatchError):
        batch.set_producer(raw + raw, 1, 0, 0)


def test_assemble_refuses_numbers_that_do_not_fit() -> None:
    with pytest.raises(InvalidRequestError):
        batch.assemble((15, 0, 3, 24, 40, 10, 30, -1, 5, 2, 9, 40), BODY)


@given(st.binary(max_size=400))
@settings(max_examples=rotation.examples(200))
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, b"iceb\x01\x00\x98\x00" + noise):
        with pytest.raises(CorruptBatchError):
            batch.check_produced(data, 0, LIMITS)
