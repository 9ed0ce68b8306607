"""Reads a range of offsets for one task: all its records, of the topic that is meant, or an error.

Nothing here knows Spark, so the simulator runs it on its own ports; ``ranges.py`` is what executors
call.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from icecore import client
from icecore.errors import (
    IcecoreError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnknownTopicError,
)
from icecore.rpc.ports import Clock, Net, Rng
from icecore.spark.plan import OffsetRange

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


async def open_range(
    source: RangeSource,
    wanted: OffsetRange,
    columns: Sequence[str],
    *,
    net: Net | None = None,
    clock: Clock | None = None,
    rng: Rng | None = None,
) -> "RangeReading":
    """Begin to read a range, on the loop of the caller.

    Args:
        source: Where.
        wanted: Which.
        columns: To ask for.
        net: Made here unless given.
        clock: Of the system unless given.
        rng: Of the system unless given.

    Raises:
        UnknownTopicError, TopicRecreatedError: The topic is gone.
        IcecoreError: Nobody answered in time.
    """
    consumer = client.Consumer(
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
        net=net,
        clock=clock,
        rng=rng,
    )
    reading = RangeReading(source, wanted, columns, consumer)
    await reading.begin()
    return reading


class RangeReading:
    """One range on the way, on its loop.

    Args:
        source: Where.
        wanted: Which.
        columns: To ask for.
        consumer: Of this range alone.
    """

    def __init__(
        self,
        source: RangeSource,
        wanted: OffsetRange,
        columns: Sequence[str],
        consumer: "client.Consumer",
    ) -> None:
        self._source = source
        self._wanted = wanted
        self._consumer = consumer
        self._batches = consumer.batches(columns)

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
        """Close the connections."""
        await self._consumer.close()

    async def next(self) -> list[pa.RecordBatch]:
        """Batches of the next rows; none at the end.

        Raises:
            OffsetOutOfRangeError: Records of the range are gone, and must not be.
            IcecoreError: Reading can't go on.
        """
        found: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        while rows < BATCH_ROWS and size_bytes < BATCH_BYTES:
            batch = await self._next_batch()
            if batch is None:
                break
            found.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        return found

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
            f"{self._where()}: records are gone: {why}; with failOnDataLoss=false (of a job: "
            "--allow-data-loss) what is left is read",
            **metadata,
        )

    def _where(self) -> str:
        wanted = self._wanted
        return (
            f"{self._source.topic}/{wanted.partition}, offsets {wanted.start_offset} to "
            f"{wanted.end_offset}"
        )
