"""Consumer: iterates over the records of a topic, one by one or as Arrow batches.

Records of one partition come in order, those of several interleaved batch by batch. Fetching runs
ahead in ``icecore/client/fetcher.py``; batches are decoded when their turn comes.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from icecore.client import checks
from icecore.client.conditions import HeaderValues, selection_of
from icecore.client.connection import Connection
from icecore.client.corrupt import CorruptPolicy, Decoder
from icecore.client.fetcher import Fetcher, OutOfRangePolicy
from icecore.client.metadata import Metadata, topic_recreated
from icecore.client.offsets import OffsetLookup, Position, check_position
from icecore.client.reader import Chunk, Reader
from icecore.codec.record import Record
from icecore.errors import (
    ConfigurationError,
    InvalidRequestError,
    TopicRecreatedError,
    UnavailableError,
)
from icecore.rpc.addresses import Transport
from icecore.rpc.ports import Clock, Net, Rng

if TYPE_CHECKING:
    import pyarrow as pa


RecreatedPolicy: TypeAlias = Literal["fail", "restart"]


@dataclass(slots=True)
class _Decoded:
    """A batch whose turn it is: what is left of its records, at least one."""

    chunk: Chunk
    reader: Reader
    generation: int
    records: deque[Record]

    @property
    def is_void(self) -> bool:
        """Somebody sought another position meanwhile."""
        return self.reader.generation != self.generation


class Consumer:
    """Reads a topic. ``async with Consumer(bootstrap, topic) as consumer: async for record in …``.

    Failures that pass are retried until ``close``; others end the iteration with their error. Who
    gives up waiting for a record, by a timeout or by cancelling, loses none: ask again. All methods
    belong to one event loop; ``icecore.blocking.Consumer`` is for threads.

    Args:
        bootstrap: Addresses of coordinators, ``host:port``, separated by commas.
        topic: Its name; must exist within ``timeout_s``.
        partitions: All unless given, then also those added later, within 90 seconds; without
            ``stop_at_end``.
        start: ``"earliest"``, ``"latest"``, an offset (of every partition), or a time with time
            zone: the first record appended then or later. A partition added later is always read
            from its first record on: all of them came after the consumer began.
        stop_at_end: End the iteration at the high watermarks of the moment when it started.
        on_out_of_range: When an offset is not in the log (any more): raise OffsetOutOfRangeError
            with the valid range in its metadata, or move to an end of it, which
            ``skipped_records`` counts and the log tells.
        on_corrupt: When a batch can't be decoded: raise CorruptBatchError, with ``partition``,
            ``offset`` and ``next_offset`` in its metadata, until a ``seek``; or go on behind it,
            which ``corrupt_batches`` counts and the log tells.
        on_recreated: When the topic is deleted and another one made under its name: ``fail`` with
            TopicRecreatedError, or ``restart`` with the first records of the new one. What was
            fetched of the old one comes first, either way.
        keys: Only records with one of these keys, at most 1,000. By this and the conditions below
            nodes pick the records, and send nothing else; all that are given must hold.
        tags_any: Only records with at least one of these tags, at most 100, as of the other kinds.
        tags_all: Only records with all of these.
        tags_none: Only records with none of these.
        headers: Only records with at least one of these headers, by name and value.
        max_bytes: Of batches that were fetched and not delivered yet, all partitions together.
        fetch_bytes: The same per partition; also what one answer holds per partition.
        max_wait_ms: How long a node holds a fetch back at most when there is no data: half a second
            at first, twice as long whenever nothing came.
        timeout_s: Seconds to find the topic and the start offsets.
        transport: ``auto`` = native to nodes that have it, ``grpc`` = never. Unless given, the
            environment says so: ``ICECORE_CLIENT__TRANSPORT``.
        net: Made here unless given.
        clock: Of the system unless given.
        rng: Of the system unless given.

    Raises:
        ConfigurationError: A value is unknown or out of range.
        InvalidRequestError: There are too many keys, tags or headers, or one of them is empty.
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
        on_recreated: RecreatedPolicy = "fail",
        keys: Iterable[bytes] | None = None,
        tags_any: Iterable[str] | None = None,
        tags_all: Iterable[str] | None = None,
        tags_none: Iterable[str] | None = None,
        headers: HeaderValues | None = None,
        max_bytes: int = 16 << 20,
        fetch_bytes: int = 1 << 20,
        max_wait_ms: int = 5_000,
        timeout_s: float = 30.0,
        transport: Transport | None = None,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        if on_out_of_range not in ("error", "earliest", "latest"):
            raise ConfigurationError(f"on_out_of_range is no policy: {on_out_of_range!r}")
        if on_recreated not in ("fail", "restart"):
            raise ConfigurationError(f"on_recreated is fail or restart, not {on_recreated!r}")
        checks.topic_name(topic)
        checks.duration("timeout_s", timeout_s, 0, checks.DURATION_MS_MAX / 1000)
        check_position(start)
        self._connection = Connection(bootstrap, net, clock, rng, transport)
        self._metadata = Metadata(self._connection)
        self._lookup = OffsetLookup(self._connection, self._metadata, topic, timeout_s=timeout_s)
        self._decoder = Decoder(topic, on_corrupt)
        self._selection = selection_of(
            keys=keys, tags_any=tags_any, tags_all=tags_all, tags_none=tags_none, headers=headers
        )
        self._topic = topic
        self._wanted = checks.partitions(partitions)
        self._start: Position = start
        self._stop_at_end = checks.flag("stop_at_end", stop_at_end)
        self._on_recreated = on_recreated
        self._timeout_s = timeout_s
        self._fetcher = Fetcher(
            self._connection,
            self._metadata,
            topic,
            self._selection,
            fetch_bytes=checks.size_bytes("fetch_bytes", fetch_bytes, checks.UINT32_MAX),
            buffer_bytes=checks.size_bytes("max_bytes", max_bytes),
            max_wait_ms=checks.milliseconds("max_wait_ms", max_wait_ms, 0),
            on_out_of_range=on_out_of_range,
        )
        self._current: _Decoded | None = None
        self._is_started = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Find the start offsets and begin to fetch. A consumer that could not is closed.

        Raises:
            UnknownTopicError: There is no such topic.
            InvalidRequestError: There is no such partition, or the start has no time zone.
            UnavailableError: The consumer is closed.
            IcecoreError: The cluster did not answer in time.
        """
        if self._fetcher.is_closed:
            raise UnavailableError("the consumer is closed: make another one")
        if self._is_started:
            return
        try:
            await self._begin(self._start)
        except BaseException:
            await self.close()
            raise
        self._is_started = True
        self._metadata.watch(self._look)

    async def _begin(self, start: Position) -> None:
        """Read the topic of the name as it is now, from ``start`` on."""
        topic = await self._metadata.topic(self._topic, timeout_s=self._timeout_s, is_fresh=True)
        if topic.topic_id == self._fetcher.topic_id:
            return  # somebody else who waits for records has been here
        lookup = OffsetLookup(
            self._connection, self._metadata, self._topic, timeout_s=self._timeout_s
        )
        lookup.topic_id = topic.topic_id
        count = len(topic.partitions)
        partitions = range(count) if self._wanted is None else self._wanted
        if any(partition >= count for partition in partitions):
            raise InvalidRequestError(f"{self._topic} has partitions 0 to {count - 1}")
        readers = await asyncio.gather(
            *(self._find_reader(lookup, partition, start) for partition in partitions)
        )
        if topic.topic_id != self._fetcher.topic_id:
            self._lookup = lookup
            self._fetcher.begin(topic.topic_id, readers)

    async def _find_reader(self, lookup: OffsetLookup, partition: int, start: Position) -> Reader:
        end_offset = None
        if self._stop_at_end:
            end_offset = (await lookup.find(partition, "latest")).offset
        first = (await lookup.find(partition, start)).offset
        reader = Reader(partition, first, end_offset)
        reader.is_from_start = start == "earliest"
        return reader

    def _look(self) -> None:
        """The cluster may have changed."""
        if self._wanted is None and not self._stop_at_end:
            self._read_added()
        self._fetcher.look()  # which also notices that the topic is another one

    def _read_added(self) -> None:
        """Read the partitions that the topic did not have yet, all that they hold."""
        known = self._metadata.known(self._topic)
        if known is None or known.topic_id != self._fetcher.topic_id:
            return  # made again under the same name: another one
        readers = self._fetcher.readers
        added = [p for p in known.partitions if p.partition not in readers]
        if added:
            found = {p.partition: Reader(p.partition, p.log_start_offset, None) for p in added}
            self._fetcher.readers = readers | found  # a thread may be going over the old ones

    async def close(self) -> None:
        """Stop fetching and close the connections; running iterations end."""
        await self._fetcher.close()
        await self._metadata.close()
        await self._connection.close()

    # --- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        """The next record. Nothing is taken before the last await, so cancelling loses nothing."""
        current = self._current
        if current is None or current.reader.generation != current.generation:
            current = await self._load()
            if current is None:
                raise StopAsyncIteration
        record = current.records.popleft()
        if not current.records:
            self._current = None
        current.reader.delivered = record.offset + 1
        return record

    async def poll(self, timeout_s: float = 1.0, max_records: int = 10_000) -> list[Record]:
        """The next records of one partition, at most ``max_records``.

        Args:
            timeout_s: How long to wait for the first; the list is empty after that, and at the end
                with ``stop_at_end``.
            max_records: At least 1.

        Raises:
            TypeError, InvalidRequestError: An argument is of a wrong type or out of range.
            IcecoreError: Reading cannot go on.
        """
        limit_s = checks.DURATION_MS_MAX / 1000
        checks.duration("timeout_s", timeout_s, 0, limit_s, InvalidRequestError)
        checks.whole("max_records", max_records, 1, checks.SIZE_BYTES_MAX)
        try:
            async with asyncio.timeout(timeout_s):
                current = await self._load()
        except TimeoutError:
            return []
        if current is None:
            return []
        if max_records < len(current.records):
            records = [current.records.popleft() for _ in range(max_records)]
        else:
            records, self._current = list(current.records), None
        current.reader.delivered = records[-1].offset + 1
        return records

    def batches(self) -> "AsyncIterator[pa.RecordBatch]":
        """Arrow record batches: offset, timestamp, append_timestamp, key, value, tags, headers.

        Their schema metadata hold ``topic`` and ``partition``. Needs pyarrow.
        """
        return _ArrowBatches(self)

    async def _next_rows(self) -> "pa.RecordBatch | None":
        """The next Arrow batch; None at the end."""
        while True:
            current, self._current = self._current, None
            if current is not None and not current.is_void:
                chunk, first_offset = current.chunk, current.records[0].offset
            else:
                found = await self._next_chunk()
                if found is None:
                    return None
                chunk, first_offset = found, found.from_offset
            rows = self._rows(chunk, first_offset)
            chunk.reader.delivered = chunk.header.end_offset
            if rows is not None:
                return rows

    def _rows(self, chunk: Chunk, first_offset: int) -> "pa.RecordBatch | None":
        import pyarrow as pa

        from icecore.codec.arrow import record_batch

        reader, columns = chunk.reader, self._decoder.decode(chunk)
        if columns is None:
            return None
        start, end = 0, len(columns)
        if first_offset > chunk.header.base_offset:
            start = int(columns.offsets.searchsorted(first_offset))
        if reader.end_offset is not None:
            end = int(columns.offsets.searchsorted(reader.end_offset))
        if end <= start:
            return None
        rows = record_batch(columns, self._topic, reader.partition)
        rows = rows if end - start == len(columns) else rows.slice(start, end - start)
        if self._selection.is_empty:
            return rows
        rows = rows.filter(pa.array(self._selection.matches(columns)[start:end]))
        return rows if rows.num_rows else None

    @property
    def corrupt_batches(self) -> int:
        """With ``on_corrupt="skip"``: how many batches were passed over."""
        return self._decoder.skipped

    @property
    def is_at_end(self) -> bool:
        """With ``stop_at_end``: whether all has been delivered."""
        return self._current is None and self._fetcher.is_exhausted

    async def _load(self) -> _Decoded | None:
        """The batch whose turn it is, also in ``_current``; None at the end."""
        while True:
            if self._current is not None:
                if not self._current.is_void:
                    return self._current
                self._current = None
            chunk = await self._next_chunk()
            if chunk is None:
                return None
            columns = self._decoder.decode(chunk)
            if columns is None:
                continue
            reader, partition = chunk.reader, chunk.reader.partition
            records = columns.to_records(chunk.from_offset, topic=self._topic, partition=partition)
            if not self._selection.is_empty:  # a node may pass on batches as they are
                mask = self._selection.matches(columns)[len(columns) - len(records) :]
                records = [each for each, is_wanted in zip(records, mask, strict=True) if is_wanted]
            if reader.end_offset is not None and chunk.header.end_offset > reader.end_offset:
                records = [record for record in records if record.offset < reader.end_offset]
            if records:
                self._current = _Decoded(chunk, reader, chunk.generation, deque(records))
            else:
                reader.delivered = chunk.header.end_offset

    async def _next_chunk(self) -> Chunk | None:
        if not self._is_started:
            raise UnavailableError("the consumer is not started")
        self._decoder.check()
        fetcher = self._fetcher
        await fetcher.give_turn()
        while True:
            if (chunk := fetcher.take()) is not None:
                return chunk  # with no await in between: a caller's timeout must not lose it
            if fetcher.is_exhausted:
                return None
            failure = fetcher.failure
            if isinstance(failure, TopicRecreatedError) and self._on_recreated == "restart":
                with suppress(TopicRecreatedError):  # yet another one
                    await self._begin("earliest")
                continue
            if failure is not None:
                raise failure
            fetcher.news.clear()
            await fetcher.news.wait()

    # --- positions ------------------------------------------------------------------------------

    def position(self) -> dict[int, int]:
        """By partition, the offset from which on records are still to be delivered."""
        current = None if self._current is None else self._current.reader
        return {
            number: reader.delivered if reader is current else reader.drained_through
            for number, reader in self._fetcher.readers.items()
        }

    def skipped_records(self) -> dict[int, int]:
        """By partition, how many records were passed over because they are gone: deleted, by
        retention or by people (see ``on_out_of_range``), or declared lost. The log names them."""
        return {number: reader.skipped_records for number, reader in self._fetcher.readers.items()}

    def high_watermarks(self) -> dict[int, int]:
        """By partition, the highest one seen in an answer; 0 before the first."""
        return {number: reader.high_watermark for number, reader in self._fetcher.readers.items()}

    async def seek(self, partition: int, position: Position) -> None:
        """Deliver from ``position`` on. A failure of this partition is forgotten.

        Raises:
            TypeError, InvalidRequestError: The consumer does not read this partition, or it is no
                position.
            TopicRecreatedError: The topic is another one by now.
            IcecoreError: The position could not be looked up.
        """
        reader = self._fetcher.readers.get(checks.partition_number(partition))
        if reader is None:
            raise InvalidRequestError(f"partition {partition} is not read here")
        lookup = self._lookup
        offset = (await lookup.find(partition, position)).offset
        if reader.is_left:  # what was fetched of it still counts
            raise topic_recreated(self._topic, lookup.topic_id, self._fetcher.topic_id)
        reader.move_to(offset)
        self._fetcher.look()


class _ArrowBatches:
    """The batches of a consumer. One ``anext`` that is given up ends nothing, and loses nothing."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "pa.RecordBatch":
        rows = await self._consumer._next_rows()
        if rows is None:
            raise StopAsyncIteration
        return rows
