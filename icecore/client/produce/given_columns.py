"""Columns as programs have them: lists, arrays of numpy, series and frames, texts and times.

Whatever offers ``__arrow_c_stream__`` (tables and batches of Arrow, frames of pandas, Polars and
DuckDB) becomes one record batch; everything else becomes lists of bytes and an array of times. What
can't is refused by the name of the column, the row and the type.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from icecore.client.checks import columns, record_time_ms, wrong_type
from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from icecore.errors import InvalidRequestError
from icecore.extras import explained

if TYPE_CHECKING:
    import pyarrow as pa

_Int64s: TypeAlias = npt.NDArray[np.int64]


class ArrowLike(Protocol):
    """Anything that hands over its columns as Arrow does: tables and batches, frames, readers."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A capsule with the stream."""


ByteColumn: TypeAlias = Sequence[bytes | str | None]
"""Texts are stored as UTF-8."""
TimeColumn: TypeAlias = Sequence[int | datetime] | npt.NDArray[Any]
"""Milliseconds since 1970 UTC, or times with time zone; numpy's ``datetime64`` is UTC."""

_HEADER = {"key", "value"}
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_COARSE = ("Y", "M", "W", "D", "h", "m", "s")
"""Units of numpy that milliseconds divide."""
_PLAIN_TYPES = {bytes, type(None)}


def arrow_rows(given: Any) -> "pa.RecordBatch | None":
    """All records as one batch; None when these are no columns of Arrow.

    Raises:
        InvalidRequestError: They are not one table, or more than one batch can hold.
    """
    if not hasattr(given, "__arrow_c_stream__"):
        if hasattr(type(given), "schema"):  # frames of Spark, and lazy ones
            raise InvalidRequestError(
                f"values is a {type(given).__name__}, which has no rows yet: collect them into a "
                "table or a frame first"
            )
        return None
    with explained():
        import pyarrow as pa

    _refuse_objects("values", given)
    if isinstance(given, pa.RecordBatch):
        return given
    try:
        found = given if isinstance(given, pa.Table) else pa.chunked_array(given)
        if isinstance(found, pa.ChunkedArray):
            if not pa.types.is_struct(found.type):
                return None  # one column
            found = pa.Table.from_struct_array(found)
        batches = found.combine_chunks().to_batches()
    except Exception as error:  # of the library that it belongs to
        raise InvalidRequestError(f"values can't be read as a table of Arrow: {error}") from error
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=found.schema)
    if len(batches) > 1:
        raise InvalidRequestError("the table is too large to be sent at once: send it in parts")
    return batches[0]


def _refuse_objects(name: str, given: Any) -> None:
    """Polars gives Arrow the addresses of Python's objects, as if they were bytes."""
    if not type(given).__module__.startswith("polars"):
        return
    types = given.dtypes if hasattr(given, "dtypes") else [given.dtype]
    if any(str(each) == "Object" for each in types):
        raise InvalidRequestError(
            f"{name} has a column of Python objects: cast it to bytes or text"
        )


def byte_column(name: str, given: Any) -> Sequence[bytes | None]:
    """A column of bytes; texts become UTF-8. Raises TypeError, InvalidRequestError."""
    column = columns(name, _as_list(given), "a column of bytes, texts or None")
    if {*map(type, column)} <= _PLAIN_TYPES:
        return column
    return [_bytes(f"{name}[{row}]", each) for row, each in enumerate(column)]


def _bytes(name: str, given: Any) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{name} {given!r:.60} has no UTF-8 form") from error
    if isinstance(given, bytes):  # of numpy
        return bytes(given)
    raise wrong_type(name, given, "bytes, a text or None")


def _as_list(given: Any) -> Any:
    """Columns of Arrow, pandas, Polars and numpy as plain values."""
    if hasattr(given, "to_pylist"):
        return given.to_pylist()
    if hasattr(given, "__arrow_c_stream__"):
        with explained():
            import pyarrow as pa

        _refuse_objects("a series", given)
        return pa.chunked_array(given).to_pylist()
    if isinstance(given, np.ndarray) and given.ndim == 1:
        return given.tolist()
    return given


def label_column(name: str, given: Any) -> Sequence[Any]:
    """A column of tags or headers; a row of a library's column that is null has none.

    Raises:
        TypeError: It is no column.
    """
    if not isinstance(given, list | tuple) and (
        hasattr(given, "to_pylist") or hasattr(given, "__arrow_c_stream__")
    ):
        given = [_labels_of(row) for row in _as_list(given)]
    return columns(name, given, "a column of sequences" if name == "tags" else "a column of pairs")


def _labels_of(row: Any) -> Any:
    """Those of Arrow as ``send`` takes them: headers are maps, or structs of key and value."""
    if not isinstance(row, list):
        return () if row is None else row
    return [
        (each["key"], each["value"]) if isinstance(each, dict) and {*each} == _HEADER else each
        for each in row
    ]


def time_column(given: Any) -> _Int64s:
    """Event times as numbers; numpy would cut fractions off and take texts for numbers.

    A time between two milliseconds is the earlier one, also before 1970.

    Raises:
        TypeError, InvalidRequestError: One is neither a number of milliseconds nor a time.
    """
    expected = "a column of int milliseconds since 1970 UTC, or of times"
    if isinstance(given, bytearray | memoryview):
        raise wrong_type("timestamps_ms", given, expected)
    try:
        found = np.asarray(_arrow_times(given) if hasattr(given, "to_pylist") else given)
    except ValueError:
        raise wrong_type("timestamps_ms", given, expected) from None
    if found.ndim == 1 and not len(found):
        return np.empty(0, "<i8")
    if found.ndim != 1 or found.dtype.kind not in "iuMO":
        raise wrong_type("timestamps_ms", given, expected)
    if found.dtype.kind == "M":
        found = _millis(found)
    elif found.dtype.kind != "i":  # mixed, or some are very large
        found = np.array([_time(row, each) for row, each in enumerate(found.tolist())], "<i8")
    outside = np.flatnonzero((found < MIN_TIMESTAMP_MS) | (found > MAX_TIMESTAMP_MS))
    if len(outside):
        row = int(outside[0])
        raise InvalidRequestError(
            f"timestamps_ms[{row}] is {found[row]}: milliseconds since 1970 UTC are from "
            f"{MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}, in the years 1 to 9999"
        )
    return found.astype("<i8")


def _arrow_times(given: Any) -> Any:
    """Those of a column of Arrow: times are UTC without a zone, as in tables."""
    import pyarrow as pa

    from icecore.codec.arrow_rows import MILLIS, column_as

    is_time = pa.types.is_timestamp(given.type) or pa.types.is_dictionary(given.type)
    if not is_time or given.null_count:
        return given.to_pylist()
    column = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    rows = pa.record_batch({"timestamps_ms": column})
    return column_as(rows, "timestamps_ms", MILLIS).cast(pa.int64()).to_numpy()


def _millis(times: npt.NDArray[Any]) -> _Int64s:
    absent = np.flatnonzero(np.isnat(times))
    if len(absent):
        raise InvalidRequestError(f"timestamps_ms[{absent[0]}] is no time")
    found = times.astype("datetime64[ms]")
    if np.datetime_data(times.dtype)[0] in _COARSE:  # numpy lets a time that is too far wrap round
        outside = np.flatnonzero(found.astype(times.dtype) != times)
        if len(outside):
            raise InvalidRequestError(f"timestamps_ms[{outside[0]}] is not in the years 1 to 9999")
    return found.astype("<i8")


def _time(row: int, given: Any) -> int:
    name = f"timestamps_ms[{row}]"
    if isinstance(given, datetime) and given == given:  # the NaT of pandas is one, and is not
        if given.tzinfo is None:
            raise InvalidRequestError(f"{name} {given!r} has no time zone")
        return (given - _EPOCH) // _MILLISECOND
    try:
        return record_time_ms(given, name)
    except TypeError:
        expected = "int milliseconds since 1970 UTC, or a time with time zone"
        raise wrong_type(name, given, expected) from None
