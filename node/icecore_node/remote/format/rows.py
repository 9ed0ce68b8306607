"""Records as rows of the tiered table: its columns, and batches as such rows.

Every Parquet object and the table's log have this schema. Times have microseconds, because Delta's
do: that is exact, and every reader takes it. ``schema_id`` is the producer's, of the value. A row
does not have the rest of its batch (producer ids, sequences, its place in the chain): the index
object keeps the producer state at the end of the segment.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from icecore.codec import arrow
from icecore.codec.batch import BatchHeader
from icecore.codec.columns import BatchColumns

MICROS: Final = pa.timestamp("us", "UTC")
TAGS: Final = pa.list_(pa.field("element", pa.string(), nullable=False))
HEADER: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
HEADERS: Final = pa.list_(pa.field("element", HEADER, nullable=False))
SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", MICROS, nullable=False),
        pa.field("append_timestamp", MICROS, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("tags", TAGS, nullable=False),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("schema_id", pa.int64(), nullable=False),
    ]
)
MICROS_PER_MS: Final = 1000


def rows_of(
    header: BatchHeader, columns: BatchColumns, topic: str, partition: int
) -> pa.RecordBatch:
    """All records of a batch; keys, values and headers share its memory.

    Args:
        header: Header of the batch.
        columns: The same batch, decoded.
        topic: Its name.
        partition: Its number.
    """
    count = len(columns)
    plain = arrow.record_batch(columns)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            plain.column("offset"),
            _micros(columns.timestamps),
            pa.repeat(pa.scalar(header.append_timestamp_ms * MICROS_PER_MS, MICROS), count),
            plain.column("key"),
            plain.column("value"),
            _as(plain.column("tags"), TAGS),
            _as(plain.column("headers"), HEADERS),
            pa.repeat(pa.scalar(header.schema_id, pa.int64()), count),
        ],
        schema=SCHEMA,
    )


def _micros(times_ms: Any) -> Any:
    times = np.asarray(times_ms, "<i8") * MICROS_PER_MS
    return pa.Array.from_buffers(MICROS, len(times), [None, pa.py_buffer(times)])


def _as(lists: Any, type_: Any) -> Any:
    """The same lists under names and nullability of ours."""
    if type_ is TAGS:
        return pa.ListArray.from_arrays(lists.offsets, lists.values, type=TAGS)
    values = lists.values
    fields = [values.field(0), values.field(1)]
    named = pa.StructArray.from_arrays(fields, fields=[HEADER.field(0), HEADER.field(1)])
    return pa.ListArray.from_arrays(lists.offsets, named, type=HEADERS)
