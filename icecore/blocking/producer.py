"""The blocking producer: records cross to the loop in bulk, and handles wait for their outcome.

What a thread sends goes into an inbox, and one crossing takes along all that is in it by then.
"""

import asyncio
import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, Self, Unpack
from weakref import WeakSet

from icecore import client
from icecore.blocking.background import LOOK_S, background
from icecore.client import checks
from icecore.client.checks import HeadersLike, check_record, topic_name
from icecore.client.options import filled, stays, takes
from icecore.client.produce.batches import RECORD_OVERHEAD_BYTES, BatchHandle, OnDelivery
from icecore.client.produce.batches import SendHandle as AsyncSendHandle
from icecore.client.produce.buffer import no_room
from icecore.client.produce.given_columns import ArrowLike, ByteColumn, TimeColumn
from icecore.client.produce.options import ProducerOptions, RecordArguments
from icecore.client.produce.producer import check_size
from icecore.client.retries import call_back, callback
from icecore.client.types import BatchMetadata, ProducerMetrics, RecordMetadata
from icecore.errors import IcecoreError, UnavailableError
from icecore.process.log import event

INBOX_RECORDS_MAX = 20_000
INBOX_BYTES_MAX = 4 << 20

_TELL_S = 1.0
_log = logging.getLogger(__name__)


class SendHandle:
    """The pending acknowledgement of one record."""

    __slots__ = ("_done", "_error", "_handle", "is_observed")

    def __init__(self) -> None:
        self.is_observed = False
        """Somebody was told that the record was refused."""
        self._handle: AsyncSendHandle | None = None
        self._error: BaseException | None = None
        self._done: asyncio.Future[None] | None = None

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged and return its topic, partition and offset.

        Raises:
            TypeError, InvalidRequestError: The timeout is no duration.
            TimeoutError: It is not known within ``timeout_s``; ask again.
            IcecoreError: The record's batch failed.
        """
        limit_s = checks.timeout("timeout_s", timeout_s)
        return background.run(self._wait(), limit_s)

    async def _wait(self) -> RecordMetadata:
        if self._handle is None and self._error is None:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._done})
        self.raise_refused()
        assert self._handle is not None
        return await self._handle

    def raise_refused(self) -> None:
        """Raise why the record was refused, if it was."""
        if self._error is not None:
            self.is_observed = True
            raise self._error

    def settle(self, handle: AsyncSendHandle | None, error: BaseException | None) -> None:
        """On the loop: the record is in the producer's buffer, or was refused."""
        self._handle, self._error = handle, error
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class _Sent(NamedTuple):
    """A record on its way to the loop; fields as the arguments of ``send``, in the form kept."""

    handle: SendHandle
    topic: str
    value: bytes | None
    key: bytes | None
    tags: tuple[str, ...]
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None
    partition: int | None
    on_delivery: OnDelivery | None
    size_bytes: int


@takes(ProducerOptions)
class Producer:
    """``icecore.Producer`` for threads: the same arguments, methods and errors.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        options: Keywords of ``ProducerOptions``.

    Raises:
        ConfigurationError: A value is unknown or out of range.
        IcecoreError: The producer could not start.
    """

    def __init__(self, bootstrap: str, **options: Unpack[ProducerOptions]) -> None:
        chosen = filled(Producer, ProducerOptions, options)
        self._producer = background.make(lambda: client.Producer(bootstrap, **chosen))
        self._inbox: deque[_Sent] = deque()
        self._inbox_bytes = 0
        self._buffer_bytes = chosen["buffer_bytes"]
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._is_draining = False
        self._drained = threading.Condition(self._lock)
        self._refused: SendHandle | None = None
        """The first one since the last flush."""
        self._is_open = True
        background.run(self._producer.start())
        _open.add(self)

    def __reduce__(self) -> NoReturn:
        raise stays(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = (),
        headers: HeadersLike = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendHandle:
        """Buffer one record, as ``icecore.Producer.send`` does; waits while there is no room.

        What can't be known at once, such as whether there is such a partition, is raised by the
        handle's ``result``, or by ``flush``. ``on_delivery`` is called on the client's own thread,
        which must not wait: ``result`` and ``flush`` refuse to there, and this as ``try_send``.

        Raises:
            TypeError, InvalidRequestError, RecordTooLargeError: As there.
            UnavailableError: The producer is closed.
            ForkedError: It belongs to the parent of this process.
        """
        sent = self._checked(topic, value, key, tags, headers, timestamp_ms, partition, on_delivery)
        with self._lock:
            if len(self._inbox) >= INBOX_RECORDS_MAX or self._inbox_bytes >= INBOX_BYTES_MAX:
                self._wait_for_inbox_room(sent)
            return self._put(sent)

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        tags: Iterable[str] = (),
        headers: HeadersLike = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendHandle:
        """Buffer one record as ``send`` does, but never wait for room.

        Raises:
            ThrottledError: ``buffer_bytes`` are waiting; try again later, or ``send``.
            TypeError, InvalidRequestError, RecordTooLargeError, UnavailableError, ForkedError: As
                ``send``.
        """
        sent = self._checked(topic, value, key, tags, headers, timestamp_ms, partition, on_delivery)
        with self._lock:
            under_way = self._inbox_bytes + self._producer.buffered_bytes
            is_full = self._is_inbox_full() or under_way >= self._buffer_bytes
            if is_full and self._is_open:
                raise no_room()
            return self._put(sent)

    def _checked(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        tags: Iterable[str],
        headers: HeadersLike,
        timestamp_ms: int | None,
        partition: int | None,
        on_delivery: OnDelivery | None,
    ) -> _Sent:
        """Raises as ``send``."""
        kept_tags, kept_headers, size_bytes = check_record(
            value, key, tags, headers, timestamp_ms, partition
        )
        if on_delivery is not None:
            callback("on_delivery", on_delivery)
        if type(topic) is not str or topic not in self._names:
            self._names.add(topic_name(topic))
        background.check()
        record = value, key, kept_tags, kept_headers
        check_size(self._producer, topic, size_bytes, record)
        return _Sent(
            SendHandle(),
            topic,
            value,
            key,
            kept_tags,
            kept_headers,
            timestamp_ms,
            partition,
            on_delivery,
            size_bytes + RECORD_OVERHEAD_BYTES,
        )

    def _put(self, sent: _Sent) -> SendHandle:
        """Take a record in; the lock is held. Raises UnavailableError."""
        if not self._is_open:
            raise UnavailableError("the producer is closed")
        self._inbox.append(sent)
        self._inbox_bytes += sent.size_bytes
        if not self._is_draining:  # one crossing for all records sent until it is over
            self._is_draining = True
            asyncio.run_coroutine_threadsafe(self._drain(), background.loop)
        return sent.handle

    def _wait_for_inbox_room(self, sent: _Sent) -> None:
        """Wait with the lock held. Raises ThrottledError on the client's own thread."""
        while self._is_inbox_full() and self._is_open:
            if background.is_own_thread:
                raise no_room()
            self._drained.wait(LOOK_S)
            background.check()

    def _is_inbox_full(self) -> bool:
        return len(self._inbox) >= INBOX_RECORDS_MAX or self._inbox_bytes >= INBOX_BYTES_MAX

    async def _drain(self) -> None:
        while True:
            with self._lock:
                taken, self._inbox, self._inbox_bytes = self._inbox, deque(), 0
                self._is_draining = bool(taken)
                self._drained.notify_all()
            if not taken:
                return
            try:
                await self._hand_over(taken)
            except BaseException:
                self._give_up(taken)
                raise
            await asyncio.sleep(0)

    def _give_up(self, taken: deque[_Sent]) -> None:
        """The loop ends: nobody may wait for records that nobody has."""
        with self._lock:
            taken.extend(self._inbox)
            self._inbox.clear()
            self._is_draining = self._is_open = False
            self._drained.notify_all()
        for sent in taken:
            sent.handle.settle(None, UnavailableError("the producer was closed"))

    async def _hand_over(self, taken: deque[_Sent]) -> None:
        """Give records to the producer; what it refuses concerns only the record itself."""
        send = self._producer.send_wait
        while taken:
            handle, topic, value, key, tags, headers, timestamp_ms, partition, told, _ = taken[0]
            try:
                found = await send(
                    topic,
                    value,
                    key=key,
                    tags=tags,
                    headers=headers,
                    timestamp_ms=timestamp_ms,
                    partition=partition,
                    on_delivery=told,
                )
            except Exception as error:
                handle.settle(None, error)
                if told is not None and isinstance(error, IcecoreError):
                    handle.is_observed = True
                    call_back(told, error)
                elif self._refused is None or self._refused.is_observed:
                    self._refused = handle
            else:
                handle.settle(found, None)
            taken.popleft()

    def send_and_wait(
        self, topic: str, value: bytes | None, **record: Unpack[RecordArguments]
    ) -> RecordMetadata:
        """Send one record, arguments as ``send``, and wait until it is acknowledged."""
        return self.send(topic, value, **record).result()

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
    ) -> list[BatchMetadata]:
        """Append many records and wait for where they landed; see ``icecore.Producer.send_batch``.

        Raises:
            IcecoreError: The first batch that failed.
        """
        self._wait_for_inbox()

        async def send() -> list[BatchMetadata]:
            await self._producer.ready()
            handle: BatchHandle = self._producer.send_batch(
                topic,
                values,
                keys=keys,
                tags=tags,
                headers=headers,
                timestamps_ms=timestamps_ms,
                partition=partition,
            )
            return await handle

        return background.run(send())

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for the outcome of all that was sent. Raises as ``icecore.Producer.flush``."""
        end_s = _end_s(timeout_s)
        self._wait_for_inbox(_left_s(end_s))
        background.run(self._producer.flush(_left_s(end_s)))
        self._raise_refused()

    def _wait_for_inbox(self, timeout_s: float | None = None) -> None:
        end_s = _end_s(timeout_s)
        with self._lock:
            while self._is_draining:
                background.check()
                left_s = _left_s(end_s)
                if left_s == 0:
                    raise TimeoutError(f"{len(self._inbox)} records and more wait for room")
                self._drained.wait(LOOK_S if left_s is None else min(LOOK_S, left_s))

    def _raise_refused(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None and not refused.is_observed:
            refused.raise_refused()

    def metrics(self) -> ProducerMetrics:
        """See ``icecore.Producer.metrics``."""
        background.check()
        return background.make(self._producer.metrics)

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse further records, flush, close. Raises as ``icecore.Producer.close``, and is closed
        then, too, unless the timeout was no duration.

        In a fork of the process this does nothing: the producer is the parent's.
        """
        end_s = _end_s(timeout_s)
        if background.is_gone:
            return
        with self._lock:
            was_open, self._is_open = self._is_open, False
            self._drained.notify_all()  # who waits for room is refused
        _open.discard(self)
        if was_open:
            try:
                self._wait_for_inbox(_left_s(end_s))
            except TimeoutError:
                background.run(self._producer.close(0))
                raise
            except BaseException:  # such as Ctrl-C: it is closed, without anybody who waits for it
                asyncio.run_coroutine_threadsafe(self._producer.close(), background.loop)
                raise
            background.run(self._producer.close(_left_s(end_s)))
        self._raise_refused()

    async def _open_records(self) -> int:
        """Sent, and not known to be stored or refused."""
        return len(self._inbox) + self._producer.metrics().buffered_records


def _end_s(timeout_s: Any) -> float | None:
    """A moment of the monotonic clock. Raises TypeError, InvalidRequestError."""
    given = checks.timeout("timeout_s", timeout_s)
    return None if given is None else time.monotonic() + given


def _left_s(end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, end_s - time.monotonic())


_open: "WeakSet[Producer]" = WeakSet()


def _tell_of_open() -> None:
    """The process ends, and with it the thread that would have sent what is buffered."""
    for producer in [] if background.is_gone else list(_open):
        try:
            count = background.run(producer._open_records(), _TELL_S)
        except TimeoutError:
            count = -1  # the loop is busy: nobody knows
        if count:
            event(_log, logging.WARNING, "producer_not_closed", records_without_outcome=count)


atexit.register(_tell_of_open)
