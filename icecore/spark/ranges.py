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
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from icecore.client import Consumer
from icecore.errors import (
    IcecoreError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnknownTopicError,
)
from icecore.spark.columns import BatchMaker
from icecore.spark.plan import OffsetRange

_T = TypeVar("_T")

BATCH_ROWS: Final = 32_768
"""Rows per batch that Spark takes fastest. Fewer cost more per row; more make rows wait for one
another."""
BATCH_BYTES: Final = 16 << 20
FETCH_BYTES: Final = 4 << 20
STALL_S: Final = 120.0
"""Without a record and without a step forward: somebody has to be told."""


@dataclass(frozen=True, slots=True)
class RangeSource:
    """Source of ranges, with a filter of their records. It is sent to executors."""

    bootstrap: str
    topic: str
    topic_id: bytes
    keys: tuple[bytes, ...]
    tags: tuple[str, ...]
    fail_on_data_loss: bool


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
        reading = thread.start(_open(source, wanted, maker)).result()
        try:
            pending = thread.start(reading.next())
            while (batch := pending.result()) is not None:
                pending = thread.start(reading.next())
                yield batch
        finally:
            pending.cancel()
            thread.start(reading.close()).result()


async def _open(source: RangeSource, wanted: OffsetRange, maker: BatchMaker) -> "_Reading":
    consumer = Consumer(
        source.bootstrap,
        source.topic,
        partitions=[wanted.partition],
        start=wanted.start_offset,
        until=wanted.end_offset,
        on_out_of_range="error" if source.fail_on_data_loss else "earliest",
        keys=source.keys or None,
        tags_any=source.tags or None,
        max_bytes=4 * FETCH_BYTES,
        fetch_bytes=FETCH_BYTES,
    )
    reading = _Reading(source, wanted, maker, consumer)
    await reading.begin()
    return reading


class _Reading:
    """One range on the way, on its loop."""

    def __init__(
        self, source: RangeSource, wanted: OffsetRange, maker: BatchMaker, consumer: Consumer
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._maker = maker
        self._consumer = consumer
        self._batches = consumer.batches(maker.names)

    async def begin(self) -> None:
        """Find the topic, which must be the one that was planned for."""
        source = self._source
        try:
            await self._consumer.start()
        except UnknownTopicError as error:
            raise UnknownTopicError(f"topic {source.topic} does not exist any more") from error
        if self._consumer.topic_id != source.topic_id:
            await self.close()
            raise TopicRecreatedError(
                f"topic {source.topic} was deleted and made again: what was planned is gone"
            )

    async def close(self) -> None:
        await self._consumer.close()

    async def next(self) -> pa.RecordBatch | None:
        """Some rows; None at the end."""
        found: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        while rows < BATCH_ROWS and size_bytes < BATCH_BYTES:
            batch = await self._next_batch()
            if batch is None:
                break
            found.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        return self._maker.make(found) if found else None

    async def _next_batch(self) -> pa.RecordBatch | None:
        """Raises RequestTimeoutError when nothing comes and nothing moves."""
        while True:
            before = self._consumer.position()
            try:
                batch = await asyncio.wait_for(anext(self._batches, None), STALL_S)
            except TimeoutError:
                if self._consumer.position() == before:
                    raise RequestTimeoutError(
                        f"{self._where()}: nothing came for {STALL_S:g} s at offset "
                        f"{before[self._wanted.partition]}"
                    ) from None
                continue
            except OffsetOutOfRangeError as error:
                raise self._lost(error.message, error) from error
            if batch is None:
                self._check_complete()
            return batch

    def _check_complete(self) -> None:
        skipped = self._consumer.skipped_records()[self._wanted.partition]
        if skipped and self._source.fail_on_data_loss:
            raise self._lost(f"{skipped} records were declared lost", None)

    def _lost(self, why: str, error: IcecoreError | None) -> OffsetOutOfRangeError:
        metadata: dict[str, Any] = dict(error.metadata) if error is not None else {}
        return OffsetOutOfRangeError(
            f"{self._where()}: records are gone: {why}; with failOnDataLoss=false what is left is "
            "read",
            **metadata,
        )

    def _where(self) -> str:
        wanted = self._wanted
        return (
            f"{self._source.topic}/{wanted.partition}, offsets {wanted.start_offset} to "
            f"{wanted.end_offset}"
        )


# --- the part of one task -------------------------------------------------------------------------

# The work of one task, as Spark sends it to an executor.


class RangePartition(InputPartition):
    """One range and where it is read."""

    def __init__(self, source: RangeSource, wanted: OffsetRange) -> None:
        self.source = source
        self.wanted = wanted
