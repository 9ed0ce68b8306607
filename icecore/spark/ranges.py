"""Part of one Spark task: a range of offsets, sent to an executor and read there as Arrow
batches in Spark's schema.

A range that lies in object storage is read from its objects. What the executor can't reach there
comes through nodes, from the next offset on. There a consumer runs on an event loop in a thread:
while Spark takes one batch, the next one is fetched and decoded. Nodes see plain fetches, so any
replica serves them and a node that dies costs a moment.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.batches import BatchMaker
from icecore.spark.plan import OffsetRange
from icecore.spark.reading import RangeSource, open_range
from icecore.spark.tiered import TieredFile

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own, for as long as a ``with`` lasts."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Run it there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def read_range(
    source: RangeSource, wanted: OffsetRange, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The records of a range.

    Raises:
        UnknownTopicError, TopicRecreatedError: The topic is gone.
        OffsetOutOfRangeError: Records of the range are gone, and ``fail_on_data_loss`` is set.
        IcecoreError: Reading can't go on.
    """
    maker = BatchMaker(schema, source.topic, wanted.partition)
    with LoopThread() as thread:
        reading = thread.start(open_range(source, wanted, maker.names)).result()
        try:
            pending = thread.start(reading.next())
            while batches := pending.result():
                pending = thread.start(reading.next())
                yield maker.make(batches)
        finally:
            pending.cancel()
            thread.start(reading.close()).result()


# --- the part of one task -------------------------------------------------------------------------

# The work of one task, as Spark sends it to an executor.


class RangePartition(InputPartition):
    """One range and where it is read.

    Args:
        source: The topic.
        wanted: The range.
        files: Objects that have all of it; none = nodes are asked.
        url: Prefix of their keys, as Spark names it.
        is_strict: Never ask nodes for what the objects have.
    """

    def __init__(
        self,
        source: RangeSource,
        wanted: OffsetRange,
        files: tuple[TieredFile, ...] = (),
        url: str = "",
        *,
        is_strict: bool = False,
    ) -> None:
        self.source = source
        self.wanted = wanted
        self.files = files
        self.url = url
        self.is_strict = is_strict


def read_part(part: RangePartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The records of a part.

    Raises:
        ConfigurationError, StorageError: An object can't be had, and nodes are not to be asked; or
            one is damaged.
        IcecoreError: As ``read_range``.
    """
    source, wanted = part.source, part.wanted
    if not part.files:
        yield from read_range(source, wanted, schema)
        return
    from icecore.spark.objects.files import read_files
    from icecore.spark.objects.store import warn_of_nodes

    maker = BatchMaker(schema, source.topic, wanted.partition)
    at = wanted.start_offset
    try:
        for found in read_files(part.url, part.files, maker.names, source.keys, source.tags):
            if found.rows.num_rows:
                yield maker.make([found.rows])
            at = found.next_offset
        return
    except FileNotFoundError as error:  # a merge or retention may have taken it away
        if part.is_strict:
            raise StorageError(
                f"an object of {source.topic}/{wanted.partition} does not exist any more: {error}. "
                "Read anew, or hold the topic (asOf)"
            ) from error
    except ConfigurationError as error:
        if part.is_strict:
            raise
        warn_of_nodes(source.topic, error)
    yield from read_range(source, replace(wanted, start_offset=at), schema)
