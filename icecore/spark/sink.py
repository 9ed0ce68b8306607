"""Writes DataFrames into topics: what rows become records of which partition, in which batches.

All of that follows from the rows and their order, so that a task which is run again sends the same
batches; ``appender.py`` says what that is good for.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from icecore.codec.arrow import checked, hash_of_keys
from icecore.codec.columns import now_ms
from icecore.errors import ConfigurationError, InvalidRequestError
from icecore.spark.appender import Appender
from icecore.spark.options import WriteOptions
from icecore.spark.shipping import shipped

TYPES: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "tags": ("array<string>",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "partition": ("int", "bigint"),
}
"""The columns of a DataFrame that is written, and their types."""
BATCH_BYTES: Final = 512 << 10
ROUND_BYTES: Final = 8 << 20
"""Rows are sent whenever so many have come."""
_EPOCHS: Final = 1_000
"""Micro-batches under one producer id: leaders refuse an epoch that is more than 1,024 beyond the
last one, and a partition may get nothing for long."""
_RECORD_BYTES: Final = 24
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """Result of one task."""

    records: int
    duplicates: int
    """Records among them that an earlier attempt had appended."""


def check_schema(schema: StructType, overwrite: bool) -> None:
    """Refuse a DataFrame that can't be written.

    Raises:
        ConfigurationError: A column is unknown or of another type, or there is no ``value``; or
            what is there is to be overwritten.
    """
    if overwrite:
        raise ConfigurationError("a topic can't be overwritten: write with mode append")
    if "value" not in schema.fieldNames():
        raise ConfigurationError("the DataFrame has no column value")
    for field in schema:
        if field.name not in TYPES:
            raise ConfigurationError(
                f"column {field.name} can't be written: columns are {', '.join(TYPES)}. Where a "
                "record lands and when is the topic's to say; drop what else there is"
            )
        given = field.dataType.simpleString()
        if given not in TYPES[field.name]:
            wanted = " or ".join(TYPES[field.name])
            raise ConfigurationError(f"column {field.name} is {given}, and must be {wanted}")


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once.

    Args:
        options: Of the write.
        schema: Of the DataFrame.
        overwrite: Refused.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool = False) -> None:
        check_schema(schema, overwrite)
        self._options = options
        self._schema = schema
        self._id = options.write_id or uuid.uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        named = replace(self._options, write_id=self._id) if self._options.idempotent else None
        return shipped(self, named or self._options, self._schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: the rows of one task."""
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        return _write(self._options, iterator, self._id, number, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, each once.

    Args:
        options: Of the write.
        schema: Of the DataFrame.
        overwrite: Refused.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool = False) -> None:
        check_schema(schema, False)
        if overwrite:
            raise ConfigurationError(
                "only outputMode append is supported: a topic keeps all records"
            )
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self, self._options, self._schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: the rows of one task of one micro-batch.

        Raises:
            ConfigurationError: Spark does not say which query and which batch this is.
        """
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if context is None or not query or not batch:
            raise ConfigurationError("Spark does not say which micro-batch this task belongs to")
        name = self._options.write_id or query
        return _write(self._options, iterator, name, context.partitionId(), int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: a topic takes nothing back; the batch is written to its end when it is run
        again."""


def identity(name: str, task: int, batch_id: int) -> tuple[int, int]:
    """Producer id and epoch of a task.

    The highest bit tells these ids from those that a coordinator counts out.
    """
    text = f"{name}/{batch_id // _EPOCHS}/{task}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return number | 1 << 63, batch_id % _EPOCHS + 1


def _write(
    options: WriteOptions, rows: Iterator[pa.RecordBatch], name: str, task: int, batch_id: int
) -> Written:
    if not options.idempotent:
        name = uuid.uuid4().hex  # each attempt is another producer
    producer_id, producer_epoch = identity(name, task, batch_id)
    appender = Appender(
        options.bootstrap,
        options.topic,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        acks=options.acks,
        codec=options.compression,
    )
    return asyncio.run(_append_all(appender, rows, task))


async def _append_all(appender: Appender, rows: Iterator[pa.RecordBatch], task: int) -> Written:
    try:
        await appender.start()
        cutter = Cutter(appender.partitions, task)
        count = 0
        for batch in rows:
            count += batch.num_rows
            if batch.num_rows and cutter.add(batch) >= ROUND_BYTES:
                await _send(appender, cutter.take())
        await _send(appender, cutter.take(is_last=True))
        return Written(count, appender.duplicates)
    finally:
        await appender.close()


async def _send(appender: Appender, batches: dict[int, list[pa.RecordBatch]]) -> None:
    async def one(partition: int, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            await appender.append(partition, batch)

    async with asyncio.TaskGroup() as group:
        for partition, each in batches.items():
            group.create_task(one(partition, each))


class Cutter:
    """Puts rows into batches of partitions: where one ends depends on the rows alone, and not on
    the batches in which Spark brings them.

    Args:
        partitions: Of the topic.
        task: Its number: rows without a key go to one partition.
    """

    def __init__(self, partitions: int, task: int) -> None:
        self._partitions = partitions
        self._keyless = task % partitions
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows; how many bytes wait.

        Raises:
            InvalidRequestError: A partition does not exist, or a value must not be null.
        """
        partitions = self._partition_of(rows)
        kept = checked(rows, now_ms())
        for partition in np.unique(partitions).tolist():
            mine = kept.filter(pa.array(partitions == partition))
            self._waiting.setdefault(partition, []).append(mine)
        self._bytes += kept.nbytes
        return self._bytes

    def _partition_of(self, rows: pa.RecordBatch) -> Any:
        found = np.full(rows.num_rows, self._keyless, np.int64)
        if "key" in rows.schema.names:
            keys = rows.column("key").cast(pa.binary())
            hashed = (hash_of_keys(keys) >> np.uint64(32)) % np.uint64(self._partitions)
            found = np.where(pc.is_valid(keys).to_numpy(zero_copy_only=False), hashed, found)
        if "partition" in rows.schema.names:
            given = rows.column("partition").cast(pa.int64())
            asked = given.fill_null(-1).to_numpy(zero_copy_only=False)
            found = np.where(pc.is_valid(given).to_numpy(zero_copy_only=False), asked, found)
        wrong = found[(found < 0) | (found >= self._partitions)]
        if len(wrong):
            raise InvalidRequestError(
                f"column partition has {wrong[0]}; the topic has 0 to {self._partitions - 1}"
            )
        return found.astype(np.int64)

    def take(self, *, is_last: bool = False) -> dict[int, list[pa.RecordBatch]]:
        """Batches that are full, and with ``is_last`` what is left of them, by partition."""
        taken: dict[int, list[pa.RecordBatch]] = {}
        for partition, waiting in self._waiting.items():
            rows = waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            full, rest = _cut(rows)
            if is_last and rest.num_rows:
                full, rest = [*full, rest], rest.slice(rest.num_rows)
            taken[partition] = full
            self._waiting[partition] = [rest]
        self._bytes = 0
        return {partition: batches for partition, batches in taken.items() if batches}


def _cut(rows: pa.RecordBatch) -> tuple[list[pa.RecordBatch], pa.RecordBatch]:
    """Whole batches from the front, and the rest: each ends with the row that fills it."""
    ends = np.cumsum(_sizes(rows))
    full: list[pa.RecordBatch] = []
    start, before = 0, 0
    while start < rows.num_rows:
        end = int(np.searchsorted(ends, before + BATCH_BYTES)) + 1
        if end > rows.num_rows:
            break
        full.append(rows.slice(start, end - start))
        start, before = end, int(ends[end - 1])
    return full, rows.slice(start)


def _sizes(rows: pa.RecordBatch) -> Any:
    """Bytes of each row, roughly, and the same for equal rows wherever they are cut."""
    sizes = np.full(rows.num_rows, _RECORD_BYTES, np.int64)
    for name in ("key", "value"):
        if name in rows.schema.names:
            sizes += _lengths(rows.column(name))
    for name in ("tags", "headers"):
        if name in rows.schema.names:
            sizes += _list_lengths(rows.column(name))
    return sizes


def _lengths(column: pa.Array) -> Any:
    found = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _list_lengths(column: pa.Array) -> Any:
    items = column.flatten()
    parts = items.flatten() if pa.types.is_struct(items.type) else [items]
    lengths = sum((_lengths(part) for part in parts), np.zeros(len(items), np.int64))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    lists = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return ends[lists[1:]] - ends[lists[:-1]]
