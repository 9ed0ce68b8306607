"""The client for programs without an event loop: the same classes, blocking, for any thread.

All of them share one background thread that runs an event loop. Everything that happens there is
the asyncio client; this module only crosses the border between threads, in bulk where it matters.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, NamedTuple, Self, TypeVar

from icecore import client
from icecore.client.batches import BatchHandle
from icecore.client.batches import SendHandle as AsyncSendHandle
from icecore.client.checks import HeadersLike, check_record, topic_name
from icecore.client.conditions import TimeLike
from icecore.client.types import BatchMetadata, LookupPage, OffsetResult, RecordMetadata
from icecore.codec.record import Record
from icecore.errors import ForkedError, InvalidRequestError, UnavailableError

__all__ = ["Admin", "Consumer", "Lookup", "Producer", "SendHandle"]

_T = TypeVar("_T")

_INBOX_RECORDS_MAX = 20_000


class _Background:
    """One thread with one event loop, started at first use; a daemon, it ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="icecore-client", daemon=True)
        self.is_forked = False
        """This process is a fork: the thread stayed behind, and locks may be held for ever."""
        os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self.is_forked = self._loop is not None

    def check(self) -> None:
        """Raises ForkedError; to be asked before any lock is taken."""
        if self.is_forked:
            raise ForkedError(
                "this process is a fork of one that used icecore.blocking: make clients after the "
                "fork only, or begin processes with multiprocessing's start method spawn"
            )

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        self.check()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread.start()
            return self._loop

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """The coroutine's result. Raises TimeoutError after ``timeout_s`` and gives it up."""
        try:
            loop = self.loop
            if threading.current_thread() is self._thread:  # a finalizer, or a callback of ours
                raise InvalidRequestError("the client's own thread can't wait for itself")
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise


_background = _Background()


async def _make(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Objects that belong to a loop are made on it."""
    return cls(*args, **kwargs)


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
        """Where the record landed.

        Raises:
            TimeoutError: It is not known within ``timeout_s``; ask again.
            IcecoreError: The record's batch failed.
        """
        return _background.run(self._wait(), timeout_s)

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
    """A record on its way to the loop; fields as the arguments of ``send``."""

    handle: SendHandle
    topic: str
    value: bytes | None
    key: bytes | None
    tags: Iterable[str]
    headers: HeadersLike
    timestamp_ms: int | None
    partition: int | None


class Producer:
    """See ``icecore.Producer``: the same arguments and methods."""

    def __init__(self, bootstrap: str, **kwargs: Any) -> None:
        self._producer: client.Producer = _background.run(
            _make(client.Producer, (bootstrap,), kwargs)
        )
        self._inbox: deque[_Sent] = deque()
        self._names: set[str] = set()
        self._lock = threading.Lock()
        self._is_draining = False
        self._drained = threading.Condition(self._lock)
        self._refused: SendHandle | None = None
        """The first one since the last flush."""
        self._is_open = True
        _background.run(self._producer.start())

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
    ) -> SendHandle:
        """Buffer one record, as ``icecore.Producer.send`` does; waits while there is no room.

        What can't be known at once, such as whether there is such a partition, is raised by the
        handle's ``result``, or by ``flush``.

        Raises:
            TypeError, InvalidRequestError: As there.
            UnavailableError: The producer is closed.
            ForkedError: It belongs to the parent of this process.
        """
        check_record(value, key, tags, headers, timestamp_ms, partition)
        if type(topic) is not str or topic not in self._names:
            self._names.add(topic_name(topic))
        _background.check()
        handle = SendHandle()
        with self._lock:
            while len(self._inbox) >= _INBOX_RECORDS_MAX and self._is_open:
                self._drained.wait()
            if not self._is_open:
                raise UnavailableError("the producer is closed")
            self._inbox.append(
                _Sent(handle, topic, value, key, tags, headers, timestamp_ms, partition)
            )
            if not self._is_draining:  # one crossing for all records sent until it is over
                self._is_draining = True
                asyncio.run_coroutine_threadsafe(self._drain(), _background.loop)
        return handle

    async def _drain(self) -> None:
        while True:
            with self._lock:
                taken, self._inbox = self._inbox, deque()
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
            handle, topic, value, key, tags, headers, timestamp_ms, partition = taken[0]
            try:
                found = await send(
                    topic,
                    value,
                    key=key,
                    tags=tags,
                    headers=headers,
                    timestamp_ms=timestamp_ms,
                    partition=partition,
                )
            except Exception as error:
                handle.settle(None, error)
                if self._refused is None or self._refused.is_observed:
                    self._refused = handle
            else:
                handle.settle(found, None)
            taken.popleft()

    def send_batch(self, topic: str, values: Any, **kwargs: Any) -> list[BatchMetadata]:
        """Append many records and wait for where they landed; see ``icecore.Producer.send_batch``.

        Raises:
            IcecoreError: The first batch that failed.
        """
        self._wait_for_inbox()
        return _background.run(self._send_batch(topic, values, kwargs))

    async def _send_batch(
        self, topic: str, values: Any, kwargs: dict[str, Any]
    ) -> list[BatchMetadata]:
        await self._producer.ready()
        handle: BatchHandle = self._producer.send_batch(topic, values, **kwargs)
        return await handle

    def flush(self) -> None:
        """Wait for the outcome of all that was sent. Raises as ``icecore.Producer.flush``."""
        self._wait_for_inbox()
        _background.run(self._producer.flush())
        self._raise_refused()

    def _wait_for_inbox(self) -> None:
        _background.check()
        with self._lock:
            self._drained.wait_for(lambda: not self._is_draining)

    def _raise_refused(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None and not refused.is_observed:
            refused.raise_refused()

    def close(self) -> None:
        """Refuse further records, flush, close. Raises as ``flush``, and is closed then, too.

        In a fork of the process this does nothing: the producer is the parent's.
        """
        if _background.is_forked:
            return
        with self._lock:
            was_open, self._is_open = self._is_open, False
            self._drained.notify_all()  # who waits for room is refused
        if was_open:
            try:
                self._wait_for_inbox()
            except BaseException:  # such as Ctrl-C: it is closed, without anybody who waits for it
                asyncio.run_coroutine_threadsafe(self._producer.close(), _background.loop)
                raise
            _background.run(self._producer.close())
        self._raise_refused()


class Consumer:
    """See ``icecore.Consumer``: the same arguments; iterate with ``for``."""

    def __init__(self, bootstrap: str, topic: str, **kwargs: Any) -> None:
        self._consumer: client.Consumer = _background.run(
            _make(client.Consumer, (bootstrap, topic), kwargs)
        )
        self._rest: deque[Record] = deque()
        """Polled, and not handed out yet: of an iteration that was left, a wait that was broken."""
        _background.run(self._consumer.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        while True:
            try:
                record = self._rest.popleft()  # in one step: other threads may read as well
            except IndexError:
                if self._consumer.is_at_end:
                    return
                # One crossing per batch; one per record would cost far more.
                _background.run(self._fill(1.0, 10_000))
            else:
                yield record

    async def _fill(self, timeout_s: float, max_records: int) -> None:
        self._rest.extend(await self._consumer.poll(timeout_s, max_records))

    def poll(self, timeout_s: float = 1.0, max_records: int = 10_000) -> list[Record]:
        """See ``icecore.Consumer.poll``."""
        if not self._rest:
            _background.run(self._fill(timeout_s, max_records))
        records: list[Record] = []
        try:
            while len(records) < max_records:
                records.append(self._rest.popleft())
        except IndexError:
            pass
        return records

    def batches(self) -> Iterator[Any]:
        """See ``icecore.Consumer.batches``."""
        if self._rest:
            self.seek(self._rest[0].partition, self._rest[0].offset)
        batches = self._consumer.batches()
        while (rows := _background.run(_next_or_none(batches))) is not None:
            yield rows

    def position(self) -> dict[int, int]:
        """See ``icecore.Consumer.position``."""
        ahead = {self._rest[0].partition: self._rest[0].offset} if self._rest else {}
        return {**self._consumer.position(), **ahead}

    @property
    def corrupt_batches(self) -> int:
        """See ``icecore.Consumer.corrupt_batches``."""
        return self._consumer.corrupt_batches

    def skipped_records(self) -> dict[int, int]:
        """See ``icecore.Consumer.skipped_records``."""
        return self._consumer.skipped_records()

    def high_watermarks(self) -> dict[int, int]:
        """See ``icecore.Consumer.high_watermarks``."""
        return self._consumer.high_watermarks()

    def seek(self, partition: int, position: Any) -> None:
        """See ``icecore.Consumer.seek``."""
        _background.run(self._consumer.seek(partition, position))
        if self._rest and self._rest[0].partition == partition:
            self._rest.clear()

    def close(self) -> None:
        """Stop fetching and close the connections. Does nothing in a fork of the process."""
        if not _background.is_forked:
            _background.run(self._consumer.close())


async def _next_or_none(iterator: Any) -> Any:
    return await anext(iterator, None)


class Lookup:
    """See ``icecore.Lookup``: the same arguments and methods, blocking."""

    def __init__(self, bootstrap: str, topic: str, **kwargs: Any) -> None:
        self._lookup: client.Lookup = _background.run(
            _make(client.Lookup, (bootstrap, topic), kwargs)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, **kwargs: Any) -> LookupPage:
        """See ``icecore.Lookup.find``."""
        return _background.run(self._lookup.find(**kwargs))

    def pages(self, **kwargs: Any) -> Iterator[LookupPage]:
        """See ``icecore.Lookup.pages``."""
        pages = self._lookup.pages(**kwargs)
        while (page := _background.run(_next_or_none(pages))) is not None:
            yield page

    def explain(self, **kwargs: Any) -> LookupPage:
        """See ``icecore.Lookup.explain``."""
        return _background.run(self._lookup.explain(**kwargs))

    def record(self, partition: int, offset: int) -> Record | None:
        """See ``icecore.Lookup.record``."""
        return _background.run(self._lookup.record(partition, offset))

    def offset_at(self, append_time: TimeLike, **kwargs: Any) -> dict[int, OffsetResult]:
        """See ``icecore.Lookup.offset_at``."""
        return _background.run(self._lookup.offset_at(append_time, **kwargs))

    def close(self) -> None:
        """Close the connections. Does nothing in a fork of the process."""
        if not _background.is_forked:
            _background.run(self._lookup.close())


class Admin:
    """See ``icecore.Admin``: the same arguments and methods, blocking."""

    def __init__(self, bootstrap: str, **kwargs: Any) -> None:
        self._admin: client.Admin = _background.run(_make(client.Admin, (bootstrap,), kwargs))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._admin, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return _background.run(method(*args, **kwargs))

        call.__name__, call.__doc__ = name, method.__doc__
        return call

    def close(self) -> None:
        """Close the connections. Does nothing in a fork of the process."""
        if not _background.is_forked:
            _background.run(self._admin.close())
