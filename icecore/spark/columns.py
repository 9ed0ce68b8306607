"""The columns of a topic in Spark, and how Arrow batches of a consumer become batches of theirs.

The columns are those of a tiered segment's Parquet object, so both can stand in one table. Spark
compares the Arrow schema of the first batch with its own, to the name of a list's element; so every
batch is put into exactly that schema.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from icecore.errors import ConfigurationError

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("append_timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("tags", ArrayType(StringType())),
        StructField("headers", ArrayType(_HEADER)),
        StructField("schema_id", LongType()),
    ]
)
"""All columns. Times are whole milliseconds."""

_CONSTANT: Final = ("topic", "partition")
"""Columns with one value per batch, which no consumer is asked for."""


def pruned(columns: Sequence[str]) -> StructType:
    """The schema with these columns only; with all, if none are named.

    Raises:
        ConfigurationError: There is no such column.
    """
    for name in columns:
        if name not in SCHEMA.fieldNames():
            raise ConfigurationError(
                f"there is no column {name}: columns are {', '.join(SCHEMA.fieldNames())}"
            )
    return StructType([SCHEMA[name] for name in columns or SCHEMA.fieldNames()])


def check_schema(asked: StructType) -> None:
    """Refuse a ``.schema(...)`` that does not fit the read.

    Raises:
        ConfigurationError: A column is unknown, or of another type.
    """
    wanted = pruned(asked.fieldNames())
    for ours, theirs in zip(wanted, asked, strict=True):
        if ours.dataType.simpleString() != theirs.dataType.simpleString():
            raise ConfigurationError(
                f"column {ours.name} is {ours.dataType.simpleString()}, and can't be read as "
                f"{theirs.dataType.simpleString()}: cast it afterwards"
            )
        if not theirs.nullable:
            raise ConfigurationError(f"column {ours.name} can't be read as NOT NULL")


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
        """Columns to ask a consumer for: at least one, which tells the number of rows."""

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
            value = pa.scalar(self._values[field.name], field.type)
            longest = self._repeated[field.name] = pa.repeat(value, 2 * count)
        return longest.slice(0, count)
