"""The client for programs without an event loop: the same classes, blocking, for any thread.

All of them share one background thread that runs an event loop. Everything that happens there is
the asyncio client; this module only crosses the border between threads, in bulk where it matters.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any, Self, TypeVar

from icecore import client
from icecore.client.batches import BatchHandle
from icecore.client.batches import SendHandle as AsyncSendHandle
from icecore.client.types import BatchMetadata, RecordMetadata
from icecore.errors import IcecoreError, UnavailableError
from icecore.record import Record

__all__ = ["Admin", "Consumer", "Producer", "SendHandle"]

_T = TypeVar("_T")

_INBOX_RECORDS_MAX = 20_000


class _Background:
    """One thread with one event loop, started at first use; a daemon, it ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="icecore-client", daemon=True
                ).start()
            return self._loop

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        """The coroutine's result. Raises TimeoutError after ``timeout_s`` and gives it up."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
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

    __slots__ = ("_done", "_error", "_handle")

    def __init__(self) -> None:
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
        if self._error is not None:
            raise self._error
        assert self._handle is not None
        return await self._handle

    def settle(self, handle: AsyncSendHandle | None, error: BaseException | None) -> None:
        """On the loop: the record is in the producer's buffer, or was refused."""
        self._handle, self._error = handle, error
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class Producer:
    """See ``icecore.Producer``: the same arguments and methods."""

    def __init__(self, bootstrap: str, **kwargs: Any) -> None:
        self._producer: client.Producer = _background.run(
            _make(client.Producer, (bootstrap,), kwargs)
        )
        self._inbox: deque[tuple[str, bytes | None, dict[str, Any], SendHandle]] = deque()
        self._lock = threading.Lock()
        self._is_draining = False
        self._drained = threading.Condition(self._lock)
        self._refused: BaseException | None = None
        self._is_open = True
        _background.run(self._producer.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, topic: str, value: bytes | None, **kwargs: Any) -> SendHandle:
        """Buffer one record, arguments as ``icecore.Producer.send``; waits while there is no room.

        What the asyncio method raises is raised by the handle's ``result`` or by ``flush``.

        Raises:
            UnavailableError: The producer is closed.
        """
        handle = SendHandle()
        with self._lock:
            while len(self._inbox) >= _INBOX_RECORDS_MAX and self._is_open:
                self._drained.wait()
            if not self._is_open:
                raise UnavailableError("the producer is closed")
            self._inbox.append((topic, value, kwargs, handle))
            if not self._is_draining:  # one crossing for all records sent until it is over
                self._is_draining = True
                asyncio.run_coroutine_threadsafe(self._drain(), _background.loop)
        return handle

    async def _drain(self) -> None:
        while True:
            with self._lock:
                taken = list(self._inbox)
                self._inbox.clear()
                self._is_draining = bool(taken)
                self._drained.notify_all()
                if not taken:
                    return
            for topic, value, kwargs, handle in taken:
                try:
                    handle.settle(await self._producer.send_wait(topic, value, **kwargs), None)
                except (IcecoreError, TypeError) as error:
                    handle.settle(None, error)
                    self._refused = self._refused or error
            await asyncio.sleep(0)

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
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _wait_for_inbox(self) -> None:
        with self._lock:
            self._drained.wait_for(lambda: not self._is_draining)

    def close(self) -> None:
        """Flush, then close. Raises as ``flush``; it is closed all the same."""
        self._wait_for_inbox()
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            _background.run(self._producer.close())
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused


class Consumer:
    """See ``icecore.Consumer``: the same arguments; iterate with ``for``."""

    def __init__(self, bootstrap: str, topic: str, **kwargs: Any) -> None:
        self._consumer: client.Consumer = _background.run(
            _make(client.Consumer, (bootstrap, topic), kwargs)
        )
        self._rest: deque[Record] = deque()  # polled for an iteration that was left early
        _background.run(self._consumer.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Record]:
        while self._rest or not self._consumer.is_at_end:
            if not self._rest:  # one crossing per batch; one per record would cost far more
                self._rest.extend(self.poll(1.0))
            while self._rest:
                yield self._rest.popleft()

    def poll(self, timeout_s: float = 1.0, max_records: int = 10_000) -> list[Record]:
        """See ``icecore.Consumer.poll``."""
        if self._rest:
            return [self._rest.popleft() for _ in range(min(max_records, len(self._rest)))]
        return _background.run(self._consumer.poll(timeout_s, max_records))

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

    def high_watermarks(self) -> dict[int, int]:
        """See ``icecore.Consumer.high_watermarks``."""
        return self._consumer.high_watermarks()

    def seek(self, partition: int, position: Any) -> None:
        """See ``icecore.Consumer.seek``."""
        if self._rest and self._rest[0].partition == partition:
            self._rest.clear()
        _background.run(self._consumer.seek(partition, position))

    def close(self) -> None:
        """Stop fetching and close the connections."""
        _background.run(self._consumer.close())


async def _next_or_none(iterator: Any) -> Any:
    return await anext(iterator, None)


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
        """Close the connections."""
        _background.run(self._admin.close())
