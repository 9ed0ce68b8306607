"""The blocking consumer: a batch of records crosses from the loop at a time."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Self, Unpack

from icecore import client
from icecore.blocking.background import background
from icecore.client.cluster.offsets import Position
from icecore.client.consume.consumer import (
    check_end,
    check_poll,
    check_reads,
    close_holding,
    is_closed,
    saver_of,
)
from icecore.client.consume.options import ConsumerOptions
from icecore.client.options import filled, stays, takes
from icecore.codec.record import Record
from icecore.errors import IcecoreError
from icecore.extras import explained

if TYPE_CHECKING:
    import pyarrow as pa


@takes(ConsumerOptions)
class Consumer:
    """``icecore.Consumer`` for threads: the same arguments and errors; iterate with ``for``.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        topic: Its name; must exist within ``timeout_s``.
        options: Keywords of ``ConsumerOptions``.

    Raises:
        ConfigurationError: A value is unknown or out of range.
        InvalidRequestError: There are too many keys, tags or headers, or one of them is empty.
        IcecoreError: The consumer could not start.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        chosen = filled(Consumer, ConsumerOptions, options)
        self._consumer = background.make(lambda: client.Consumer(bootstrap, topic, **chosen))
        self._has_end = chosen["stop_at_end"] or chosen["until"] is not None
        self._rest: deque[Record] = deque()
        """Polled, and not handed out yet: of an iteration that was left, a wait that was broken."""
        background.run(self._consumer.start())

    def __reduce__(self) -> NoReturn:
        raise stays(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        if error is None:
            self.close()
        elif not background.is_gone:
            try:
                background.run(close_holding(self._consumer))
            except IcecoreError as failure:
                assert isinstance(error, BaseException)
                error.add_note(f"the position was not saved: {failure}")

    def __iter__(self) -> Iterator[Record]:
        check_reads(self._consumer)
        return self._records()

    def _records(self) -> Iterator[Record]:
        hand = self._consumer.hand
        while True:
            try:
                record = self._rest.popleft()  # in one step: other threads may read as well
            except IndexError:
                if self._consumer.is_at_end or is_closed(self._consumer):
                    return
                # One crossing per batch; one per record would cost far more.
                background.run(self._fill(1.0, 10_000))
            else:
                hand.held = record
                yield record

    async def _fill(self, timeout_s: float, max_records: int) -> None:
        self._rest.extend(await self._consumer.poll(timeout_s, max_records))

    def poll(self, timeout_s: float = 1.0, max_records: int = 10_000) -> list[Record]:
        """See ``icecore.Consumer.poll``."""
        check_poll(timeout_s, max_records)
        check_reads(self._consumer)
        if not self._rest:
            background.run(self._fill(timeout_s, max_records))
        records: list[Record] = []
        try:
            while len(records) < max_records:
                records.append(self._rest.popleft())
        except IndexError:
            pass
        if records:
            self._consumer.hand.held = records[0]
        return records

    def batches(self, columns: Sequence[str] | None = None) -> "Iterator[pa.RecordBatch]":
        """See ``icecore.Consumer.batches``."""
        check_reads(self._consumer)
        return self._batches(columns)

    def _batches(self, columns: Sequence[str] | None) -> "Iterator[pa.RecordBatch]":
        if self._rest:
            first = self._rest[0]
            self.seek(first.partition, first.offset, topic=first.topic)
        yield from background.iterate(self._consumer.batches(columns))

    def to_arrow(self) -> "pa.Table":
        """See ``icecore.Consumer.to_arrow``."""
        return self.arrow_reader().read_all()

    def arrow_reader(self) -> "pa.RecordBatchReader":
        """The batches up to the end, read when they are asked for: for whatever reads streams of
        Arrow, which may also be given the consumer itself, as ``polars.DataFrame(consumer)``.

        Raises:
            InvalidRequestError: There is no end: neither ``stop_at_end`` nor ``until`` is given.
        """
        with explained():
            import pyarrow as pa

        from icecore.codec.arrow import names_of, schema_of

        check_end(is_given=self._has_end)
        topic = self._consumer.topic
        return pa.RecordBatchReader.from_batches(schema_of(topic, names_of(topic)), self.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A capsule with the stream of ``arrow_reader``."""
        return self.arrow_reader().__arrow_c_stream__(requested_schema)

    @property
    def topics(self) -> tuple[str, ...]:
        """See ``icecore.Consumer.topics``."""
        return self._consumer.topics

    @property
    def topic(self) -> str:
        """See ``icecore.Consumer.topic``."""
        return self._consumer.topic

    @property
    def topic_id(self) -> bytes:
        """See ``icecore.Consumer.topic_id``."""
        return self._consumer.topic_id

    @property
    def corrupt_batches(self) -> int:
        """See ``icecore.Consumer.corrupt_batches``."""
        return self._consumer.corrupt_batches

    @property
    def is_at_end(self) -> bool:
        """See ``icecore.Consumer.is_at_end``."""
        return not self._rest and self._consumer.is_at_end

    def position(self, topic: str | None = None) -> dict[int, int]:
        """See ``icecore.Consumer.position``."""
        found = self._consumer.position(topic)
        ahead = self._rest[0] if self._rest else None
        if ahead is not None and ahead.topic == (topic or self._consumer.topic):
            found[ahead.partition] = ahead.offset
        return found

    def skipped_records(self, topic: str | None = None) -> dict[int, int]:
        """See ``icecore.Consumer.skipped_records``."""
        return self._consumer.skipped_records(topic)

    def high_watermarks(self, topic: str | None = None) -> dict[int, int]:
        """See ``icecore.Consumer.high_watermarks``."""
        return self._consumer.high_watermarks(topic)

    def lag(self, topic: str | None = None) -> dict[int, int]:
        """See ``icecore.Consumer.lag``."""
        known, position = self._consumer.high_watermarks(topic), self.position(topic)
        return {number: max(0, end - position[number]) for number, end in known.items()}

    def seek(self, partition: int, position: Position, *, topic: str | None = None) -> None:
        """See ``icecore.Consumer.seek``."""
        background.run(self._consumer.seek(partition, position, topic=topic))
        ahead = self._rest[0] if self._rest else None
        name = topic or self._consumer.topic
        if ahead is not None and (ahead.topic, ahead.partition) == (name, partition):
            self._rest.clear()

    def save_position(self) -> None:
        """See ``icecore.Consumer.save_position``."""
        saver = saver_of(self._consumer)
        self._consumer.hand.held = self._rest[0] if self._rest else None
        background.run(saver.save())

    def close(self) -> None:
        """See ``icecore.Consumer.close``. Does nothing in a fork of the process."""
        if not background.is_gone:
            self._consumer.hand.held = self._rest[0] if self._rest else None
            background.run(close_holding(self._consumer))
