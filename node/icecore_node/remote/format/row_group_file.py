"""One row group of a tiered object as a Parquet file of its own, of the bytes as they lie there.

Pages are neither read nor written: in front of them comes Parquet's magic, behind them a footer
that names this row group alone. The library can't write the footer of pages that it has not written
itself, so it is put together here, in Thrift's compact protocol as parquet.thrift lays it out
(github.com/apache/parquet-format): the schema is taken from the footer that the library writes for
no rows at all, and of each column what a reader needs to find and decode its pages.
"""

from collections.abc import Iterable
from functools import cache
from io import BytesIO
from typing import Any, Final

import pyarrow.parquet as pq

from icecore_node.ports import Buffer
from icecore_node.remote.format.manifest import PARQUET_MAGIC
from icecore_node.remote.format.rows import SCHEMA

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Types of the compact protocol."""
_NO_ROWS: Final = bytes([0x10 | _I64, 0, 0x10 | _LIST, _STRUCT])
"""Fields 3 and 4 of FileMetaData without rows: their number, and an empty list of row groups."""
_FOOTER_LENGTH_BYTES: Final = 4
_TYPES: Final = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
_ENCODINGS: Final = (
    "PLAIN",
    "",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
)
_CODECS: Final = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
"""Names as the library says them, by their numbers in parquet.thrift."""


def row_group_file(data: Buffer, start: int, group: Any) -> list[Buffer]:
    """The file, in parts.

    Args:
        data: All pages of the row group.
        start: Their position in their object.
        group: Its description in the object's footer (``pyarrow.parquet.RowGroupMetaData``).
    """
    before, behind = _footer_of_no_rows()
    columns = [group.column(at) for at in range(group.num_columns)]
    moved = len(PARQUET_MAGIC) - start
    row_group = _struct(
        (1, _LIST, _list(_STRUCT, (_column(each, moved) for each in columns))),
        (2, _I64, _number(group.total_byte_size)),
        (3, _I64, _number(group.num_rows)),
    )
    rows = b"".join(
        (
            bytes([0x10 | _I64]),
            _number(group.num_rows),
            bytes([0x10 | _LIST]),
            _list(_STRUCT, [row_group]),
        )
    )
    footer = b"".join((before, rows, behind))
    length = len(footer).to_bytes(_FOOTER_LENGTH_BYTES, "little")
    return [PARQUET_MAGIC, data, footer + length + PARQUET_MAGIC]


@cache
def _footer_of_no_rows() -> tuple[bytes, bytes]:
    """Return the parts of a footer before and behind the row groups."""
    file = BytesIO()
    pq.write_metadata(SCHEMA, file)
    footer = file.getvalue()[len(PARQUET_MAGIC) : -_FOOTER_LENGTH_BYTES - len(PARQUET_MAGIC)]
    before, found, behind = footer.partition(_NO_ROWS)
    assert found and _NO_ROWS not in behind, "the library writes footers otherwise"
    return before, behind


def _column(column: Any, moved: int) -> bytes:
    """ColumnChunk, and ColumnMetaData in it."""
    dictionary = column.dictionary_page_offset
    fields = [
        (1, _I32, _number(_TYPES.index(column.physical_type))),
        (2, _LIST, _list(_I32, (_number(_ENCODINGS.index(each)) for each in column.encodings))),
        (3, _LIST, _list(_BINARY, map(_text, column.path_in_schema.split(".")))),
        (4, _I32, _number(_CODECS.index(column.compression))),
        (5, _I64, _number(column.num_values)),
        (6, _I64, _number(column.total_uncompressed_size)),
        (7, _I64, _number(column.total_compressed_size)),
        (9, _I64, _number(column.data_page_offset + moved)),
    ]
    if dictionary is not None:
        fields.append((11, _I64, _number(dictionary + moved)))
    return _struct((2, _I64, _number(0)), (3, _STRUCT, _struct(*fields)))


# --- the compact protocol -------------------------------------------------------------------------


def _struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Fields as number, type and encoded value, by their numbers."""
    made, last = bytearray(), 0
    for number, type_, value in fields:
        made.append((number - last) << 4 | type_)
        made += value
        last = number
    made.append(0)
    return bytes(made)


def _list(type_: int, values: Iterable[bytes]) -> bytes:
    items = [*values]
    count = len(items)
    head = bytes([count << 4 | type_]) if count < 15 else bytes([0xF0 | type_]) + _varint(count)
    return head + b"".join(items)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _varint(len(raw)) + raw


def _number(number: int) -> bytes:
    return _varint(number << 1 ^ number >> 63)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
