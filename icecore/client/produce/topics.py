"""Topics that a producer sends to: the queues of their partitions, and what waits for these.

A topic is asked for when the first record for it is sent; until its partitions are known, records
wait here. A topic that was deleted and made again under its name is another one: it is forgotten,
so that the next record asks again, and what the old one's queues hold fails in the sender.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from icecore.client.checks import topic_name
from icecore.client.cluster.metadata import Metadata
from icecore.client.produce.batches import Batch
from icecore.client.produce.buffer import Buffer
from icecore.client.produce.limits import CAPS, batch_bytes_cap
from icecore.client.produce.partition_queue import PartitionQueue
from icecore.client.types import TopicMetadata
from icecore.codec.batch import BatchLimits
from icecore.errors import IcecoreError, InternalError, UnavailableError, UnknownTopicError
from icecore.rpc.ports import Clock, Rng

_ASK_AGAIN_MS = 1_000.0


class Topic:
    """Queues of a topic; until its partitions are known, what to do once they are."""

    __slots__ = (
        "batch_bytes",
        "batch_bytes_cap",
        "limits",
        "name",
        "queues",
        "record_bytes_max",
        "routing",
        "sticky",
        "topic_id",
        "waiting",
    )

    def __init__(self, name: str, routing: "asyncio.Future[None]") -> None:
        self.name = name
        self.topic_id = b""
        self.queues: list[PartitionQueue] = []
        self.sticky = 0
        self.waiting: deque[Waiting] = deque()
        self.routing = routing
        self.batch_bytes = self.batch_bytes_cap = 0
        """Size at which a batch is full, and at most; nobody asks before it has queues."""
        self.heed(CAPS, 0)

    def heed(self, limits: BatchLimits, batch_bytes: int) -> None:
        """Keep to these limits from now on; ``batch_bytes``: when a batch is full."""
        self.limits, self.record_bytes_max = limits, limits.record_bytes_max
        self.batch_bytes_cap = batch_bytes_cap(limits)
        self.batch_bytes = min(batch_bytes, self.batch_bytes_cap)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records for a topic that is looked for."""

    route: Callable[[Topic], None]
    """Routes the records once the topic is known."""
    fail: Callable[[Batch], None]
    """Ties the records' handles to a batch that then fails with the error."""
    size_bytes: int
    """In the buffer."""
    count: int


class Topics:
    """All topics of one producer.

    Args:
        metadata: Who leads what.
        buffer: Where what waits is counted.
        clock, rng: For batches, and for where the next batch without keys goes.
        start: Runs a coroutine until it ends or the producer is closed.
        timeout_s: How long a topic is looked for.
        batch_bytes: When a batch is full, where a topic's limits allow it.
        wait_s: How long one that does not exist is waited for.
    """

    def __init__(
        self,
        metadata: Metadata,
        buffer: Buffer,
        clock: Clock,
        rng: Rng,
        start: Callable[[Coroutine[Any, Any, None]], None],
        timeout_s: float,
        batch_bytes: int,
        wait_s: float,
    ) -> None:
        self._metadata = metadata
        self._buffer = buffer
        self._clock = clock
        self._rng = rng
        self._start = start
        self._timeout_s = timeout_s
        self._batch_bytes = batch_bytes
        self._asked_ms = 0.0
        self._wait_s = min(wait_s, timeout_s)
        self._unrouted: dict[Topic, None] = {}
        self._closed: IcecoreError | None = UnavailableError(
            "the producer is not started: use async with, or start()"
        )
        self.by_name: dict[str, Topic] = {}
        """Topics that records may be sent to; empty while the producer is closed. A send that finds
        no topic here calls ``add``, which raises the error. So a send that finds one need not
        check."""

    def open(self) -> None:
        """Topics may be added from now on."""
        self._closed = None

    def close(self, error: IcecoreError | None = None) -> None:
        """Refuse all further records, by this error; those that wait still go on."""
        self._closed = error or UnavailableError("the producer is closed")
        self.by_name.clear()

    def abandon(self, error: IcecoreError) -> None:
        """Fail what waits."""
        for topic in list(self._unrouted):
            self._settle(topic, error)

    def add(self, name: str) -> Topic:
        """A topic that nothing was sent to yet.

        Raises:
            TypeError: The name is no string.
            InvalidTopicNameError: No topic has such a name.
            UnavailableError: The producer is closed.
            ForkedError: It belongs to the parent of this process.
        """
        name = topic_name(name)
        if self._closed is not None:
            raise self._closed.again()
        topic = Topic(name, asyncio.get_running_loop().create_future())
        self.by_name[name] = topic
        self._unrouted[topic] = None
        self._start(self._route(topic))
        return topic

    @property
    def routing(self) -> "set[asyncio.Future[None]]":
        """One for each topic that is still looked for."""
        return {topic.routing for topic in self._unrouted}

    @property
    def waiting_records(self) -> int:
        """For topics that are still looked for."""
        return sum(each.count for topic in self._unrouted for each in topic.waiting)

    async def _route(self, topic: Topic) -> None:
        """Find out the partitions of a topic, then handle what was sent to it meanwhile."""
        failure: IcecoreError | None = None
        try:
            found = await self._metadata.topic(
                topic.name, timeout_s=self._timeout_s, wait_s=self._wait_s
            )
            self._extend(topic, found)
        except IcecoreError as error:
            failure = error
        except Exception as error:  # whatever it is, nobody may wait for ever
            failure = InternalError(f"looking for topic {topic.name} failed: {error!r}")
        self._settle(topic, failure)
        if self._buffer.is_full:
            self._buffer.hand_on_all()  # who waits for room began to before there were batches

    def _settle(self, topic: Topic, failure: IcecoreError | None) -> None:
        if topic not in self._unrouted:
            return  # abandoned meanwhile
        del self._unrouted[topic]
        if failure is None and not topic.queues:  # who has none and is not looked for, never would
            failure = UnknownTopicError(f"topic {topic.name} has no partitions yet")
        if failure is not None and self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]  # the next send asks again
        while topic.waiting:
            waiting = topic.waiting.popleft()
            self._buffer.reserve(-waiting.size_bytes)  # counted again where they end up
            error = failure or self._attempt(waiting.route, topic)
            if error is not None:
                batch = Batch(self._clock.monotonic_ms(), topic.routing.get_loop())
                batch.count = waiting.count
                waiting.fail(batch)
                batch.fail(error)
                self._buffer.note(batch)
        topic.routing.set_result(None)

    @staticmethod
    def _attempt(route: Callable[[Topic], None], topic: Topic) -> IcecoreError | None:
        """Route some records; why that failed, None when it did not."""
        try:
            route(topic)
        except IcecoreError as error:
            return error
        except Exception as error:  # those behind them still get their outcome
            return InternalError(f"records for topic {topic.name} found no batch: {error!r}")
        return None

    # --- partitions -----------------------------------------------------------------------------

    def _extend(self, topic: Topic, known: TopicMetadata) -> None:
        """Queues for partitions that are new; keys then spread over all of them. Limits as they are
        now."""
        topic.heed(known.limits, self._batch_bytes)
        topic.topic_id = topic.topic_id or known.topic_id
        first, count = len(topic.queues), len(known.partitions)
        if first < count:
            topic.queues += [
                PartitionQueue(topic.name, topic.topic_id, n) for n in range(first, count)
            ]
            self.choose_sticky(topic)

    def look(self) -> None:
        """The cluster may have changed: extend what grew, forget what was made again."""
        for topic in list(self.by_name.values()):
            known = self._metadata.known(topic.name)
            if not topic.queues or known is None:
                continue
            if known.topic_id == topic.topic_id:
                self._extend(topic, known)
            else:
                del self.by_name[topic.name]

    def limits_of(self, name: str) -> BatchLimits:
        """Limits of a topic as last seen; before that, those that no topic exceeds."""
        topic = self.by_name.get(name)
        return CAPS if topic is None else topic.limits

    def look_again(self) -> None:
        """Ask, at most once a second, whether an operator has raised a limit."""
        now_ms = self._clock.monotonic_ms()
        if self._closed is None and now_ms - self._asked_ms >= _ASK_AGAIN_MS:
            self._asked_ms = now_ms
            self._start(self._ask_again())

    async def _ask_again(self) -> None:
        with suppress(IcecoreError):
            await self._metadata.refresh()
            self.look()

    def choose_sticky(self, topic: Topic) -> None:
        """The partition of the next batch without keys: any that has a leader."""
        count = len(topic.queues)
        for _ in range(3):
            topic.sticky = int(self._rng.random() * count)
            if self._metadata.view.leader(topic.name, topic.sticky):
                return
