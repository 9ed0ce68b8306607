"""Consumer: iterates over the records of a topic, one by one or as Arrow batches.

Records of one partition come in order, those of several interleaved batch by batch. Fetching runs
ahead in ``icecore/client/fetcher.py``; batches are decoded when their turn comes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Self

from icecore.client.connection import Connection
from icecore.client.corrupt import CorruptPolicy, Decoder
from icecore.client.fetcher import Chunk, Fetcher, OutOfRangePolicy, Reader
from icecore.client.metadata import Metadata
from icecore.client.offsets import OffsetLookup, Position
from icecore.client.types import TopicMetadata
from icecore.errors import ConfigurationError, InvalidRequestError, UnavailableError
from icecore.ports import Clock, Net, Rng
from icecore.record import Record

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer:
    """Reads a topic. ``async with Consumer(bootstrap, topic) as consumer: async for record in …``.

    Failures that pass are retried until ``close``; others end the iteration with their error. All
    methods belong to one event loop; ``icecore.blocking.Consumer`` is for threads.

    Args:
        bootstrap: Addresses of coordinators, ``host:port``, separated by commas.
        topic: Its name; must exist within ``timeout_s``.
        partitions: All unless given, then also those added later, within 90 seconds; without
            ``stop_at_end``.
        start: ``"earliest"``, ``"latest"``, an offset (of every partition), or a time with time
            zone: the first record appended then or later. A partition added later is always read
            from its first record on: all of them came after the consumer began.
        stop_at_end: End the iteration at the high watermarks of the moment when it started.
        on_out_of_range: When an offset is not in the log (any more): raise, or move to an end.
        on_corrupt: When a batch can't be decoded: raise CorruptBatchError, with ``partition``,
            ``offset`` and ``next_offset`` in its metadata, until a ``seek``; or go on behind it,
            which ``corrupt_batches`` counts and the log tells.
        max_bytes: Of batches that lie in store, all partitions together.
        fetch_bytes: The same per partition; also what one answer holds per partition.
        max_wait_ms: How long a node holds a fetch back when there is no data.
        timeout_s: Seconds to find the topic and the start offsets.
        net: gRPC unless given.
        clock: Of the system unless given.
        rng: Of the system unless given.

    Raises:
        ConfigurationError: A value is unknown or out of range.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        stop_at_end: bool = False,
        on_out_of_range: OutOfRangePolicy = "error",
        on_corrupt: CorruptPolicy = "fail",
        max_bytes: int = 16 << 20,
        fetch_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        timeout_s: float = 30.0,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        if on_out_of_range not in ("error", "earliest", "latest"):
            raise ConfigurationError(f"on_out_of_range is no policy: {on_out_of_range!r}")
        if min(max_bytes, fetch_bytes) < 1 or max_wait_ms < 0:
            raise ConfigurationError("sizes and times of a consumer must be positive")
        self._connection = Connection(bootstrap, net, clock, rng)
        self._metadata = Metadata(self._connection)
        self._lookup = OffsetLookup(self._connection, self._metadata, topic, timeout_s=timeout_s)
        self._decoder = Decoder(topic, on_corrupt)
        self._topic = topic
        self._wanted = partitions
        self._start: Position = start
        self._stop_at_end = stop_at_end
        self._timeout_s = timeout_s
        self._fetcher = Fetcher(
            self._connection,
            self._metadata,
            topic,
            fetch_bytes=fetch_bytes,
            buffer_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            on_out_of_range=on_out_of_range,
        )
        self._current: tuple[Reader, int, Iterator[Record]] | None = None
        self._fetches_yielded = 0
        self._is_started = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Find the start offsets and begin to fetch.

        Raises:
            UnknownTopicError: There is no such topic.
            InvalidRequestError: There is no such partition, or the start has no time zone.
            IcecoreError: The cluster did not answer in time.
        """
        topic = await self._metadata.topic(self._topic, timeout_s=self._timeout_s)
        count = len(topic.partitions)
        partitions = list(range(count) if self._wanted is None else dict.fromkeys(self._wanted))
        if any(not 0 <= partition < count for partition in partitions):
            raise InvalidRequestError(f"{self._topic} has partitions 0 to {count - 1}")
        readers = await asyncio.gather(*map(self._find_reader, partitions))
        self._fetcher.readers = {reader.partition: reader for reader in readers}
        self._is_started = True
        self._fetcher.dispatch()
        if self._wanted is None and not self._stop_at_end:
            self._metadata.watch(lambda: self._read_added(topic))

    async def _find_reader(self, partition: int) -> Reader:
        end_offset = None
        if self._stop_at_end:
            end_offset = (await self._lookup.find(partition, "latest")).offset
        first = (await self._lookup.find(partition, self._start)).offset
        return Reader(partition, first, end_offset)

    def _read_added(self, topic: TopicMetadata) -> None:
        """Read the partitions that ``topic`` did not have yet, all that they hold."""
        known = self._metadata.known(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            return  # made again under the same name: another one
        readers = self._fetcher.readers
        added = [p for p in known.partitions if p.partition not in readers]
        if added:
            found = {p.partition: Reader(p.partition, p.log_start_offset, None) for p in added}
            self._fetcher.readers = readers | found  # a thread may be going over the old ones
            self._fetcher.dispatch()

    async def close(self) -> None:
        """Stop fetching and close the connections; running iterations end."""
        await self._fetcher.close()
        await self._metadata.close()
        await self._connection.close()

    # --- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Record]:
        while await self._load():
            assert self._current is not None
            reader, generation, records = self._current
            for record in records:
                reader.delivered = record.offset + 1
                yield record
                if reader.generation != generation:
                    break
            else:
                self._current = None

    async def poll(self, timeout_s: float = 1.0, max_records: int = 10_000) -> list[Record]:
        """The next records of one partition, at most ``max_records``.

        Args:
            timeout_s: How long to wait for the first; the list is empty after that, and at the end
                with ``stop_at_end``.
            max_records: At least 1.

        Raises:
            IcecoreError: Reading cannot go on.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if not await self._load():
                    return []
        except TimeoutError:
            return []
        assert self._current is not None
        reader, _, iterator = self._current
        records = list(islice(iterator, max_records))
        if len(records) < max_records:
            self._current = None
        if records:
            reader.delivered = records[-1].offset + 1
        return records

    async def batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Arrow record batches: offset, timestamp, append_timestamp, key, value, tags, headers.

        Their schema metadata hold ``topic`` and ``partition``. Needs pyarrow.
        """
        if self._current is not None:
            reader, generation, _ = self._current
            if reader.generation == generation:
                await self.seek(reader.partition, reader.delivered)
        from icecore.arrow import record_batch

        while (chunk := await self._next_chunk()) is not None:
            reader = chunk.reader
            columns = self._decoder.decode(chunk)
            if columns is None:
                continue
            start, end = 0, len(columns)
            if chunk.from_offset > chunk.header.base_offset:
                start = int(columns.offsets.searchsorted(chunk.from_offset))
            if reader.end_offset is not None:
                end = int(columns.offsets.searchsorted(reader.end_offset))
            reader.delivered = chunk.header.end_offset
            if end > start:
                rows = record_batch(columns, self._topic, reader.partition)
                yield rows if end - start == len(columns) else rows.slice(start, end - start)

    @property
    def corrupt_batches(self) -> int:
        """With ``on_corrupt="skip"``: how many batches were passed over."""
        return self._decoder.skipped

    @property
    def is_at_end(self) -> bool:
        """With ``stop_at_end``: whether all has been delivered."""
        return self._current is None and self._fetcher.is_exhausted

    async def _load(self) -> bool:
        """Have records in ``_current``; False at the end."""
        while True:
            if self._current is not None:
                reader, generation, _ = self._current
                if reader.generation == generation:
                    return True
                self._current = None
            chunk = await self._next_chunk()
            if chunk is None:
                return False
            columns = self._decoder.decode(chunk)
            if columns is None:
                continue
            reader, partition = chunk.reader, chunk.reader.partition
            records = columns.to_records(chunk.from_offset, topic=self._topic, partition=partition)
            if reader.end_offset is not None and chunk.header.end_offset > reader.end_offset:
                records = [record for record in records if record.offset < reader.end_offset]
            if records:
                self._current = (reader, chunk.generation, iter(records))
            else:
                reader.delivered = chunk.header.end_offset

    async def _next_chunk(self) -> Chunk | None:
        if not self._is_started:
            raise UnavailableError("the consumer is not started")
        self._decoder.check()
        fetcher = self._fetcher
        if self._fetches_yielded != fetcher.started:
            # Who only iterates over what is in store would never let the next fetch go out.
            self._fetches_yielded = fetcher.started
            await asyncio.sleep(0)
        while True:
            if (chunk := fetcher.take()) is not None:
                return chunk  # with no await in between: a caller's timeout must not lose it
            if fetcher.failure is not None:
                raise fetcher.failure
            if fetcher.is_exhausted:
                return None
            fetcher.news.clear()
            await fetcher.news.wait()

    # --- positions ------------------------------------------------------------------------------

    def position(self) -> dict[int, int]:
        """By partition, the offset of the next record to be delivered."""
        return {number: reader.delivered for number, reader in self._fetcher.readers.items()}

    def high_watermarks(self) -> dict[int, int]:
        """By partition, the highest one seen in an answer; 0 before the first."""
        return {number: reader.high_watermark for number, reader in self._fetcher.readers.items()}

    async def seek(self, partition: int, position: Position) -> None:
        """Deliver from ``position`` on. A failure of this partition is forgotten.

        Raises:
            InvalidRequestError: The consumer does not read this partition.
            IcecoreError: The position could not be looked up.
        """
        reader = self._fetcher.readers.get(partition)
        if reader is None:
            raise InvalidRequestError(f"partition {partition} is not read here")
        offset = (await self._lookup.find(partition, position)).offset
        reader.move_to(offset)
        self._fetcher.dispatch()
