"""A row group is a Parquet file of its own: other libraries read it, and find what they find in the
whole."""

from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icecore_node.remote.format import row_group_file as module
from icecore_node.remote.format.row_group_file import row_group_file
from tests.support.tiered import encoded, flights, plain, source_of


@pytest.mark.parametrize("row_group_bytes", [1, 5_000, 1 << 20])
def test_each_file_has_the_rows_of_its_group(row_group_bytes: int) -> None:
    data, made = encoded(source_of(flights(8)), row_group_bytes=row_group_bytes)
    whole = pq.ParquetFile(BytesIO(data))
    for number, group in enumerate(made.row_groups):
        pages = data[group.start : group.end]
        parts = row_group_file(pages, group.start, whole.metadata.row_group(number))
        assert parts[1] is pages, "what is large is not copied"
        file = pq.ParquetFile(BytesIO(b"".join(parts)))
        assert file.metadata.num_row_groups == 1
        assert file.read().equals(whole.read_row_group(number))


def test_polars_and_duckdb_read_it() -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    data, made = encoded(source_of(flights(8)), row_group_bytes=5_000)
    metadata = pq.read_metadata(BytesIO(data))
    group = made.row_groups[1]
    parts = row_group_file(data[group.start : group.end], group.start, metadata.row_group(1))
    file = b"".join(parts)
    rows = pq.read_table(BytesIO(file))
    assert polars.read_parquet(BytesIO(file))["offset"].to_list() == rows["offset"].to_pylist()
    found = duckdb.connect().execute("select count(*) from rows").fetchone()
    assert found == (rows.num_rows,)


def test_columns_without_a_dictionary_or_a_value() -> None:
    data, made = encoded(source_of([plain([None] * 5), plain([b""] * 5)]))
    [group] = made.row_groups
    metadata = pq.read_metadata(BytesIO(data))
    file = row_group_file(data[group.start : group.end], group.start, metadata.row_group(0))
    table = pq.read_table(BytesIO(b"".join(file)))
    assert table["value"].to_pylist() == [None] * 5 + [b""] * 5
    assert table["key"].null_count == 10


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 1 << 31, (1 << 62) - 1, -(1 << 62)])
def test_numbers_are_read_as_written(number: int) -> None:
    raw = module._number(number)
    value = sum((byte & 0x7F) << 7 * at for at, byte in enumerate(raw))
    assert (value >> 1) ^ -(value & 1) == number
    assert all(byte & 0x80 for byte in raw[:-1]) and not raw[-1] & 0x80


def test_long_lists_say_their_length_apart() -> None:
    assert module._list(5, [b"x"] * 14)[:1] == bytes([14 << 4 | 5])
    assert module._list(5, [b"x"] * 15)[:2] == bytes([0xF5, 15])


def test_the_schema_is_that_of_the_table() -> None:
    before, behind = module._footer_of_no_rows()
    footer = before + module._NO_ROWS + behind
    file = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert pq.read_schema(pa.BufferReader(file)).equals(module.SCHEMA)
