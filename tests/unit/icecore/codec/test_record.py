"""Columns of a batch: golden bytes, round trips, and that hostile bytes neither pass nor crash."""

import struct
import tracemalloc
from array import array
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import arrow, batch, record
from icecore.codec import columns as columns_module
from icecore.codec.batch import BatchLimits, Codec, LeaderFlag
from icecore.codec.hashes import header_hashes
from icecore.codec.record import Record
from icecore.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRequestError,
    RecordTooLargeError,
)
from tests.support import rotation

LIMITS = BatchLimits()
GOLDEN = Path(__file__).parent / "golden"

VALUES = [b"snow", None, b""]
TIMES = [1_700_000_000_000, 1_700_000_000_002, 1_700_000_000_001]
KEYS = [b"k1", None, b""]
TAGS = [("AA", "né"), (), ("AA",)]
HEADERS = [(("h", b"1"), ("ü", None)), (), (("h", b""),)]
HASHES = [[11, 12], [], [13]]
FULL: dict[str, Any] = {
    "values": VALUES,
    "timestamps_ms": TIMES,
    "keys": KEYS,
    "tags": TAGS,
    "headers": HEADERS,
    "header_hashes": HASHES,
}
PLAIN: dict[str, Any] = {"values": [b"snow"], "timestamps_ms": [TIMES[0]]}

# One small batch per combination of features; golden/<name>.hex holds its bytes.
CASES: dict[str, dict[str, Any]] = {
    "value_only": PLAIN,
    "tombstone": {"values": VALUES, "timestamps_ms": TIMES},
    "keys": {**PLAIN, "keys": [b"k1"]},
    "null_key": {"values": VALUES, "timestamps_ms": TIMES, "keys": KEYS},
    "tags": {"values": VALUES, "timestamps_ms": TIMES, "tags": TAGS},
    "headers": {"values": VALUES, "timestamps_ms": TIMES, "headers": HEADERS},
    "all_columns": FULL,
    "idempotent": {**PLAIN, "producer_id": 77, "producer_epoch": 2, "base_sequence": 5},
    "compacted": {**FULL, "offset_deltas": [0, 4, 9]},
    "lz4": {**FULL, "codec": Codec.LZ4},
    "zstd": {**FULL, "codec": Codec.ZSTD, "schema_id": 9},
}


def read_back(raw: bytes, limits: BatchLimits = LIMITS) -> record.BatchColumns:
    """All that a leader and then a reader do with a produced batch."""
    header = batch.parse_header(raw)
    if not header.leader_flags & LeaderFlag.COMPACTED:
        batch.check_produced(raw, 0, limits)
    batch.verify_producer_crc(raw, 0, header)
    record.check_columns(raw, 0, header, limits=limits)
    columns = record.decode(raw, 0, header, limits)
    arrow.record_batch(columns).validate(full=True)
    columns.to_records()
    return columns


def assert_holds(columns: record.BatchColumns, given: dict[str, Any]) -> None:
    records, count = columns.to_records(), len(given["values"])
    assert [r.value for r in records] == list(given["values"])
    assert [r.timestamp_ms for r in records] == list(given["timestamps_ms"])
    assert [r.key for r in records] == list(given.get("keys") or [None] * count)
    assert [r.tags for r in records] == list(given.get("tags") or [()] * count)
    assert [r.headers for r in records] == list(given.get("headers") or [()] * count)
    rows = arrow.record_batch(columns).to_pylist()
    assert [row["value"] for row in rows] == [r.value for r in records]
    assert [row["key"] for row in rows] == [r.key for r in records]
    assert [tuple(row["tags"]) for row in rows] == [r.tags for r in records]
    pairs = [tuple((h["key"], h["value"]) for h in row["headers"]) for row in rows]
    assert pairs == [r.headers for r in records]
    hashes = columns.index.header_hashes
    if any(given.get("header_hashes") or ()):
        assert hashes is not None
        assert [list(row) for row in hashes.split(hashes.items.tolist())] == given["header_hashes"]


def golden(name: str) -> bytes:
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes(name: str) -> None:
    raw = golden(name)
    assert_holds(read_back(raw), CASES[name])
    if "codec" not in CASES[name]:  # compressors may find other bytes for the same payload
        assert record.encode_columns(**CASES[name]) == raw


def test_golden_stamped_batch() -> None:
    raw = golden("stamped")
    header = batch.parse_header(raw)
    batch.verify_producer_crc(raw, 0, header)
    assert (header.segment_id, header.epoch, header.base_offset, header.end_offset) == (7, 4, 9, 12)
    records = record.decode(raw, 0, header).to_records(10, topic="t", partition=2)
    expected = Record(b"", b"", TIMES[2], ("AA",), (("h", b""),), 11, 5_000, 2, "t")
    assert (len(records), records[1]) == (2, expected)


# --- round trips ----------------------------------------------------------------------------------


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.one_of(st.integers(1, 20), st.integers(60, 70)))

    def rows(item: st.SearchStrategy[Any]) -> Any:
        return st.lists(item, min_size=count, max_size=count)

    blob, text = st.none() | st.binary(max_size=12), st.text(max_size=3)
    times = st.integers(batch.MIN_TIMESTAMP_MS, batch.MAX_TIMESTAMP_MS)
    header = st.lists(st.tuples(text, blob), max_size=2).map(tuple)
    given: dict[str, Any] = {"values": draw(rows(blob)), "timestamps_ms": draw(rows(times))}
    given["keys"] = draw(st.none() | rows(blob))
    given["tags"] = draw(st.none() | rows(st.lists(text, max_size=3).map(tuple)))
    given["headers"] = draw(st.none() | rows(header))
    if any(given["headers"] or ()):
        u64 = st.integers(0, (1 << 64) - 1)
        given["header_hashes"] = draw(st.none() | rows(st.lists(u64, max_size=2)))
    given["codec"] = draw(st.sampled_from(Codec))
    return given


@given(columns())
@settings(max_examples=rotation.examples(150))
def test_round_trip(given: dict[str, Any]) -> None:
    raw = record.encode_columns(**given)
    assert_holds(read_back(raw), given)
    given.pop("header_hashes", None)
    table = arrow.record_batch(read_back(raw))
    again = {"codec": given["codec"]}
    assert arrow.encode(table, **again) == record.encode_columns(**given)
    twice = pa.Table.from_batches([table, table, table]).combine_chunks().to_batches()[0]
    part = twice.slice(len(table), len(table))
    assert arrow.encode(part, **again) == record.encode_columns(**given)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", Codec)
def test_decode_any_buffer_at_any_position(buffer: type, codec: Codec) -> None:
    raw = record.encode_columns(**FULL, codec=codec)
    header = batch.parse_header(raw)
    at_three = buffer(b"xyz" + raw + b"tail")
    assert_holds(record.decode(at_three, 3, header), FULL)
    record.check_columns(at_three, 3, header)


def test_without_pyarrow_the_records_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {name: column * 50 for name, column in FULL.items()}
    decoded = read_back(record.encode_columns(**many))
    fast = decoded.to_records()
    monkeypatch.setattr(columns_module, "has_pyarrow", lambda: False)
    assert decoded.to_records() == fast


def test_timestamp_containers_and_given_hashes() -> None:
    plain = record.encode_columns(**FULL)
    hashes = np.array([0 if key is None else record.key_hash(key) for key in KEYS], "<u8")
    for times in (array("q", TIMES), np.array(TIMES)):
        given = {**FULL, "timestamps_ms": times, "key_hashes": hashes}
        assert record.encode_columns(**given) == plain


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65])
def test_few_records_are_encoded_as_many_are(count: int) -> None:
    """Below 64 it goes without numpy: the same bytes."""
    times = [(-1) ** i * i * 10**9 for i in range(count)]
    values = [None if i % 5 == 4 else bytes(i) for i in range(count)]
    plain = record.encode_columns(values=values, timestamps_ms=array("q", times))
    assert plain == record.encode_columns(values=values, timestamps_ms=np.array(times))
    assert_holds(read_back(plain), {"values": values, "timestamps_ms": times})
    header = batch.parse_header(plain)
    assert (header.min_timestamp_ms, header.max_timestamp_ms) == (min(times), max(times))


def test_columns_that_no_record_has_cost_nothing() -> None:
    nothing = {"keys": [None], "tags": [()], "headers": [()], "header_hashes": [[]]}
    assert record.encode_columns(**PLAIN, **nothing) == record.encode_columns(**PLAIN)
    table = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"snow"], pa.binary()), "timestamp_ms": TIMES[:1]}
    )
    assert arrow.encode(table) == record.encode_columns(**PLAIN)


def test_encode_refuses() -> None:
    for wrong in (
        {"values": [], "timestamps_ms": []},
        {**PLAIN, "keys": []},
        {**PLAIN, "timestamps_ms": [1, 2]},
        {**PLAIN, "timestamps_ms": [1 << 63]},
        {**PLAIN, "producer_id": -1},
    ):
        with pytest.raises(InvalidRequestError):
            record.encode_columns(**wrong)
    with pytest.raises(TypeError):
        record.encode_columns(values=["text"], timestamps_ms=[1])  # type: ignore[list-item]


def test_encode_arrow_casts_and_refuses() -> None:
    times = pa.array([TIMES[0] * 1000], pa.timestamp("us"))
    table = pa.RecordBatch.from_pydict({"value": ["snow"], "timestamp": times, "other": [1]})
    assert arrow.encode(table) == record.encode_columns(**PLAIN)
    now = read_back(arrow.encode(table.select(["value"])))
    assert now.to_records()[0].timestamp_ms > TIMES[0]
    strings = pa.list_(pa.string())
    for wrong in (
        {"key": [b"k"]},
        {"value": [[1]]},
        {"value": pa.array([], pa.binary())},
        {"value": [b"v"], "timestamp_ms": pa.array([None], pa.int64())},
        {"value": [b"v"], "tags": pa.array([[None]], strings)},
        {"value": [b"v"], "headers": [[{"key": None, "value": b"v"}]]},
    ):
        with pytest.raises(InvalidRequestError):
            arrow.encode(pa.RecordBatch.from_pydict(wrong))


def test_key_hash_is_xxh64_of_seed_42() -> None:
    assert record.key_hash(b"") == 0x98B1582B0977E704
    assert record.partition_for_key(b"N12345", 16) == (record.key_hash(b"N12345") >> 32) % 16


def test_compacted_offsets() -> None:
    raw = record.encode_columns(**FULL, offset_deltas=[0, 4, 9])
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=7,
        epoch=4,
        base_offset=100,
        append_timestamp_ms=5,
        high_watermark=0,
        prev_header_crc32c=0,
        compacted=batch.Compacted(end_offset=110),
    )
    full = header + raw[batch.HEADER_LENGTH :]
    decoded = record.decode(full, 0, batch.parse_header(full))
    assert decoded.offsets.tolist() == [100, 104, 109]
    assert [r.offset for r in decoded.to_records(101)] == [104, 109]
    for deltas in ([0, 4, 4], [-1, 0, 1]):
        wrong = record.encode_columns(**FULL, offset_deltas=deltas)
        with pytest.raises(CorruptBatchError):
            read_back(wrong)
    short = bytearray(full)
    struct.pack_into("<q", short, 40, 109)
    batch.refresh_crcs(short)
    with pytest.raises(CorruptBatchError):
        record.decode(short, 0, batch.parse_header(short))


# --- hostile bytes --------------------------------------------------------------------------------


def layout() -> Iterator[tuple[str, int, int, int]]:
    """(name, position, width, items) of FULL's columns, written down apart from the codec."""
    sizes = [
        *(("timestamps", 8, 3), ("key bits", 1, 1), ("key hashes", 8, 3)),
        *(("tag counts", 4, 2), ("tag offsets", 4, 3), ("tag text", 1, 5)),
        *(("tag lists", 4, 4), ("tag ids", 4, 3), ("hash lists", 4, 4), ("hashes", 8, 3)),
        *(("payload key bits", 1, 1), ("key offsets", 4, 4), ("key data", 1, 2)),
        *(("value bits", 1, 1), ("value offsets", 4, 4), ("value data", 1, 4)),
        *(("header lists", 4, 4), ("name offsets", 4, 4), ("name data", 1, 4)),
        *(("header bits", 1, 1), ("header offsets", 4, 4), ("header data", 1, 1)),
    ]
    ends = accumulate((batch.pad8(width * items) for _, width, items in sizes), initial=152)
    for (name, width, items), position in zip(sizes, ends, strict=False):
        yield name, position, width, items


LAYOUT = {name: rest for name, *rest in layout()}
FREE_TEXT = {"tag text", "key data", "value data", "name data", "header data", "hashes"}


def test_layout_of_the_full_sample() -> None:
    position, width, items = LAYOUT["header data"]
    raw = record.encode_columns(**FULL)
    assert position + batch.pad8(width * items) == len(raw)
    assert raw[LAYOUT["value data"][0] :][:4] == b"snow"
    assert raw[LAYOUT["tag text"][0] :][:5] == "AAné".encode()


def with_patch(raw: bytes, position: int, value: int, width: int) -> bytes:
    copy = bytearray(raw)
    copy[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    batch.refresh_crcs(copy)
    return bytes(copy)


@pytest.mark.parametrize("name", sorted(LAYOUT.keys() - FREE_TEXT))
@pytest.mark.parametrize("value", [-1, 0, (1 << 31) - 1, (1 << 63) - 1])
def test_wrong_column_numbers_under_a_right_crc(name: str, value: int) -> None:
    raw = record.encode_columns(**FULL)
    position, width, items = LAYOUT[name]
    for item in range(items):
        wrong = with_patch(raw, position + item * width, value, width)
        if wrong == raw:
            continue
        if value == 0 and (name == "value bits" or name == "header bits" or width == 4):
            # Shorter strings and other tags or nulls may be what the producer meant.
            refused_or_sound(wrong)
        else:
            with pytest.raises(InvalidRequestError):
                read_back(wrong)


def refused_or_sound(raw: bytes) -> None:
    """Reading raises an error of ours, or what is read is sound for Arrow."""
    try:
        read_back(raw)
    except InvalidRequestError:
        return


@pytest.mark.parametrize("name", ["all_columns", "compacted", "lz4", "zstd"])
def test_no_patch_of_any_byte_crashes_or_allocates(name: str) -> None:
    raw = golden(name)
    read_back(raw)  # what libraries import on first use is not the batch's doing
    tracemalloc.start()
    try:
        for position in range(batch.HEADER_LENGTH, len(raw), 2):
            for value in (-1, 0, (1 << 31) - 1):
                refused_or_sound(with_patch(raw, position, value, 4)[: len(raw)])
        for position in range(16, batch.HEADER_LENGTH, 4):
            for value in (-1, 0, (1 << 31) - 1, (1 << 63) - 1):
                refused_or_sound(with_patch(raw, position, value, 4 if value < 1 << 31 else 8))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("name", ["all_columns", "lz4", "zstd", "stamped"])
def test_every_flipped_byte_and_every_truncation_is_detected(name: str) -> None:
    raw = golden(name)
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        with pytest.raises(CorruptBatchError):
            batch.verify_producer_crc(damaged, 0, batch.parse_header(damaged))
    header = batch.parse_header(raw)
    for length in range(1, len(raw)):
        with pytest.raises(CorruptBatchError):
            list(batch.iter_batches(raw[:length]))
        with pytest.raises(CorruptBatchError):
            record.decode(raw[:length], 0, header)


@pytest.mark.parametrize(
    ("column", "offset", "byte"),
    [
        *(("tag text", 3, 0x28), ("tag text", 5, 1), ("key bits", 0, 0b1101)),
        *(("name data", 1, 0x28), ("value bits", 0, 0b1111), ("value data", 4, 1)),
    ],
)
def test_text_validity_and_padding(column: str, offset: int, byte: int) -> None:
    raw = record.encode_columns(**FULL)
    with pytest.raises(CorruptBatchError):
        read_back(with_patch(raw, LAYOUT[column][0] + offset, byte, 1))


def test_text_cut_inside_a_character() -> None:
    raw = record.encode_columns(**FULL)
    # names: "h", "ü", "h": ends 1, 3, 4; the whole stays UTF-8, its second string does not
    with pytest.raises(CorruptBatchError, match="inside a character"):
        read_back(with_patch(raw, LAYOUT["name offsets"][0] + 8, 2, 4))


def test_key_hashes_must_belong_to_their_keys() -> None:
    for codec in Codec:
        wrong = record.encode_columns(**FULL, key_hashes=[1, 0, 2], codec=codec)
        header = batch.check_produced(wrong, 0, LIMITS)
        with pytest.raises(CorruptBatchError):
            record.check_columns(wrong, 0, header)


def test_header_hashes_need_headers_and_flags_are_known() -> None:
    raw = record.encode_columns(**PLAIN)
    for flags in (0b0111, 0b101111):
        wrong = with_patch(raw, 84, flags, 4)
        with pytest.raises(CorruptBatchError):
            record.decode(wrong, 0, batch.parse_header(wrong))


def test_record_cap() -> None:
    limits = BatchLimits(record_bytes_max=10)
    fits = {"values": [b"12345", b"1"], "timestamps_ms": [1, 2], "keys": [b"12345", b"1"]}
    read_back(record.encode_columns(**fits), limits)
    for more in (
        {"keys": [b"123456", b""]},
        {"headers": [(), (("12345", b"1234"),)]},
    ):
        raw = record.encode_columns(**{**fits, **more})
        with pytest.raises(RecordTooLargeError):
            read_back(raw, limits)


def bomb(codec: Codec, declared: int, real: int, *, announce: bool) -> bytes:
    """A batch whose payload inflates to ``real`` zeros and says ``declared``."""
    chunk = bytes(1 << 20)
    packer = (
        zstandard.ZstdCompressor().compressobj(size=real if announce else -1)
        if codec is Codec.ZSTD
        else lz4.frame.LZ4FrameCompressor()
    )
    parts = [packer.begin(real if announce else 0)] if codec is Codec.LZ4 else []
    parts += [packer.compress(chunk) for _ in range(real >> 20)]
    payload = b"".join([*parts, packer.flush()])
    body = [bytes(8), payload, bytes(-len(payload) & 7)]
    return batch.assemble((15, codec, 1, 8, declared, 0, 0, 0, 0, 0, 0, len(payload)), body)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("announce", [True, False])
def test_decompression_bombs(codec: Codec, announce: bool) -> None:
    real = 200 << 20
    for declared in (0, 1, 100, 1 << 20, real):
        raw = bomb(codec, declared, real, announce=announce)
        header = batch.parse_header(raw)
        tracemalloc.start()
        try:
            with pytest.raises((CorruptBatchError, BatchTooLargeError)):
                record.decode(raw, 0, header, LIMITS)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        inflated = declared if declared < real else 0
        assert peak < inflated + 4 * len(raw) + (1 << 20), (declared, peak)
    with pytest.raises(BatchTooLargeError):
        batch.check_produced(raw, 0, LIMITS)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_more_or_less_than_one_frame_is_refused(codec: Codec) -> None:
    raw = record.encode_columns(**FULL, codec=codec)
    header = batch.parse_header(raw)
    start = batch.HEADER_LENGTH + header.index_length
    frame = raw[start : start + header.payload_length]
    for payload in (frame + frame, frame + b"\0", frame[:-1], frame[:5], b""):
        body = [raw[152:start], payload, bytes(-len(payload) & 7)]
        fields = (
            *(header.producer_flags, codec, 3, header.index_length, header.uncompressed_length),
            *(header.min_timestamp_ms, header.max_timestamp_ms, 0, 0, 0, 0, len(payload)),
        )
        with pytest.raises(CorruptBatchError):
            read_back(batch.assemble(fields, body))


@pytest.mark.parametrize("codec", Codec)
def test_hashes_of_headers_are_the_same_on_every_way(codec: Codec) -> None:
    """As columns, from Arrow, and put into a batch that was encoded without them."""
    names = frozenset({"h", "nobody"})
    ids = {"codec": codec, "producer_id": 3, "producer_epoch": 1, "base_sequence": 9}
    plain = record.encode_columns(**{**FULL, "header_hashes": None}, **ids)
    hashes = header_hashes(FULL["headers"], names)
    assert any(hashes)
    wanted = record.encode_columns(**{**FULL, "header_hashes": hashes}, **ids)
    assert arrow.encode(arrow.record_batch(read_back(plain)), **ids, indexed_headers=names) == (
        wanted
    )
    assert record.with_header_hashes(plain, names) == wanted
    assert record.with_header_hashes(wanted, ()) == plain
    header = batch.parse_header(wanted)
    record.check_columns(wanted, 0, header, indexed_headers=names)


def test_a_batch_without_headers_has_no_hashes_of_them() -> None:
    raw = record.encode_columns(**PLAIN)
    assert record.with_header_hashes(raw, ["h"]) == raw
