"""A Parquet object holds every record, says whose they are, and is made in bounded pieces."""

import hashlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icecore.codec.batch import iter_batches
from icecore.errors import StorageError
from icecore_node.remote.format.parquet_object import ParquetEncoder, raw_batches
from icecore_node.remote.format.rows import SCHEMA
from tests.support.tiered import Source, encoded, flights, plain, source_of, stamped, undecodable


def rows_in(data: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return found


def test_every_record_is_a_row() -> None:
    source = source_of(flights(12))
    data, made = encoded(source, row_group_bytes=30_000)
    rows = rows_in(data)
    records = source.records()
    assert made.records == len(rows) == len(records) == 600
    for row, each in zip(rows, records, strict=True):
        assert (row["topic"], row["partition"]) == ("flights", 3)
        assert (row["offset"], row["key"], row["value"]) == (each.offset, each.key, each.value)
        assert tuple(row["tags"]) == each.tags  # type: ignore[arg-type]
        headers = [(one["key"], one["value"]) for one in row["headers"]]  # type: ignore[attr-defined]
        assert tuple(headers) == each.headers
    times = pq.read_table(pa.BufferReader(data)).column("timestamp").cast(pa.int64())
    assert times.to_pylist() == [each.timestamp_ms * 1000 for each in records]
    assert [row["schema_id"] for row in rows[::200]] == [0, 1, 2]


def test_what_it_says_of_itself_is_so() -> None:
    source = source_of(flights(12))
    data, made = encoded(source, row_group_bytes=30_000)
    assert len(made.row_groups) > 2
    assert made.size_bytes == len(data)
    assert made.sha256 == hashlib.sha256(data).digest()
    assert made.footer_sha256 == hashlib.sha256(data[made.footer_start :]).digest()
    for each in made.row_groups:
        assert each.sha256 == hashlib.sha256(data[each.start : each.end]).digest()
        part = pq.read_table(pa.BufferReader(data)).slice(each.base_offset - 1000, each.records)
        times = part.column("timestamp").cast(pa.int64()).to_pylist()
        assert (min(times), max(times)) == (
            each.min_timestamp_ms * 1000,
            each.max_timestamp_ms * 1000,
        )
        appended = part.column("append_timestamp").cast(pa.int64()).to_pylist()
        assert max(appended) == each.max_append_timestamp_ms * 1000
        assert each.is_dense
    assert made.row_groups[0].start == 4
    file = pq.ParquetFile(pa.BufferReader(data))
    assert file.schema_arrow.equals(SCHEMA)
    about = file.metadata.metadata
    assert about[b"icecore.content_digest"].decode() == made.content_digest.hex()
    assert about[b"icecore.end_offset"] == b"1600"
    key = file.metadata.row_group(1).column(5)
    assert key.path_in_schema == "key" and key.has_column_index and key.has_offset_index
    assert key.statistics.has_min_max
    offset = file.metadata.row_group(1).column(2).statistics
    assert (offset.min, offset.max + 1) == (
        made.row_groups[1].base_offset,
        made.row_groups[1].end_offset,
    )


def test_runs_and_row_groups_do_not_change_the_content_digest() -> None:
    raws = flights(12)
    digests = {
        encoded(source_of(raws, batches_per_run=per_run), row_group_bytes=size)[1].content_digest
        for per_run, size in ((1, 1), (3, 30_000), (12, 1 << 22))
    }
    assert len(digests) == 1


def test_memory_holds_a_row_group() -> None:
    source = source_of([plain([b"x" * 10_000] * 10) for _ in range(40)])
    encoder = ParquetEncoder(source.facts, row_group_bytes=200_000)
    pieces, runs_taken = 0, list[int]()

    def runs() -> object:
        for at, run in enumerate(source.runs):
            runs_taken.append(at)
            yield run

    for _ in encoder.pieces(runs()):  # type: ignore[arg-type]
        pieces += 1
        assert len(runs_taken) <= pieces + 1
    assert pieces == len(encoder.encoded().row_groups) + 2


def test_batches_without_rows_are_left_aside_as_they_are() -> None:
    raws = [*flights(2), undecodable(), undecodable(), *flights(1), undecodable()]
    source = source_of(raws)
    data, made = encoded(source)
    assert made.records == len(rows_in(data)) == 150
    side = b"".join(raw_batches(source.runs, made.raw_batches))
    spans = [(each.base_offset, each.end_offset) for each in made.raw_batches]
    assert spans == [(1100, 1106), (1156, 1159)]
    for each in made.raw_batches:
        headers = [header for _, header in iter_batches(side[each.start : each.end])]
        assert (headers[0].base_offset, headers[-1].end_offset) in spans
        assert each.max_append_timestamp_ms == headers[-1].append_timestamp_ms
    groups = [(each.base_offset, each.end_offset) for each in made.row_groups]
    assert sorted([*groups, *spans]) == [(1000, 1100), (1100, 1106), (1106, 1156), (1156, 1159)]


@pytest.mark.parametrize("raws", [[], [undecodable()]])
def test_a_segment_without_rows(raws: list[bytes]) -> None:
    data, made = encoded(source_of(raws))
    assert rows_in(data) == [] and made.row_groups == () and made.records == 0


def _without(source: Source, at: int) -> list[bytes]:
    return [*source.runs[:at], *source.runs[at + 1 :]]


def test_what_is_not_the_whole_segment_is_refused() -> None:
    source = source_of(flights(6), batches_per_run=1)
    other = source_of(flights(6), base=1001, batches_per_run=1)
    strange = stamped(flights(1)[0], 1000, 1)
    for runs in (
        _without(source, 0),
        _without(source, 3),
        _without(source, 5),
        [*source.runs, source.runs[-1]],
        [source.runs[1], source.runs[0], *source.runs[2:]],
        other.runs,
        [],
    ):
        with pytest.raises(StorageError):
            list(ParquetEncoder(source.facts).pieces(runs))
    facts = replace(source.facts, segment_id=78)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="segment 77 at offset 1000"):
        list(ParquetEncoder(facts).pieces([strange]))
