"""Writes DataFrames into topics, as Spark calls it: in the driver, and on executors for each task.

What a task does with its rows is in ``tasks/rows.py``, which knows nothing of Spark.
"""

import asyncio
import secrets
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from icecore.blocking import Admin
from icecore.errors import ConfigurationError, IcecoreError
from icecore.spark.options import WriteOptions
from icecore.spark.shipping import shipped
from icecore.spark.tasks.appender import Appender, find_topic
from icecore.spark.tasks.division import TaskDivision, position_name
from icecore.spark.tasks.identity import identity
from icecore.spark.tasks.rows import append_all

TYPES: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "tags": ("array<string>",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "partition": ("int", "bigint"),
}
"""The columns of a DataFrame that is written, and their types."""
FORGET_TIMEOUT_S: Final = 5.0
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


class WriteAttempt(NamedTuple):
    """One attempt at a write: all of its tasks are told the same."""

    number: int
    """0 = nobody can start the write again."""
    topic_id: bytes
    """Id of the topic that the driver has found."""


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
        attempt: Which one this is. The driver makes it, and tasks are told.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        overwrite: bool = False,
        attempt: WriteAttempt | None = None,
    ) -> None:
        check_schema(schema, overwrite)
        self._options = options
        self._schema = schema
        self._id = options.write_id or uuid.uuid4().hex
        self._attempt = attempt or new_attempt(options, can_return=bool(options.write_id))

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
        if self._attempt.number:
            forget(self._options, self._id)


def new_attempt(options: WriteOptions, *, can_return: bool) -> WriteAttempt:
    """Begin an attempt, in the driver.

    Args:
        options: Of the write.
        can_return: It has a name, under which it may be started again.

    Raises:
        IcecoreError: There is no such topic, or nobody answered in time.
    """
    topic_id = options.topic_id or asyncio.run(find_topic(options.bootstrap, options.topic))
    return WriteAttempt(secrets.randbits(32) | 1 if can_return else 0, topic_id)


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
        attempt: Which one this is. The driver makes it, and tasks are told.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        overwrite: bool = False,
        attempt: WriteAttempt | None = None,
    ) -> None:
        check_schema(schema, False)
        if overwrite:
            raise ConfigurationError(
                "only outputMode append is supported: a topic keeps all records"
            )
        self._options = options
        self._schema = schema
        self._attempt = attempt or new_attempt(options, can_return=True)

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
    attempt: WriteAttempt,
) -> Written:
    """Append the rows of a task.

    Args:
        options: Of the write.
        rows: Of the task.
        name: Of the write.
        task: Its number.
        batch_id: Of the micro-batch.
        attempt: Which one this is.
    """
    number = attempt.number
    if not options.idempotent:
        name, number = uuid.uuid4().hex, 0  # each attempt is another producer
    producer_id, producer_epoch = identity(name, task, batch_id)
    appender = Appender(
        options.bootstrap,
        options.topic,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        acks=options.acks,
        codec=options.compression,
        topic_id=attempt.topic_id,
    )
    division: TaskDivision | None = None
    if number:
        # Who names the topic's id means the topic that has it, whatever went elsewhere.
        follows = batch_id > 0 and not options.topic_id
        division = TaskDivision(appender.connection, name, number, follows=follows)
    appended = asyncio.run(append_all(appender, rows, task, division))
    return Written(appended.records, appended.duplicates, appended.uncompared)
