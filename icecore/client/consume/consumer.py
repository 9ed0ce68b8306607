"""Consumer: iterates over the records of topics, one by one or as Arrow batches.

Records of one partition come in order, those of several interleaved batch by batch. What is read
is kept up to date in ``subscription.py``; fetching runs ahead in ``fetcher.py``; batches are handed
out by ``delivery.py``; how far they were, ``position_saver.py`` saves.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn, Self, Unpack

from icecore.client import checks
from icecore.client.cluster.connection import Connection
from icecore.client.cluster.metadata import Metadata
from icecore.client.cluster.offsets import Position
from icecore.client.conditions import selection_of
from icecore.client.consume.decoder import Decoder
from icecore.client.consume.delivery import Delivery
from icecore.client.consume.fetcher import Fetcher
from icecore.client.consume.options import ConsumerOptions
from icecore.client.consume.position_saver import PositionSaver
from icecore.client.consume.reader import Reader
from icecore.client.consume.saved_positions import SavedPositions, check_name
from icecore.client.consume.subscription import Range, Subscription, topics_of
from icecore.client.options import filled, stays, takes
from icecore.codec.record import Record
from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.extras import explained
from icecore.rpc.ports import Clock, Net, Rng

if TYPE_CHECKING:
    import pyarrow as pa


_START_GRACE_S: Final = 0.1
"""So that a question which ends with the start says why itself."""
_SAVE_LEAST_S: Final = 0.1


@takes(ConsumerOptions)
class Consumer:
    """Reads topics. ``async with Consumer(bootstrap, topic) as consumer: async for record in …``.

    With ``position="name"`` the cluster keeps how far it has come: the next consumer of that name
    goes on there. Every record is delivered at least once. One counts as processed when the next
    one is asked for; of a consumer that ends otherwise than by ``close`` or a clean end of ``async
    with``, what came after the last save comes again. Who asks from several tasks saves by hand.

    Failures that pass are retried until ``close``; others end the iteration with their error. Who
    gives up waiting for a record, by a timeout or by cancelling, loses none: ask again. All methods
    belong to one event loop; ``icecore.blocking.Consumer`` is for threads.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        topic: Its name; must exist within ``timeout_s``.
        options: Keywords of ``ConsumerOptions``.
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
        topic: str | None = None,
        *,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        chosen = filled(Consumer, ConsumerOptions, options)
        _check_policies(chosen["on_out_of_range"], chosen["on_recreated"])
        subscribed = topics_of(topic, chosen["topics"], chosen["pattern"])
        checks.duration("timeout_s", chosen["timeout_s"], 0, checks.DURATION_MS_MAX / 1000)
        self._wanted = Range(
            chosen["start"],
            checks.flag("stop_at_end", chosen["stop_at_end"]),
            chosen["until"],
            checks.partitions(chosen["partitions"]),
        )
        self._wanted.check()
        self._connection = Connection(
            bootstrap, net, clock, rng, chosen["transport"], chosen["on_retry"]
        )
        self._metadata = Metadata(self._connection)
        self._on_recreated = chosen["on_recreated"]
        self._timeout_s = chosen["timeout_s"]
        selection = selection_of(
            keys=chosen["keys"],
            tags_any=chosen["tags_any"],
            tags_all=chosen["tags_all"],
            tags_none=chosen["tags_none"],
            headers=chosen["headers"],
        )
        self._fetcher = Fetcher(
            self._connection,
            self._metadata,
            selection,
            fetch_bytes=checks.size_bytes("fetch_bytes", chosen["fetch_bytes"], checks.UINT32_MAX),
            buffer_bytes=checks.size_bytes("max_bytes", chosen["max_bytes"]),
            max_wait_ms=checks.milliseconds("max_wait_ms", chosen["max_wait_ms"], 0),
            on_out_of_range=chosen["on_out_of_range"],
            is_endless=self._wanted.is_endless,
        )
        self._decoder = Decoder(chosen["on_corrupt"])
        self._delivery = Delivery(
            self._fetcher, self._decoder, selection, self._check, self._recover
        )
        self.hand = self._delivery.hand
        """Records handed out that the program may not have processed yet."""
        saved = self._saved_positions(chosen["position"], chosen["save_interval_s"])
        self.saver = self._make_saver(saved, chosen["save_interval_s"])
        """None without a saved position."""
        ports = (self._connection, self._metadata, self._fetcher)
        self._subscription = Subscription(
            *ports,
            subscribed,
            self._wanted,
            saved,
            chosen["timeout_s"],
            checks.duration("wait_for_topic_s", chosen["wait_for_topic_s"], 0),
        )
        self._is_started = False

    def _saved_positions(self, name: str | None, interval_s: float | None) -> SavedPositions | None:
        if name is None:
            return None
        checked = check_name(checks.text("position", name))
        return SavedPositions(
            self._connection, checked, self._timeout_s, takes_over=interval_s is not None
        )

    def _make_saver(
        self, saved: SavedPositions | None, interval_s: float | None
    ) -> PositionSaver | None:
        if interval_s is not None:
            limit_s = checks.DURATION_MS_MAX / 1000
            checks.duration("save_interval_s", interval_s, _SAVE_LEAST_S, limit_s)
        if saved is None:
            return None
        news = self._fetcher.news
        return PositionSaver(saved, self._delivery.delivered, self.hand, interval_s, news.set)

    def __reduce__(self) -> NoReturn:
        raise stays(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: object, _: object) -> None:
        if error is None:
            await self.close()
            return
        try:
            await close_holding(self)
        except IcecoreError as failure:
            assert isinstance(error, BaseException)
            error.add_note(f"the position was not saved: {failure}")

    async def start(self) -> None:
        """Find the start offsets and begin to fetch. A consumer that could not is closed.

        Raises:
            UnknownTopicError: There is no such topic.
            InvalidRequestError: There is no such partition, or the start has no time zone.
            PositionConflictError: Another consumer of that name started at the same time.
            UnavailableError: The consumer is closed.
            IcecoreError: The cluster did not answer in time.
        """
        check_reads(self)
        if self._is_started:
            return
        try:
            async with asyncio.timeout(self._timeout_s + _START_GRACE_S):
                await self._subscription.start()
                if self.saver is not None:
                    await self.saver.start(is_from_start=self._wanted.start == "earliest")
        except TimeoutError:
            await self._stop()
            raise RequestTimeoutError(
                f"{self._subscription.topics.label}: the start offsets were not found within "
                f"{self._timeout_s:g} s"
            ) from None
        except BaseException:
            await self._stop()
            raise
        self._is_started = True

    async def close(self) -> None:
        """Save the position, if it is saved by itself; what was handed out counts as processed.
        Stop fetching and close the connections; running iterations end.

        Raises:
            IcecoreError: The position could not be saved. All is closed nevertheless.
        """
        self.hand.held = None
        await close_holding(self)

    async def _stop(self) -> None:
        await self._subscription.close()
        await self._fetcher.close()
        await self._metadata.close()
        await self._connection.close()

    # --- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record]:
        check_reads(self)
        return self

    async def __anext__(self) -> Record:
        """The next record. Nothing is taken before the last await, so cancelling loses nothing."""
        delivery = self._delivery
        current = delivery.current
        if current is None or current.reader.generation != current.generation:
            current = await delivery.load()
            if current is None:
                raise StopAsyncIteration
        return delivery.pop(current)

    async def poll(self, timeout_s: float = 1.0, max_records: int = 10_000) -> list[Record]:
        """The next records of one partition, at most ``max_records``.

        Args:
            timeout_s: How long to wait for the first; the list is empty after that, and at the end
                with ``stop_at_end``.
            max_records: At least 1.

        Raises:
            TypeError, InvalidRequestError: An argument is of a wrong type or out of range.
            UnavailableError: The consumer is closed.
            IcecoreError: Reading cannot go on.
        """
        check_poll(timeout_s, max_records)
        check_reads(self)
        try:
            async with asyncio.timeout(timeout_s):
                current = await self._delivery.load()
        except TimeoutError:
            return []
        return [] if current is None else self._delivery.take(current, max_records)

    def batches(self, columns: Sequence[str] | None = None) -> "AsyncIterator[pa.RecordBatch]":
        """Arrow record batches: offset, timestamp, append_timestamp, key, value, tags, headers,
        partition; of several topics also topic. Of one topic, schema metadata hold its name.
        Each is of one partition; what was stored in small batches comes as larger ones.
        Needs pyarrow.

        Args:
            columns: Only these of them, in this order; ``schema_id``, the producer's, is one more.

        Raises:
            InvalidRequestError: There is no such column.
            UnavailableError: The consumer is closed.
        """
        from icecore.codec.arrow import check_names, names_of

        check_reads(self)
        names = names_of(self.topic) if columns is None else check_names(columns)
        return _ArrowBatches(self, names)

    async def to_arrow(self) -> "pa.Table":
        """All records up to the end, as one table; see ``batches``.

        Raises:
            UnavailableError: The consumer is closed.
            InvalidRequestError: There is no end: neither ``stop_at_end`` nor ``until`` is given.
            IcecoreError: Reading cannot go on; what was read so far is not read again.
        """
        with explained():
            import pyarrow as pa

        from icecore.codec.arrow import names_of, schema_of

        check_end(is_given=self._wanted.has_end)
        batches = [rows async for rows in self.batches()]
        return pa.Table.from_batches(batches, schema_of(self.topic, names_of(self.topic)))

    @property
    def corrupt_batches(self) -> int:
        """With ``on_corrupt="skip"``: how many batches were passed over."""
        return self._decoder.skipped

    @property
    def is_at_end(self) -> bool:
        """With ``stop_at_end``: whether all has been delivered."""
        return self._delivery.current is None and self._fetcher.is_exhausted

    def _check(self) -> None:
        """Raises why nothing may be handed out."""
        if not self._is_started:
            raise UnavailableError("the consumer is not started: use async with, or start()")
        if self.saver is not None and not self._fetcher.is_closed:
            self.saver.check()

    async def _recover(self, topic: str, failure: IcecoreError) -> None:
        """Go on without a topic, or with the one made under its name; else raise the failure."""
        if isinstance(failure, TopicRecreatedError) and self._on_recreated == "restart":
            with suppress(TopicRecreatedError):  # yet another one
                await self._subscription.begin(topic)
        elif isinstance(failure, UnknownTopicError) and self._subscription.topics.pattern:
            self._subscription.leave(topic)
        else:
            raise failure

    # --- positions ------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics that are read now, in order."""
        return tuple(sorted(self._fetcher.topic_ids))

    @property
    def topic(self) -> str:
        """Name of the only topic; empty when the consumer may read several."""
        return self._subscription.topics.only

    @property
    def topic_id(self) -> bytes:
        """Id of the only topic; a topic made again under its name has another id. Empty before the
        start."""
        return self._fetcher.topic_ids.get(self.topic, b"")

    def position(self, topic: str | None = None) -> dict[int, int]:
        """Return, by partition of a topic, the offset of the next record to deliver.

        Args:
            topic: Has to be given where several are read; so in all methods here.
        """
        name = self._subscription.name_of(topic)
        found = self._delivery.delivered()
        return {reader.partition: offset for reader, offset in found if reader.topic == name}

    def skipped_records(self, topic: str | None = None) -> dict[int, int]:
        """Return, by partition, how many records were skipped because they are gone. They were
        deleted, by retention or by people (see ``on_out_of_range``), or declared lost. The log
        names them."""
        found = self._subscription.readers_of(topic)
        return {number: reader.skipped_records for number, reader in found}

    def high_watermarks(self, topic: str | None = None) -> dict[int, int]:
        """Return, by partition, the highest high watermark of all answers. A partition is left out
        before its first answer."""
        readers = self._subscription.readers_of(topic)
        return {number: reader.high_watermark for number, reader in readers if reader.is_known}

    def lag(self, topic: str | None = None) -> dict[int, int]:
        """Return, by partition, the number of offsets between the last delivery and the high
        watermark. Partitions are left out as in ``high_watermarks``."""
        known, position = self.high_watermarks(topic), self.position(topic)
        return {number: max(0, end - position[number]) for number, end in known.items()}

    async def seek(self, partition: int, position: Position, *, topic: str | None = None) -> None:
        """Deliver from ``position`` on. A failure of this partition is forgotten.

        Raises:
            TypeError, InvalidRequestError: The consumer does not read this partition, or it is no
                position.
            TopicRecreatedError: The topic is another one by now.
            UnavailableError: The consumer is closed.
            IcecoreError: The position could not be looked up.
        """
        self._connection.check_open()
        moved: Reader = await self._subscription.seek(topic, partition, position)
        held = self.hand.held
        if held is not None and (held.topic, held.partition) == (moved.topic, moved.partition):
            self.hand.held = None

    async def save_position(self) -> None:
        """Save how far this consumer has come: all that was handed out counts as processed.

        Raises:
            InvalidRequestError: The consumer has no ``position``.
            PositionConflictError: Another consumer has saved under the name; this one ends.
            IcecoreError: No coordinator answered in time; try again, or let the interval do it.
        """
        self.hand.held = None
        await saver_of(self).save()


def _check_policies(on_out_of_range: object, on_recreated: object) -> None:
    """Raises ConfigurationError."""
    if on_out_of_range not in ("error", "earliest", "latest"):
        raise ConfigurationError(f"on_out_of_range is no policy: {on_out_of_range!r}")
    if on_recreated not in ("fail", "restart"):
        raise ConfigurationError(f"on_recreated is fail or restart, not {on_recreated!r}")


def saver_of(consumer: Consumer) -> PositionSaver:
    """Raises InvalidRequestError without a saved position."""
    if consumer.saver is None:
        raise InvalidRequestError("the consumer has no position: make it with position=…")
    return consumer.saver


async def close_holding(consumer: Consumer) -> None:
    """Close it; what it holds in its hand does not count as processed. Raises IcecoreError."""
    saver = consumer.saver
    try:
        if saver is not None and consumer._is_started:
            await saver.stop()
    finally:
        await consumer._stop()


def is_closed(consumer: Consumer) -> bool:
    """Return whether nothing more can be read by it."""
    return consumer._fetcher.is_closed


def check_reads(consumer: Consumer) -> None:
    """Raises UnavailableError when it is closed: an end would say that there are no records."""
    if is_closed(consumer):
        raise UnavailableError("the consumer is closed: make another one")


def check_end(*, is_given: bool) -> None:
    """Raises InvalidRequestError when all records are wanted, and there is no end of them."""
    if not is_given:
        raise InvalidRequestError("there is no end to read to: give stop_at_end or until")


def check_poll(timeout_s: object, max_records: object) -> None:
    """Arguments of ``Consumer.poll``. Raises TypeError, InvalidRequestError."""
    limit_s = checks.DURATION_MS_MAX / 1000
    checks.duration("timeout_s", timeout_s, 0, limit_s, InvalidRequestError)
    checks.whole("max_records", max_records, 1, checks.SIZE_BYTES_MAX)


class _ArrowBatches:
    """The batches of a consumer. One ``anext`` that is given up ends nothing, and loses nothing."""

    def __init__(self, consumer: Consumer, names: tuple[str, ...]) -> None:
        self._consumer = consumer
        self._names = names

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "pa.RecordBatch":
        rows = await self._consumer._delivery.next_rows(self._names)
        if rows is None:
            raise StopAsyncIteration
        return rows
