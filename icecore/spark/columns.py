"""The columns of a topic in Spark, and which of them a query wants.

They are those of a tiered segment's Parquet object, so both can stand in one table.
"""

from collections.abc import Sequence
from typing import Final

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
