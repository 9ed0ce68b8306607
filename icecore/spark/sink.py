"""Writes DataFrames into topics: what rows become records of which partition, in which batches.

All of that follows from the rows and their order, so that a task which is run again sends the same
batches; ``appender.py`` says what that is good for, and ``division.py`` what keeps tasks of another
attempt from writing rows twice that were divided otherwise then.
"""

import asyncio
import secrets
import uuid
from collections.abc import Iterator
from contextlib import suppress
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

from icecore.blocking import Admin
from icecore.codec.arrow import checked, hash_of_keys
from icecore.codec.columns import now_ms
from icecore.errors import ConfigurationError, IcecoreError, InvalidRequestError
from icecore.spark.appender import Appender
from icecore.spark.division import TaskDivision, position_name
from icecore.spark.identity import identity
from icecore.spark.options import WriteOptions
from icecore.spark.outbox import TaskOutbox
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
FORGET_TIMEOUT_S: Final = 5.0
_RECORD_BYTES: Final = 24
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """Result of one task."""

    records: int
    duplicates: int
    """Records among them that an earlier attempt had appended."""
    uncompared: int = 0
    """Records among the duplicates that leaders remember too little of to compare them."""


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
        attempt: The number of this attempt, which the driver gives and tasks are told.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        overwrite: bool = False,
        attempt: int | None = None,
    ) -> None:
        check_schema(schema, overwrite)
        self._options = options
        self._schema = schema
        self._id = options.write_id or uuid.uuid4().hex
        self._attempt = attempt if attempt is not None else _attempt(options.write_id)

    def __reduce__(self) -> tuple[Any, ...]:
        named = replace(self._options, write_id=self._id) if self._options.idempotent else None
        return shipped(self, named or self._options, self._schema, False, self._attempt)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: the rows of one task."""
        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        return _write(self._options, iterator, self._id, number, 0, self._attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when all is written: leaders say so from now on, and nothing else needs to
        be remembered of a write that has a name."""
        if self._attempt:
            forget(self._options, self._id)


def _attempt(name: str = "-") -> int:
    """Return a number for an attempt that the driver is about to start; 0 for a write without a
    name, which nobody can start again."""
    return secrets.randbits(32) | 1 if name else 0


def forget(options: WriteOptions, name: str) -> None:
    """Let go of what is noted of a write. Where that fails it stays, and does no harm."""
    with suppress(IcecoreError), Admin(options.bootstrap, timeout_s=FORGET_TIMEOUT_S) as admin:
        admin.delete_positions(position_name(name), options.topic)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, each once.

    Args:
        options: Of the write.
        schema: Of the DataFrame.
        overwrite: Refused.
        attempt: The number of this attempt, which the driver gives and tasks are told.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        overwrite: bool = False,
        attempt: int | None = None,
    ) -> None:
        check_schema(schema, False)
        if overwrite:
            raise ConfigurationError(
                "only outputMode append is supported: a topic keeps all records"
            )
        self._options = options
        self._schema = schema
        self._attempt = attempt or _attempt()

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self, self._options, self._schema, False, self._attempt)

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
        number = context.partitionId()
        return _write(self._options, iterator, name, number, int(batch), self._attempt)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: a topic takes nothing back; the batch is written to its end when it is run
        again."""


def _write(
    options: WriteOptions,
    rows: Iterator[pa.RecordBatch],
    name: str,
    task: int,
    batch_id: int,
    attempt: int,
) -> Written:
    """Append the rows of a task.

    Args:
        options: Of the write.
        rows: Of the task.
        name: Of the write.
        task: Its number.
        batch_id: Of the micro-batch.
        attempt: The driver's number of this attempt; 0 = there can be no other one.
    """
    if not options.idempotent:
        name, attempt = uuid.uuid4().hex, 0  # each attempt is another producer
    producer_id, producer_epoch = identity(name, task, batch_id)
    appender = Appender(
        options.bootstrap,
        options.topic,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        acks=options.acks,
        codec=options.compression,
        topic_id=options.topic_id,
    )
    division = TaskDivision(appender.connection, name, attempt) if attempt else None
    return asyncio.run(append_all(appender, rows, task, division))


async def append_all(
    appender: Appender, rows: Iterator[pa.RecordBatch], task: int, division: TaskDivision | None
) -> Written:
    """Append the rows of a task, and close its appender.

    Args:
        appender: Not started yet.
        rows: All of them.
        task: Its number.
        division: What keeps rows from being written twice; None = nothing could write them before.

    Raises:
        SparkTaskChangedError: An earlier attempt has appended other rows.
        IcecoreError: They can't be appended.
    """
    try:
        await appender.start()
        outbox = TaskOutbox(appender, task, division)
        await outbox.start()
        cutter = Cutter(appender.partitions, task)
        count = 0
        for batch in rows:
            count += batch.num_rows
            if batch.num_rows and cutter.add(batch) >= ROUND_BYTES:
                await outbox.send(cutter.take())
        await outbox.send(cutter.take(is_last=True))
        await outbox.finish()
        return Written(count, appender.duplicates, appender.uncompared)
    finally:
        await appender.close()


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
