"""Row groups in the frame of a batch: what comes out of them, and what is refused."""

import random
from dataclasses import replace
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icecore.codec import batch, row_group
from icecore.codec.arrow import COLUMNS, TOPICS_COLUMNS, record_batch
from icecore.codec.batch import BatchLimits, LeaderFlag
from icecore.codec.decoding import decode
from icecore.errors import BatchTooLargeError, CorruptBatchError, InvalidRequestError
from icecore_node.remote.format.rows import SCHEMA
from tests.support.row_frames import framed, frames_of, rows_of
from tests.support.tiered import Source, flights, source_of


def parquet(rows: int = 3, **columns: Any) -> bytes:
    """A file with the columns of the table, some of them others."""
    plain: dict[str, Any] = {
        "topic": ["t"] * rows,
        "partition": [0] * rows,
        "offset": list(range(rows)),
        "timestamp": [5_000] * rows,
        "append_timestamp": [7_000] * rows,
        "key": [b"k"] * rows,
        "value": [b"v"] * rows,
        "tags": [["a"]] * rows,
        "headers": [[{"key": "h", "value": b"w"}]] * rows,
        "schema_id": [1] * rows,
    }
    types = {field.name: field.type for field in SCHEMA}
    made = {
        name: column if isinstance(column, pa.Array) else pa.array(column, types[name])
        for name, column in {**plain, **columns}.items()
        if column is not None
    }
    file = BytesIO()
    pq.write_table(pa.table(made), file, row_group_size=rows)
    return file.getvalue()


def decoded(frame: bytes, **options: Any) -> row_group.RowGroupRows:
    return row_group.decode(frame, 0, batch.parse_header(frame), **options)


async def test_every_record_comes_back() -> None:
    source = source_of(flights(12))
    frames = await frames_of(source, row_group_bytes=30_000)
    assert len(frames) > 2
    found = [each for rows in rows_of(frames) for each in rows.to_records("flights", 3)]
    plain = [replace(each, topic="flights", partition=3) for each in source.records()]
    assert found == plain
    assert len({each.append_timestamp_ms for each in found}) > len(frames)  # not one for each frame


async def test_columns_are_those_of_batches() -> None:
    source = source_of(flights(4))
    names = (*TOPICS_COLUMNS, "schema_id")
    rows = rows_of(await frames_of(source))
    found = pa.Table.from_batches([each.record_batch("flights", 3, names) for each in rows])
    assert found.equals(pa.Table.from_batches(list(batches_of(source, names))))


def batches_of(source: Source, names: tuple[str, ...]) -> "list[pa.RecordBatch]":
    return [
        record_batch(decode(run, position, header), "flights", 3, names, header.schema_id)
        for run in source.runs
        for position, header in batch.iter_batches(run)
    ]


async def test_only_what_is_asked_for_is_read() -> None:
    [frame] = await frames_of(source_of(flights(3)))
    whole = decoded(frame)
    for names in (("value",), ("offset", "tags"), ("headers", "key"), ("append_timestamp",)):
        part = decoded(frame, names=names).record_batch("", 0, names)
        assert part.equals(whole.record_batch("", 0, names))


async def test_parts_have_what_the_whole_has() -> None:
    [frame] = await frames_of(source_of(flights(3), base=1000))
    rows = decoded(frame)
    records = rows.to_records("t", 0)
    assert len(rows) == len(records) == 150
    for first, end in ((0, None), (1040, 1090), (1149, None), (1150, None), (0, 1000)):
        part = rows.within(first, end)
        wanted = [r for r in records if first <= r.offset < (end or 1 << 60)]
        assert part.to_records("t", 0) == wanted
        assert part.record_batch("t", 0, COLUMNS).num_rows == len(part) == len(wanted)
    assert rows.part(10, 20).part(3, 99).to_records("t", 0) == records[13:20]


def test_nobody_produces_one_and_none_counts_as_a_batch() -> None:
    frame = framed(parquet(), 3, (0, 3))
    header = batch.parse_header(frame)
    assert header.leader_flags == LeaderFlag.COMPACTED | LeaderFlag.ROW_GROUP
    with pytest.raises(CorruptBatchError, match="no batch of columns"):
        decode(frame, 0, header)
    with pytest.raises(InvalidRequestError, match="leader part"):
        batch.check_produced(frame, 0, BatchLimits())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"value": None}, "value"),
        ({"tags": [None, ["a"], []]}, "null"),
        ({"timestamp": [1, None, 2]}, "null"),
        ({"offset": [0, 2, 1]}, "offsets"),
        ({"offset": [0, 1, 1]}, "offsets"),
        ({"offset": [-1, 0, 1]}, "offsets"),
        ({"offset": [1, 2, 3]}, "offsets"),
        ({"timestamp": [1001, 2000, 3000]}, "lose data"),
        ({"value": pa.array([1, 2, 3])}, "cast"),
        ({"value": pa.array([["a"], [], []])}, "cast"),
    ],
)
def test_other_columns_are_refused(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptBatchError, match=why):
        decoded(framed(parquet(**columns), 3, (0, 3)))


def test_text_that_is_none_is_refused() -> None:
    tags = pa.array([[b"\xff\xfe"], [], []], pa.list_(pa.binary()))
    with pytest.raises(CorruptBatchError, match="UTF"):
        decoded(framed(parquet(tags=tags), 3, (0, 3)))


def test_another_number_of_rows_is_refused() -> None:
    with pytest.raises(CorruptBatchError, match="3 rows"):
        decoded(framed(parquet(), 4, (0, 4)))
    file = BytesIO()
    pq.write_table(pq.read_table(BytesIO(parquet(4))), file, row_group_size=2)
    with pytest.raises(CorruptBatchError, match="4 rows"):
        decoded(framed(file.getvalue(), 4, (0, 4)))


def test_what_is_too_large_is_not_decoded() -> None:
    frame = framed(parquet(), 3, (0, 3))
    with pytest.raises(BatchTooLargeError):
        decoded(frame, limits=BatchLimits(uncompressed_bytes_max=100))
    with pytest.raises(CorruptBatchError, match="rows"):
        decoded(frame, limits=BatchLimits(records_max=2))


@pytest.mark.parametrize("seed", range(20))
def test_changed_bytes_are_an_error_or_other_values(seed: int) -> None:
    """Under CRCs that are right all the same."""
    rng = random.Random(seed)
    whole = parquet(50, value=[rng.randbytes(30) for _ in range(50)])
    for _ in range(20):
        file = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            file[rng.randrange(len(file))] = rng.randrange(256)
        if rng.random() < 0.2:
            del file[rng.randrange(len(file)) :]
        frame = framed(bytes(file), 50, (0, 50))
        try:
            rows = decoded(frame)
        except (CorruptBatchError, BatchTooLargeError):
            continue
        assert len(rows.to_records("t", 0)) == 50


@pytest.mark.parametrize("cut", [1, 8, 100, 1000])
def test_a_frame_that_is_cut_is_refused(cut: int) -> None:
    frame = framed(parquet(), 3, (0, 3))
    with pytest.raises(CorruptBatchError, match="cut short"):
        row_group.decode(frame[:-cut], 0, batch.parse_header(frame))
