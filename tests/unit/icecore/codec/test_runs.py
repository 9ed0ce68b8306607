"""Joined batches are the same records as the batches one by one."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec import arrow, batch, record
from icecore.codec.batch import BatchHeader, Codec, LeaderFlag
from icecore.codec.columns import BatchColumns
from icecore.codec.decoding import decode
from icecore.codec.runs import join, may_follow

VALUES = st.sampled_from((None, b"", b"value", b"\x00" * 9))
ROWS = st.lists(st.tuples(VALUES, st.sampled_from((None, b"", b"k", b"key"))), min_size=1)
CODECS = st.sampled_from(Codec)


def stamped(
    rows: list[tuple[bytes | None, bytes | None]],
    base_offset: int = 0,
    *,
    codec: Codec = Codec.NONE,
    tags: tuple[str, ...] = (),
    headers: tuple[tuple[str, bytes], ...] = (),
    schema_id: int = 0,
) -> bytes:
    raw = record.encode_columns(
        values=[value for value, _ in rows],
        keys=[key for _, key in rows],
        timestamps_ms=[base_offset + at for at in range(len(rows))],
        tags=[tags] * len(rows),
        headers=[headers] * len(rows),
        codec=codec,
        schema_id=schema_id,
    )
    header_bytes, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=1,
        epoch=1,
        base_offset=base_offset,
        append_timestamp_ms=7 * base_offset,
        high_watermark=0,
        prev_header_crc32c=0,
    )
    return header_bytes + raw[batch.HEADER_LENGTH :]


def of(raw: bytes) -> tuple[BatchHeader, BatchColumns]:
    header = batch.parse_header(raw)
    return header, decode(raw, 0, header)


@given(st.lists(st.tuples(ROWS, CODECS), min_size=1, max_size=6), st.booleans())
def test_a_run_is_its_batches(
    batches: list[tuple[list[tuple[bytes | None, bytes | None]], Codec]], has_keys: bool
) -> None:
    run: list[BatchColumns] = []
    before, base_offset = None, 3
    for rows, codec in batches:
        kept = [(value, (key or b"k") if has_keys else None) for value, key in rows]
        kept[0] = (kept[0][0], b"k" if has_keys else None)
        if has_keys and len(kept) > 1:
            kept[-1] = (kept[-1][0], None)
        header, columns = of(stamped(kept, base_offset, codec=codec))
        assert before is None or may_follow(before, header)
        run.append(columns)
        before, base_offset = header, header.end_offset
    joined = join(run)
    one_by_one = pa.Table.from_batches([arrow.record_batch(each, "t", 4) for each in run])
    found = arrow.record_batch(joined, "t", 4)
    found.validate(full=True)
    assert pa.Table.from_batches([found]) == one_by_one.combine_chunks()
    records = [each for columns in run for each in columns.to_records(topic="t", partition=4)]
    assert joined.to_records(topic="t", partition=4) == records
    middle = len(joined) // 2
    assert joined.part(0, middle).to_records() == joined.to_records()[:middle]
    assert joined.part(middle, len(joined)).to_records() == joined.to_records()[middle:]
    assert joined.to_records(3 + middle) == joined.to_records()[middle:]


ROW = [(b"v", b"k")]


@pytest.mark.parametrize(
    "other",
    [
        stamped([(b"v", None)], 5),
        stamped(ROW, 5, tags=("t",)),
        stamped(ROW, 5, headers=(("h", b"1"),)),
        stamped(ROW, 5, schema_id=9),
        stamped([(bytes(64 << 10), b"k")], 5),
    ],
    ids=["no_keys", "tags", "headers", "schema", "large"],
)
def test_what_differs_is_not_joined(other: bytes) -> None:
    before, header = of(stamped(ROW, 4))[0], of(other)[0]
    assert may_follow(before, of(stamped(ROW, 5))[0])
    assert not may_follow(before, header)
    assert not may_follow(header._replace(end_offset=9), of(stamped(ROW, 9))[0])


def test_a_gap_is_not_joined() -> None:
    assert not may_follow(of(stamped(ROW, 4))[0], of(stamped(ROW, 6))[0])


def test_tags_and_headers_keep_both_apart() -> None:
    for options in ({"tags": ("t",)}, {"headers": (("h", b"1"),)}):
        one, two = (of(stamped(ROW, at, **options))[0] for at in (0, 1))  # type: ignore[arg-type]
        assert not may_follow(one, two)


@pytest.mark.parametrize("flag", [LeaderFlag.ROW_GROUP, LeaderFlag.COMPACTED])
def test_what_leaders_have_changed_is_not_joined(flag: int) -> None:
    one, two = (of(stamped(ROW, at))[0] for at in (0, 1))
    assert not may_follow(one._replace(leader_flags=flag), two)
    assert not may_follow(one, two._replace(leader_flags=flag))
