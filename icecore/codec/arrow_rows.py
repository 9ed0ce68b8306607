"""Rows of Arrow on their way into batches: checked, and in the types that batches have.

Frames bring categories, views and finer times. One rule for each of them is here, whatever library
they come from.
"""

from typing import Any

import numpy as np

from icecore.extras import explained

with explained():
    import pyarrow as pa
    import pyarrow.compute as pc

from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from icecore.errors import InvalidRequestError

MILLIS = pa.timestamp("ms", "UTC")
TAGS = pa.list_(pa.string())
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_WANTED = {
    "timestamp_ms": pa.int64(),
    "timestamp": MILLIS,
    "key": pa.binary(),
    "value": pa.binary(),
    "tags": TAGS,
    "headers": HEADERS,
}
"""The columns of records to be encoded."""
_NAMES_MAX = 200
"""Characters of names in a message."""


def checked(rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """The columns that ``encode`` looks at, in the types that it wants: it can't refuse them.

    Raises:
        InvalidRequestError: No ``value``, a column that cannot be cast, a null timestamp, tag or
            header name, or one name for two columns.
    """
    names = rows.schema.names
    if "value" not in names:
        known = ", ".join(names)[:_NAMES_MAX] or "none"
        raise InvalidRequestError(f"there is no column named value; there are: {known}")
    if not rows.num_rows:
        raise InvalidRequestError("there are no records")
    found: dict[str, Any] = {}
    for name, type_ in _WANTED.items():
        if names.count(name) > 1:
            raise InvalidRequestError(f"a record batch has two columns named {name}")
        if name in names:
            found[name] = column_as(rows, name, type_)
    times = found.pop("timestamp", None)
    if "timestamp_ms" not in found:
        times = pa.repeat(now_ms, rows.num_rows) if times is None else times.cast(pa.int64())
        found["timestamp_ms"] = times
    _refuse_null(found["timestamp_ms"], "a time")
    check_times(found["timestamp_ms"].to_numpy(), "row {}: timestamp")
    for name in ("tags", "headers"):
        if name in found:
            items, rows_of = found[name].flatten(), pc.list_parent_indices(found[name])
            _refuse_null(items, f"one of {name}", rows_of)
            if name == "headers":
                _refuse_null(items.flatten()[0], "the name of a header", rows_of)
    return pa.RecordBatch.from_pydict(found)


def check_times(millis: Any, name: str) -> None:
    """Refuse event times that no leader takes.

    Args:
        millis: An array of numbers.
        name: A column as messages call it, with braces for the row.

    Raises:
        InvalidRequestError: One is not in the years 1 to 9999.
    """
    outside = np.flatnonzero((millis < MIN_TIMESTAMP_MS) | (millis > MAX_TIMESTAMP_MS))
    if len(outside):
        row = int(outside[0])
        raise InvalidRequestError(
            f"{name.format(row)} is {millis[row]}: milliseconds since 1970 UTC are from "
            f"{MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}, in the years 1 to 9999"
        )


def row_sizes(rows: pa.RecordBatch, label_bytes: int = 0) -> Any:
    """Bytes of each row of what ``checked`` returned; the same for equal rows wherever they are.

    Args:
        rows: Of one batch.
        label_bytes: How much a tag or a header counts beside its own bytes.
    """
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value"):
        if name in rows.schema.names:
            sizes += _lengths(rows.column(name))
    for name in ("tags", "headers"):
        if name in rows.schema.names:
            sizes += _list_lengths(rows.column(name), label_bytes)
    return sizes


def _lengths(column: Any) -> Any:
    found = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _list_lengths(column: Any, label_bytes: int) -> Any:
    items = column.flatten()
    parts = items.flatten() if pa.types.is_struct(items.type) else [items]
    lengths = sum((_lengths(part) for part in parts), np.full(len(items), label_bytes, np.int64))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    lists = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ends[lists[1:]] - ends[lists[:-1]]


def _refuse_null(array: Any, what: str, rows_of: Any = None) -> None:
    """Raises InvalidRequestError that names the row; items of lists come with the row of each."""
    if array.null_count:
        at = pc.index(array.is_null(), True).as_py()
        row = at if rows_of is None else rows_of[at].as_py()
        raise InvalidRequestError(f"row {row}: {what} is null")


def column_as(rows: pa.RecordBatch, name: str, type_: Any) -> Any:
    """A column in this type. Raises InvalidRequestError that names it, and the first bad row."""
    column = rows.column(name)
    if column.type == type_:
        return column
    if name == "timestamp_ms" and not pa.types.is_integer(column.type):
        raise InvalidRequestError(f"column {name} is {column.type}, not int64: milliseconds")
    refused = f"column {name}{{}} is {column.type}, which is not taken as {type_}: {{}}"
    if why := _why_other(column.type, type_):
        raise InvalidRequestError(refused.format("", why))
    try:
        return _cast(column, type_)
    except pa.ArrowException as error:
        where, cause = _first_refused(column, type_, error)
        raise InvalidRequestError(refused.format(where, cause)) from error


def _why_other(given: Any, type_: Any) -> str:
    """Return why a type means something else, though Arrow would cast it; empty when it fits."""
    if pa.types.is_timestamp(type_) and isinstance(given, pa.BaseExtensionType):
        return "its numbers count something else"  # periods of pandas: years, months
    if type_ == HEADERS and any(is_kind(given) for is_kind in _LISTS):
        items = given.value_type
        fields = [each.name for each in items] if pa.types.is_struct(items) else []
        if fields and not {"key", "value"} <= {*fields}:  # Arrow would put nulls there
            return f"its fields are {', '.join(fields):.{_NAMES_MAX}}, and must be key and value"
    return ""


_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _cast(column: Any, type_: Any) -> Any:
    """Times may lose what is less than a millisecond; nothing else may lose anything."""
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        column = _plain(column)
    if pa.types.is_timestamp(column.type):
        column = whole_millis(column)
    return column.cast(type_)


def whole_millis(times: Any) -> Any:
    """Times in milliseconds: the last one that does not lie behind each, also before 1970."""
    unit = {"us": 1_000, "ns": 1_000_000}.get(times.type.unit)
    if unit is None:
        return times
    numbers = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    # Not pa.array: that imports pandas.
    data = pa.py_buffer(numbers // unit)
    found = pa.Array.from_buffers(pa.timestamp("ms", times.type.tz), len(times), [None, data])
    return pc.if_else(times.is_valid(), found, None) if times.null_count else found


def _plain(column: Any) -> Any:
    """The same without dictionaries, which frames have for categories, also inside of lists."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        words = column.dictionary
        if not pa.types.is_nested(words.type):  # no kernel takes items of a view
            words = words.cast(_without_view(words.type))
        return words.take(column.indices)
    if any(is_kind(type_) for is_kind in _LISTS):
        items = column.flatten()
        plain = _plain(items)
        if plain is items and "view" not in str(type_):
            return column
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype("<i4")
        return pa.ListArray.from_arrays(pa.array(ends), plain, mask=column.is_null())
    if pa.types.is_struct(type_):
        parts = column.flatten()
        plain_parts = [_plain(each) for each in parts]
        if all(a is b for a, b in zip(parts, plain_parts, strict=True)):
            return column
        names = [field.name for field in type_]
        return pa.StructArray.from_arrays(plain_parts, names, mask=column.is_null())
    return column


def _without_view(type_: Any) -> Any:
    if type_ == pa.string_view():
        return pa.string()
    return pa.binary() if type_ == pa.binary_view() else type_


def _first_refused(column: Any, type_: Any, error: Exception) -> tuple[str, Exception]:
    """Find the first row that can't be cast, and why; without one, the type itself can't, and the
    given error comes back."""
    low, high = 0, len(column)
    try:
        _cast(column.slice(0, 0), type_)
    except pa.ArrowException:
        return "", error
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column.take(pa.array(range(low, middle))), type_)  # a slice has all items
        except pa.ArrowException:
            high = middle
        else:
            low = middle
    try:
        _cast(column.take(pa.array([low])), type_)
    except pa.ArrowException as own:  # Arrow tells of the last one
        error = own
    return f", row {low},", error
