"""Producer: takes records one by one or in columns, batches them by partition, acknowledges them.

``send`` is a plain call that appends to lists; everything else (hashing aside) happens per batch.
A batch is closed when it is full or ``linger_ms`` after its first record, and then belongs to
``sender.py``.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from typing import Any, Final, NoReturn, Self, Unpack

import xxhash

from icecore.client import checks
from icecore.client.checks import HeadersLike, record_time_ms
from icecore.client.cluster.connection import Connection
from icecore.client.cluster.metadata import Metadata
from icecore.client.options import filled, stays, takes
from icecore.client.produce.batches import (
    RECORD_OVERHEAD_BYTES,
    BatchHandle,
    OnDelivery,
    Piece,
    SendHandle,
)
from icecore.client.produce.buffer import Buffer, no_room
from icecore.client.produce.bulk import columns_of
from icecore.client.produce.given_columns import ArrowLike, ByteColumn, TimeColumn
from icecore.client.produce.home import Home
from icecore.client.produce.identity import ATTEMPT_S, Identities
from icecore.client.produce.identity import producer_name as named
from icecore.client.produce.limits import RecordParts, why_too_large
from icecore.client.produce.options import ProducerOptions, RecordArguments
from icecore.client.produce.partition_queue import PartitionQueue
from icecore.client.produce.partitioner import Partitioner
from icecore.client.produce.sender import Sender
from icecore.client.produce.topics import Topic, Topics, Waiting
from icecore.client.retries import callback
from icecore.client.types import ProducerMetrics, RecordMetadata, enum_member
from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, BatchLimits
from icecore.codec.columns import KEY_HASH_SEED
from icecore.codec.record import Codec
from icecore.errors import UnavailableError
from icecore.model import Acks
from icecore.process.log import event
from icecore.rpc.ports import Clock, Net, Rng

_FIRST_MS, _LAST_MS = MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS
_NONE: Final[tuple[()]] = ()
"""Tags and headers of most records: there is one empty tuple, so that ``is`` is enough."""
_log = logging.getLogger(__name__)
_hash = xxhash.xxh64_intdigest


@takes(ProducerOptions)
class Producer:
    """Appends records to topics. Use it as ``async with Producer("127.0.0.1:7400") as producer``.

    Retries leave neither duplicates nor gaps nor a changed order within a partition.
    All methods belong to one event loop; ``icecore.blocking.Producer`` is for threads.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        options: Keywords of ``ProducerOptions``.
        net: Made here unless given.
        clock, rng: Of the system unless given.

    Raises:
        ConfigurationError: A value is unknown or out of range.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        chosen = filled(Producer, ProducerOptions, options)
        checks.duration("linger_ms", chosen["linger_ms"], 0)
        checks.duration("delivery_timeout_ms", delivery_ms := chosen["delivery_timeout_ms"], 1)
        self._connection = Connection(
            bootstrap, net, clock, rng, chosen["transport"], chosen["on_retry"]
        )
        self._clock = self._connection.clock
        self._metadata = Metadata(self._connection)
        self._buffer = Buffer(
            self._clock,
            chosen["linger_ms"],
            checks.size_bytes("buffer_bytes", chosen["buffer_bytes"]),
            self._offer,
            self._together,
        )
        is_idempotent = checks.flag("idempotent", chosen["idempotent"])
        self._identities = Identities(
            self._connection,
            self._metadata,
            named(
                chosen["producer_name"],
                chosen["producer_topics"],
                is_idempotent,
                self._connection.rng,
            ),
            idempotent=is_idempotent,
            attempt_s=min(ATTEMPT_S, delivery_ms / 1000),
        )
        request_timeout_ms = checks.milliseconds(
            "request_timeout_ms", chosen["request_timeout_ms"], 1
        )
        self._sender = Sender(
            self._connection,
            self._metadata,
            acks=enum_member(Acks, chosen["acks"]),
            codec=enum_member(Codec, chosen["compression"]),
            idempotent=is_idempotent,
            identities=self._identities,
            request_bytes_max=checks.size_bytes("request_bytes_max", chosen["request_bytes_max"]),
            request_timeout_ms=min(request_timeout_ms, max(1, int(delivery_ms))),
            delivery_timeout_ms=delivery_ms,
            on_done=self._buffer.release,
            on_broken=self._abandon,
        )
        self._topics = self._make_topics(chosen)
        self._known = self._topics.by_name
        self._partitioner = Partitioner(self._topics, self._buffer)
        self._append = self._partitioner.append
        self._delivery_timeout_ms = delivery_ms
        self._batches_yielded = 0
        self._home = Home(self._topics.close)
        self._thread_id, self._is_closed = 0, False

    def _make_topics(self, chosen: Mapping[str, Any]) -> Topics:
        within_s = chosen["delivery_timeout_ms"] / 1000
        return Topics(
            self._metadata,
            self._buffer,
            self._clock,
            self._connection.rng,
            self._sender.start,
            within_s,
            checks.size_bytes("batch_bytes", chosen["batch_bytes"]),
            checks.duration("wait_for_topic_s", chosen["wait_for_topic_s"], 0),
        )

    def __reduce__(self) -> NoReturn:
        raise stays(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to work on the running loop; with a name, take it over first.

        Raises:
            IcecoreError: The name could not be taken within the delivery timeout.
            UnavailableError: The producer is closed.
        """
        if self._is_closed:
            raise UnavailableError("the producer is closed: make another one")
        if self._home.loop is not None:
            return
        self._home.enter()
        self._thread_id = get_ident()
        self._sender.start(self._buffer.linger())
        self._metadata.watch(self._topics.look)
        self._metadata.on_recreated = self._topics.look
        self._topics.open()
        try:
            await self._identities.take_name(self._delivery_timeout_ms)
        except BaseException:
            await self.close()
            raise

    async def close(self, timeout_s: float | None = None) -> None:
        """Refuse further records, wait for the outcome of those buffered, close the connections.

        Args:
            timeout_s: For how long to wait; unless given, until the delivery timeout has ended
                them all. What has no outcome by then is given up: its handles fail.

        Raises:
            TypeError, InvalidRequestError: The timeout is no duration; nothing is closed.
            TimeoutError: Records were given up; everything is closed nevertheless.
            IcecoreError: As ``flush``; everything is closed nevertheless.
        """
        checks.timeout("timeout_s", timeout_s)
        self._home.check()
        self._is_closed = True
        self._topics.close()
        if self._home.loop is None:
            await self._connection.close()
            return
        try:
            await self.flush(timeout_s)
        finally:
            self._home.leave()
            try:
                await self._sender.close()
            finally:  # also when this wait is given up: every handle has an outcome
                self._abandon()
                await self._metadata.close()
                await self._connection.close()

    def _abandon(self) -> None:
        """Nobody sends anything any more: fail what is left, and refuse what comes."""
        self._is_closed = True
        self._topics.close()
        if (count := self._open_records()) > 0:
            event(_log, logging.WARNING, "records_given_up", records=count)
        error = UnavailableError("the producer was closed")
        self._topics.abandon(error)
        self._buffer.abandon(error)

    # --- records --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = _NONE,
        headers: HeadersLike = _NONE,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendHandle:
        """Buffer one record; ``await`` the handle for where it landed.

        Does not wait and lets nothing else run: a loop that only sends should use ``send_wait``.

        Args:
            topic: Must exist, or begin to within the delivery timeout.
            value: None is a tombstone.
            key: Records of one key keep their order; None spreads batches over the partitions.
            tags: Labels, indexed.
            headers: Pairs of a name and a nullable value, or a mapping of such.
            timestamp_ms: Event time since 1970 UTC, an int; now unless given.
            partition: Instead of the one that the key decides.
            on_delivery: Called once, with where the record landed or its error; see ``SendHandle``.

        Raises:
            ThrottledError: ``buffer_bytes`` are waiting; ``await ready()`` and try again.
            RecordTooLargeError: Its topic takes none so large; the handle says so of a new topic.
            TypeError, InvalidRequestError: An argument is wrong; nothing was buffered.
            UnavailableError: The producer is closed.
        """
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            if type(value) is not bytes:
                raise checks.wrong_type("value", value, "bytes or None")
            size += len(value)
        key_hash = 0
        if key is not None:
            if type(key) is not bytes:
                raise checks.wrong_type("key", key, "bytes or None")
            size += len(key)
            key_hash = _hash(key, KEY_HASH_SEED)
        if tags is not _NONE or headers is not _NONE:
            tags, headers, extra = checks.record_labels(tags, headers)
            size += extra
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        elif type(timestamp_ms) is not int or not _FIRST_MS <= timestamp_ms <= _LAST_MS:
            timestamp_ms = record_time_ms(timestamp_ms)
        if partition is not None and type(partition) is not int:
            partition = checks.partition_number(partition)
        if on_delivery is not None or get_ident() != self._thread_id:
            callback("on_delivery", on_delivery)
            self._home.check()
        buffer = self._buffer
        if buffer.used_bytes >= buffer.limit_bytes:
            raise no_room()
        try:
            found = self._known[topic]
        except (KeyError, TypeError):
            found = self._topics.add(topic)
        row = (value, key, key_hash, timestamp_ms, tags, headers, size)
        if found.queues:
            handle = SendHandle(*self._append(found, partition, row))
        else:
            handle = self._send_later(found, partition, row)
        if on_delivery is not None:
            handle.on_delivery(on_delivery)
        return handle

    def _send_later(self, topic: Topic, partition: int | None, row: tuple[Any, ...]) -> SendHandle:
        handle, size = SendHandle(None, 0), row[-1]
        self._partitioner.check(topic, row)
        handle.route_later(topic.routing)

        def route(topic: Topic) -> None:
            handle.route(*self._append(topic, partition, row))

        self._buffer.reserve(size)
        topic.waiting.append(Waiting(route, lambda failed: handle.route(failed, 0), size, 1))
        return handle

    try_send = send
    """The name of this verb that ``icecore.blocking.Producer`` has, too: neither of them waits."""

    async def send_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = _NONE,
        headers: HeadersLike = _NONE,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
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
            on_delivery=on_delivery,
        )

    async def send_and_wait(
        self, topic: str, value: bytes | None, **record: Unpack[RecordArguments]
    ) -> RecordMetadata:
        """Send one record, arguments as ``send``, and wait until it is acknowledged."""
        return await (await self.send_wait(topic, value, **record))

    def send_batch(
        self,
        topic: str,
        values: ByteColumn | ArrowLike,
        *,
        keys: ByteColumn | None = None,
        tags: Sequence[Iterable[str]] | None = None,
        headers: Sequence[HeadersLike] | None = None,
        timestamps_ms: TimeColumn | None = None,
        partition: int | None = None,
    ) -> BatchHandle:
        """Buffer many records in columns; ``await`` the handle for where they landed.

        Costs per record only where keys must be hashed. Records of one partition keep their order,
        also relative to ``send``.

        Args:
            topic: As in ``send``.
            values: A column of bytes or texts; or a table with the columns ``value`` and optionally
                ``key``, ``timestamp_ms`` or ``timestamp``, ``tags``, ``headers``: of Arrow, or of
                anything with ``__arrow_c_stream__``, as pandas, Polars and DuckDB have it.
                Other columns are left out; times without a time zone are UTC.
            keys: A column; without it records go to one partition after the other, each of which
                gets full batches of 1 MiB or more together if there are so many.
            tags: A column of sequences.
            headers: A column of sequences of pairs.
            timestamps_ms: A column of numbers, or of times with time zone; now unless given.
            partition: For all of them.

        Raises:
            ThrottledError: ``buffer_bytes`` are waiting; ``await ready()`` and try again.
            TypeError, InvalidRequestError: Columns differ in length, a value is wrong (the error
                names column, row and type), or there is no such partition.
            RecordTooLargeError: A record exceeds the ``record_bytes_max`` of its topic; none of
                them is sent. While the topic is looked for, the handle says so.
        """
        self._home.check()
        if partition is not None:
            partition = checks.partition_number(partition)
        columns = columns_of(values, keys, tags, headers, timestamps_ms, self._clock.now_ms())
        if self._buffer.is_full:
            raise no_room()
        try:
            found = self._known[topic]
        except (KeyError, TypeError):
            found = self._topics.add(topic)
        pieces: list[Piece] = []
        if found.queues:
            self._partitioner.append_columns(found, partition, columns, pieces)
            return BatchHandle(pieces)
        self._partitioner.check_columns(found, columns)
        kept = columns.copy()

        def route(topic: Topic) -> None:
            self._partitioner.append_columns(topic, partition, kept, pieces)

        self._buffer.reserve(columns.size_bytes)
        size, count = columns.size_bytes, len(columns)
        found.waiting.append(
            Waiting(route, lambda failed: pieces.append((failed, 0, 0)), size, count)
        )
        return BatchHandle(pieces, found.routing)

    # --- waiting --------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until ``send`` has room again."""
        self._home.check()
        await self._buffer.wait_for_room()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what is buffered and wait for the outcome of all of it.

        Args:
            timeout_s: For how long; unless given, until the delivery timeout has ended them all.

        Raises:
            TypeError, InvalidRequestError: The timeout is no duration.
            TimeoutError: Some have no outcome by then. They are sent nevertheless: flush again.
            IcecoreError: The first failure, since the last flush, of a record nobody awaited.
        """
        checks.timeout("timeout_s", timeout_s)
        self._home.check()
        try:
            async with asyncio.timeout(timeout_s):
                if routing := self._topics.routing:
                    await asyncio.wait(routing)
                await self._buffer.drain()
        except TimeoutError:
            what = f"{self._open_records()} records have no outcome after {timeout_s:g} s"
            raise TimeoutError(what) from None

    def _open_records(self) -> int:
        pending = sum(batch.count or len(batch.values) for batch in self._buffer.pending)
        return pending + self._topics.waiting_records

    def metrics(self) -> ProducerMetrics:
        """Return counts of the records so far, and of what is under way."""
        tally, retries = self._buffer.tally, self._connection.retries
        return ProducerMetrics(
            records_acknowledged=tally.records_acknowledged,
            records_failed=tally.records_failed,
            batches_acknowledged=tally.batches_acknowledged,
            bytes_acknowledged=tally.bytes_acknowledged,
            latency_mean_ms=tally.latency_sum_ms / max(1, tally.batches_acknowledged),
            latency_max_ms=tally.latency_max_ms,
            buffered_records=self._open_records(),
            buffered_bytes=self.buffered_bytes,
            requests_under_way=self._sender.requests_under_way,
            retries=retries.count,
            last_retry=retries.last,
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are neither acknowledged nor failed."""
        return self._buffer.used_bytes

    @property
    def lost_acks_leader(self) -> int:
        """Return how often records acknowledged by a leader alone were found lost with it."""
        return self._sender.settling.lost_acks_leader

    def _offer(self, queue: PartitionQueue) -> None:
        self._sender.offer(queue)

    def _together(self, offer_all: Callable[[], None]) -> None:
        self._sender.together(offer_all)


async def limits_of(producer: Producer, topic: str) -> BatchLimits:
    """Limits of a topic, which is looked for if nothing was sent to it; those that no topic exceeds
    when it is not found.

    Raises:
        InvalidTopicNameError, UnavailableError: As ``Producer.send``.
    """
    found = producer._known.get(topic) or producer._topics.add(topic)
    if not found.queues:
        await asyncio.wait({found.routing})
    return found.limits


def check_size(producer: Producer, topic: str, size_bytes: int, record: RecordParts) -> None:
    """Refuse a record that its topic, as last seen, does not take. Any thread may ask.

    Raises:
        RecordTooLargeError: It exceeds ``record_bytes_max``.
    """
    limits = producer._topics.limits_of(topic)
    if size_bytes <= limits.record_bytes_max:
        return
    if (error := why_too_large(limits, *record)) is not None:
        if (loop := producer._home.loop) is not None:
            loop.call_soon_threadsafe(producer._topics.look_again)
        raise error
