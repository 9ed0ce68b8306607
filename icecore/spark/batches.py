"""Makes Spark's Arrow batches of those that a consumer or a Parquet object gives.

Spark compares the Arrow schema of the first batch with its own, to the name of a list's element; so
every batch is put into exactly that schema.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_CONSTANT: Final = ("topic", "partition")
"""Columns with one value per batch, which nobody is asked for."""


class BatchMaker:
    """Makes Spark's batches from those of one partition.

    Args:
        schema: That Spark wants.
        topic: Its name.
        partition: Its number.
    """

    def __init__(self, schema: StructType, topic: str, partition: int) -> None:
        self._target = to_arrow_schema(schema, timezone="UTC")
        self._values: dict[str, Any] = {"topic": topic, "partition": partition}
        self._repeated: dict[str, pa.Array] = {}
        names = [name for name in schema.fieldNames() if name not in _CONSTANT]
        self.names = tuple(names) or ("offset",)
        """Columns to ask for: at least one, which tells the number of rows."""

    def make(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """One batch of all rows. Values are copied once, where there are several batches."""
        rows = batches[0]
        if len(batches) > 1:
            bare = [batch.replace_schema_metadata(None) for batch in batches]
            rows = pa.concat_batches(bare)
        columns = [self._column(field, rows) for field in self._target]
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _column(self, field: pa.Field, rows: pa.RecordBatch) -> Any:
        if field.name in _CONSTANT:
            return self._constant(field, rows.num_rows)
        column = rows.column(field.name)
        return column if column.type == field.type else column.cast(field.type)

    def _constant(self, field: pa.Field, count: int) -> pa.Array:
        """The same value so many times: the start of a long array, which is made once."""
        longest = self._repeated.get(field.name)
        if longest is None or len(longest) < count:
            longest = self._repeated[field.name] = _repeat(self._values[field.name], 2 * count)
        return longest.slice(0, count)


def _repeat(value: str | int, count: int) -> pa.Array:
    """Make the array of its buffers. The library's own functions that take Python's values import
    pandas first, which takes a quarter of a second of a process that may live for two."""
    if isinstance(value, int):
        numbers = np.full(count, value, np.int32)
        return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(numbers)])
    text = value.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(text)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(text * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)
