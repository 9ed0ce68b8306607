"""Part of one Spark task: a range of offsets, sent to an executor and read there as Arrow
batches in Spark's schema.

The consumer runs on an event loop in a thread: while Spark takes one batch, the next one is fetched
and decoded. Nodes see plain fetches, so any replica serves them and a node that dies costs a
moment.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from icecore.spark.columns import BatchMaker
from icecore.spark.plan import OffsetRange
from icecore.spark.reading import RangeSource, open_range

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
    """One range and where it is read."""

    def __init__(self, source: RangeSource, wanted: OffsetRange) -> None:
        self.source = source
        self.wanted = wanted
