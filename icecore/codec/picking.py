"""One record out of a decoded batch, without those beside it.

Whoever looks something up wants a few records of thousands. Columns are views, so the others cost
nothing until somebody asks for them; ``BatchColumns.to_records`` is for whoever wants all.
"""

from icecore.codec.columns import BatchColumns, BinaryColumn, ListColumn, Record


def record_at(columns: BatchColumns, at: int) -> Record:
    """The record at a place in its batch, as ``to_records`` gives it."""
    deltas = columns.index.offset_deltas
    return Record(
        value=_value(columns.values, at),
        key=None if columns.keys is None else _value(columns.keys, at),
        timestamp_ms=int(columns.timestamps[at]),
        tags=_tags(columns.tags, at),
        headers=_headers(columns.headers, at),
        offset=columns.base_offset + (at if deltas is None else int(deltas[at])),
        append_timestamp_ms=columns.append_timestamp_ms,
    )


def _value(column: BinaryColumn, at: int) -> bytes | None:
    if not column.bits[at >> 3] >> (at & 7) & 1:
        return None
    return bytes(column.data[column.offsets[at] : column.offsets[at + 1]])


def _text(column: BinaryColumn, at: int) -> str:
    return str(column.data[column.offsets[at] : column.offsets[at + 1]], "utf-8")


def _tags(tags: ListColumn | None, at: int) -> tuple[str, ...]:
    if tags is None or tags.values is None:
        return ()
    names = tags.values
    ids = tags.items[tags.lists[at] : tags.lists[at + 1]].tolist()
    return tuple([_text(names, each) for each in ids])


def _headers(headers: ListColumn | None, at: int) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None or headers.values is None:
        return ()
    names, values = headers.items, headers.values
    places = range(int(headers.lists[at]), int(headers.lists[at + 1]))
    return tuple([(_text(names, each), _value(values, each)) for each in places])
