"""Producer: takes records one by one or in columns, batches them by partition, acknowledges them.

``send`` is a plain call that appends to lists; everything else (hashing aside) happens per batch.
A batch is closed when it is full or ``linger_ms`` after its first record, and then belongs to
``icecore/client/sender.py``.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import xxhash

from icecore.batch import BatchLimits
from icecore.client.batches import (
    RECORD_OVERHEAD_BYTES,
    Batch,
    BatchHandle,
    PartitionQueue,
    Piece,
    SendHandle,
)
from icecore.client.buffer import Buffer
from icecore.client.bulk import Columns, columns_of
from icecore.client.connection import Connection
from icecore.client.metadata import Metadata
from icecore.client.producer_name import producer_name as named
from icecore.client.sender import Sender
from icecore.client.types import RecordMetadata, enum_member
from icecore.columns import KEY_HASH_SEED, Headers
from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InvalidRequestError,
    RecordTooLargeError,
    ThrottledError,
    UnavailableError,
)
from icecore.model import Acks
from icecore.ports import Clock, Net, Rng
from icecore.record import Codec

if TYPE_CHECKING:
    import pyarrow as pa

AcksName: TypeAlias = Literal["all", "quorum", "leader"]
CompressionName: TypeAlias = Literal["none", "lz4", "zstd"]

_RECORD_BYTES_MAX = BatchLimits().record_bytes_max
_hash = xxhash.xxh64_intdigest


class _Topic:
    """Queues of a topic; until its partitions are known, what to do once they are."""

    __slots__ = ("name", "queues", "routing", "sticky", "waiting")

    def __init__(self, name: str, routing: "asyncio.Future[None]") -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky = 0
        self.waiting: deque[tuple[Any, ...]] = deque()
        self.routing = routing


class Producer:
    """Appends records to topics. Use it as ``async with Producer("127.0.0.1:7400") as producer``.

    Retries leave neither duplicates nor gaps nor a changed order within a partition.
    All methods belong to one event loop; ``icecore.blocking.Producer`` is for threads.

    Args:
        bootstrap: Addresses of coordinators, ``host:port``, separated by commas.
        acks: ``all`` in-sync replicas, a ``quorum`` of the replication factor, or the ``leader``.
        compression: Of the payloads: ``none``, ``lz4`` or ``zstd``.
        linger_ms: How long a batch waits for more records.
        batch_bytes: A batch is closed at this size, before compression.
        buffer_bytes: Records that are not acknowledged yet; ``send`` refuses more.
        request_bytes_max: Batches of one request together.
        request_timeout_ms: How long a leader waits for its replicas before it answers TIMEOUT.
        delivery_timeout_ms: From the first record of a batch until it is given up.
        idempotent: Number batches so that leaders recognise repeated ones.
        producer_name: Whoever starts with this name ends all before it: they get PRODUCER_FENCED.
        producer_topics: Topics in which that has happened already when ``start`` returns.
        net: gRPC unless given.
        clock, rng: Of the system unless given.

    Raises:
        ConfigurationError: A value is unknown or out of range.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        acks: AcksName | Acks = "all",
        compression: CompressionName | Codec = "none",
        linger_ms: float = 5,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 64 << 20,
        request_bytes_max: int = 4 << 20,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        idempotent: bool = True,
        producer_name: str = "",
        producer_topics: Sequence[str] = (),
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        if min(linger_ms, batch_bytes - 1, buffer_bytes - 1, delivery_timeout_ms - 1) < 0:
            raise ConfigurationError("sizes and times of a producer must be positive")
        self._connection = Connection(bootstrap, net, clock, rng)
        self._clock = self._connection.clock
        self._metadata = Metadata(self._connection)
        self._buffer = Buffer(self._clock, linger_ms, batch_bytes, buffer_bytes, self._offer)
        self._sender = Sender(
            self._connection,
            self._metadata,
            acks=enum_member(Acks, acks),
            codec=enum_member(Codec, compression),
            idempotent=idempotent,
            name=named(producer_name, producer_topics, idempotent, self._connection.rng),
            request_bytes_max=request_bytes_max,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            on_done=self._buffer.release,
            on_cancelled=self._buffer.abandon,
        )
        self._batch_bytes = batch_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._topics: dict[str, _Topic] = {}
        self._batches_yielded = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to work on the running loop; with a name, take it over first.

        Raises:
            IcecoreError: The name could not be taken within the delivery timeout.
        """
        self._loop = asyncio.get_running_loop()
        self._sender.start(self._buffer.linger())
        self._metadata.watch(self._extend_all)
        try:
            await self._sender.take_name()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Send what is buffered, wait for its outcome, close the connections.

        Raises:
            IcecoreError: As ``flush``; everything is closed all the same.
        """
        if self._loop is None:
            await self._connection.close()
            return
        try:
            await self.flush()
        finally:
            self._loop = None
            await self._sender.close()
            self._buffer.abandon()
            await self._metadata.close()
            await self._connection.close()

    # --- records --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        tags: Sequence[str] = (),
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> SendHandle:
        """Buffer one record; ``await`` the handle for where it landed.

        Does not wait and lets nothing else run: a loop that only sends should use ``send_wait``.

        Args:
            topic: Must exist, or begin to within the delivery timeout.
            value: None is a tombstone.
            key: Records of one key keep their order; None spreads batches over the partitions.
            tags: Labels, indexed.
            headers: Pairs of a name and a nullable value.
            timestamp_ms: Event time since 1970 UTC; now unless given.
            partition: Instead of the one that the key decides.

        Raises:
            ThrottledError: ``buffer_bytes`` are waiting; ``await ready()`` and try again.
            RecordTooLargeError: The record exceeds 1 MiB.
            InvalidRequestError: There is no such partition.
            TypeError: Value or key is not bytes.
        """
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            if type(value) is not bytes:
                raise TypeError(f"a value is bytes or None, not {type(value).__name__}")
            size += len(value)
        key_hash = 0
        if key is not None:
            if type(key) is not bytes:
                raise TypeError(f"a key is bytes or None, not {type(key).__name__}")
            size += len(key)
            key_hash = _hash(key, KEY_HASH_SEED)
        if tags or headers:
            size += _extra_bytes(tags, headers)
        if size > _RECORD_BYTES_MAX:
            raise RecordTooLargeError(f"a record of {size} bytes exceeds {_RECORD_BYTES_MAX}")
        if self._buffer.is_full:
            raise ThrottledError("the producer's buffer is full", retry_after_ms=5)
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        found = self._topics.get(topic) or self._add_topic(topic)
        self._buffer.reserve(size)
        row = (value, key, key_hash, timestamp_ms, tags, headers, size)
        if not found.queues:
            handle = SendHandle(None, 0)
            handle.route_later(found.routing)
            found.waiting.append((self._route_record, handle, partition, row))
            return handle
        try:
            return SendHandle(*self._append(found, partition, row))
        except InvalidRequestError:
            self._buffer.reserve(-size)
            raise

    def _append(
        self, topic: _Topic, partition: int | None, row: tuple[Any, ...]
    ) -> tuple[Batch, int]:
        """Add a record to the open batch of its partition; the batch and its index there."""
        value, key, key_hash, timestamp_ms, tags, headers, size = row
        queues = topic.queues
        if partition is not None:
            if not 0 <= partition < len(queues):
                raise InvalidRequestError(f"{topic.name} has partitions 0 to {len(queues) - 1}")
            queue = queues[partition]
        elif key is None:
            if queues[topic.sticky].open is None and queues[topic.sticky].is_busy:
                self._choose_sticky(topic)  # a new batch would wait for the last one's answer
            queue = queues[topic.sticky]
        else:
            queue = queues[(key_hash >> 32) % len(queues)]
        batch = queue.open
        if batch is None or batch.rows:
            self._buffer.close(queue)
            batch = self._buffer.open(queue)
        index = len(batch.values)
        batch.values.append(value)
        batch.times.append(timestamp_ms)
        if key is not None or batch.keys:
            if len(batch.keys) < index:
                batch.keys.extend([None] * (index - len(batch.keys)))
                batch.hashes.extend([0] * (index - len(batch.hashes)))
            batch.keys.append(key)
            batch.hashes.append(key_hash)
        if tags or headers or batch.tags is not None or batch.headers is not None:
            batch.set_extras(tags, headers)
        batch.size_bytes += size
        if batch.size_bytes >= self._batch_bytes:
            if key is None and partition is None:
                self._choose_sticky(topic)
            self._buffer.close(queue)
        return batch, index

    async def send_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        tags: Sequence[str] = (),
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> SendHandle:
        """As ``send``, but waits for room, and lets requests go out once per full batch."""
        if self._batches_yielded != self._buffer.batches_closed:
            self._batches_yielded = self._buffer.batches_closed
            await asyncio.sleep(0)
        if self._buffer.is_full:
            await self.ready()
        return self.send(
            topic,
            value,
            key=key,
            tags=tags,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
        )

    async def send_and_wait(self, topic: str, value: bytes | None, **kwargs: Any) -> RecordMetadata:
        """Send one record, arguments as ``send``, and wait until it is acknowledged."""
        return await (await self.send_wait(topic, value, **kwargs))

    def send_batch(
        self,
        topic: str,
        values: "Sequence[bytes | None] | pa.RecordBatch",
        *,
        keys: Sequence[bytes | None] | None = None,
        tags: Sequence[Sequence[str]] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps_ms: Any = None,
        partition: int | None = None,
    ) -> BatchHandle:
        """Buffer many records in columns; ``await`` the handle for where they landed.

        Costs per record only where keys must be hashed. Records of one partition keep their order,
        also relative to ``send``.

        Args:
            topic: As in ``send``.
            values: A column, or an Arrow record batch with the columns ``value`` and optionally
                ``key``, ``timestamp_ms`` or ``timestamp``, ``tags``, ``headers``.
            keys: A column; without it records go to one partition after the other, by batches.
            tags: A column of sequences.
            headers: A column of sequences of pairs.
            timestamps_ms: A column of numbers; now unless given.
            partition: For all of them.

        Raises:
            ThrottledError: ``buffer_bytes`` are waiting; ``await ready()`` and try again.
            InvalidRequestError: Columns differ in length, or there is no such partition.
            RecordTooLargeError: A record exceeds 1 MiB.
        """
        if self._buffer.is_full:
            raise ThrottledError("the producer's buffer is full", retry_after_ms=5)
        columns = columns_of(values, keys, tags, headers, timestamps_ms, self._clock.now_ms())
        if columns.largest > _RECORD_BYTES_MAX:
            raise RecordTooLargeError(
                f"a record of {columns.largest} bytes exceeds {_RECORD_BYTES_MAX}"
            )
        found = self._topics.get(topic) or self._add_topic(topic)
        self._buffer.reserve(columns.size_bytes)
        pieces: list[Piece] = []
        if not found.queues:
            handle = BatchHandle(pieces, found.routing)
            found.waiting.append((self._route_columns, pieces, partition, columns))
            return handle
        try:
            self._split(found, partition, columns, pieces)
        except InvalidRequestError:
            self._buffer.reserve(-columns.size_bytes)
            raise
        return BatchHandle(pieces)

    def _split(
        self, topic: _Topic, partition: int | None, columns: Columns, pieces: list[Piece]
    ) -> None:
        """Put columns into batches of their partitions, in order."""
        queues = topic.queues
        if partition is not None and not 0 <= partition < len(queues):
            raise InvalidRequestError(f"{topic.name} has partitions 0 to {len(queues) - 1}")
        parts: list[tuple[int | None, Columns]] = [(partition, columns)]
        if partition is None and columns.hashes is not None:
            parts = list(columns.by_partition(len(queues), topic.sticky))
        for number, part in parts:
            for piece in part.pieces(self._batch_bytes):
                queue = queues[topic.sticky if number is None else number]
                pieces.append(self._buffer.add(queue, piece))
                if number is None and queue.open is None:
                    self._choose_sticky(topic)

    # --- waiting --------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until ``send`` has room again."""
        await self._buffer.wait_for_room()

    async def flush(self) -> None:
        """Send what is buffered and wait for the outcome of all of it.

        Raises:
            IcecoreError: The first failure, since the last flush, of a record nobody awaited.
        """
        routing = {t.routing for t in self._topics.values() if not t.routing.done()}
        if routing:
            await asyncio.wait(routing)
        await self._buffer.drain()

    @property
    def buffered_bytes(self) -> int:
        """Of records whose outcome is open."""
        return self._buffer.used_bytes

    @property
    def lost_acks_leader(self) -> int:
        """How often records acknowledged by a leader alone were found lost with it."""
        return self._sender.lost_acks_leader

    # --- topics ---------------------------------------------------------------------------------

    def _add_topic(self, name: str) -> _Topic:
        if self._loop is None:
            raise UnavailableError("the producer is not started, or closed")
        topic = _Topic(name, self._loop.create_future())
        self._topics[name] = topic
        self._sender.start(self._route(topic))
        return topic

    async def _route(self, topic: _Topic) -> None:
        """Find out the partitions of a topic, then handle what was sent to it meanwhile."""
        timeout_s = self._delivery_timeout_ms / 1000
        failure: IcecoreError | None = None
        try:
            await self._metadata.topic(topic.name, timeout_s=timeout_s)
            self._extend(topic)
        except IcecoreError as error:
            failure = error
            del self._topics[topic.name]  # the next send asks again
        while topic.waiting:
            route, target, partition, what = topic.waiting.popleft()
            try:
                if failure is not None:
                    raise failure
                route(topic, target, partition, what)
            except IcecoreError as error:
                self._fail_unrouted(target, what, error)
        topic.routing.set_result(None)
        if self._buffer.is_full:
            self._buffer.hand_on_all()  # who waits for room began to before there were batches

    def _route_record(
        self, topic: _Topic, handle: SendHandle, partition: int | None, row: tuple[Any, ...]
    ) -> None:
        handle.route(*self._append(topic, partition, row))

    def _route_columns(
        self, topic: _Topic, pieces: list[Piece], partition: int | None, columns: Columns
    ) -> None:
        self._split(topic, partition, columns, pieces)

    def _fail_unrouted(self, target: Any, what: Any, error: IcecoreError) -> None:
        assert self._loop is not None
        batch = Batch(self._clock.monotonic_ms(), self._loop)
        if isinstance(target, SendHandle):
            batch.size_bytes = what[-1]
            target.route(batch, 0)
        else:
            batch.size_bytes = what.size_bytes
            target.append((batch, 0, 0))
        batch.fail(error)
        self._buffer.release(batch)

    def _offer(self, queue: PartitionQueue) -> None:
        self._sender.offer(queue)

    def _extend(self, topic: _Topic) -> None:
        """Queues for partitions that are new; keys then spread over all of them."""
        known = self._metadata.known(topic.name)
        count = 0 if known is None else len(known.partitions)
        if len(topic.queues) < count:
            first = len(topic.queues)
            topic.queues += [PartitionQueue(topic.name, n) for n in range(first, count)]
            self._choose_sticky(topic)

    def _extend_all(self) -> None:
        for topic in self._topics.values():
            if topic.queues:
                self._extend(topic)

    def _choose_sticky(self, topic: _Topic) -> None:
        """The partition of the next batch without keys: any that has a leader."""
        count = len(topic.queues)
        for _ in range(3):
            topic.sticky = int(self._connection.rng.random() * count)
            if self._metadata.leader(topic.name, topic.sticky):
                return


def _extra_bytes(tags: Sequence[str], headers: Headers) -> int:
    total = sum(map(len, tags))
    for name, value in headers:
        total += len(name) + (len(value) if value is not None else 0)
    return total
