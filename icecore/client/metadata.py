"""Who leads which partition, cached; asked again when a node turns out not to.

Requests to refresh coalesce into one call, and calls keep a distance, so that a failover with a
thousand partitions does not become a thousand questions.
"""

import asyncio
from collections.abc import Callable

from icecore.client.connection import Backoff, Connection, share
from icecore.client.types import ClusterView, PartitionMetadata, TopicMetadata
from icecore.errors import IcecoreError, TopicRecreatedError, UnknownTopicError
from icecore.model import NodeInfo, NodeState
from icecore.rpc import convert
from icecore.v1 import admin_pb2

_DISTANCE_MS = 40.0
_AGE_MS_MAX = 60_000.0


class Metadata:
    """The cluster as last seen.

    Args:
        connection: The way to the coordinator.
        timeout_s: How long one refresh may take, over all coordinators.
    """

    def __init__(self, connection: Connection, *, timeout_s: float = 10.0) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._names: set[str] = set()
        self._view = ClusterView()
        self._errors: dict[str, IcecoreError] = {}
        self._running: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None] | None = None
        self._refreshed = asyncio.Event()
        """Set for a moment after each answer."""
        self._refreshed_ms = -_DISTANCE_MS
        self.on_recreated: Callable[[], None] = lambda: None
        """Called when a topic turns out to be another one than before."""

    @property
    def cluster_id(self) -> bytes:
        """16 bytes, empty before the first answer."""
        return self._view.cluster_id

    @property
    def nodes(self) -> list[NodeInfo]:
        """All nodes known."""
        return list(self._view.nodes.values())

    @property
    def age_ms(self) -> float:
        """Time since the last answer."""
        return self._connection.clock.monotonic_ms() - self._refreshed_ms

    def known(self, topic: str) -> TopicMetadata | None:
        """The cached topic, None when it was never found."""
        return self._view.topics.get(topic)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """The cached partition, None when there is none."""
        found = self._view.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def error(self, topic: str) -> IcecoreError | None:
        """What the coordinator said about the topic the last time, None when it is fine."""
        return self._errors.get(topic)

    def address(self, node_id: int) -> str | None:
        """``host:port`` of a node, None when it is unknown."""
        node = self._view.nodes.get(node_id)
        return node.address if node is not None and node.address else None

    def is_up(self, node_id: int) -> bool:
        """Whether the coordinator thinks the node is up."""
        node = self._view.nodes.get(node_id)
        return node is not None and node.state is not NodeState.DOWN

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the leader, 0 when there is none or its address is unknown."""
        found = self.partition(topic, partition)
        return found.leader if found is not None and self.address(found.leader) else 0

    async def topic(self, name: str, *, timeout_s: float, is_fresh: bool = False) -> TopicMetadata:
        """The topic, asked for until it is there; ``is_fresh`` asks even if it is known.

        Raises:
            UnknownTopicError: It does not exist.
            IcecoreError: No coordinator answered in time.
        """
        self._names.add(name)
        end_ms = self._connection.deadline_ms(timeout_s)
        backoff = Backoff(self._connection.rng)
        while True:
            error: IcecoreError
            try:
                if is_fresh or name not in self._view.topics or name in self._errors:
                    await self.refresh()
                found = self._view.topics.get(name)
                if found is not None and name not in self._errors:
                    return found
                error = self._errors.get(name) or UnknownTopicError(f"no topic {name}")
            except IcecoreError as caught:
                error = caught
            delay_s = backoff.next_s(error)
            past = self._connection.clock.monotonic_ms() + delay_s * 1000 >= end_ms
            if past or not error.retriable:
                raise error
            await asyncio.sleep(delay_s)

    async def refresh(self, *, is_newer: bool = False) -> None:
        """Ask the coordinator again; concurrent callers share one question. With ``is_newer`` it is
        one that goes out after the call: the answer to an earlier one may be out of date.

        Raises:
            IcecoreError: No coordinator answered in time.
        """
        running = self._running
        if is_newer and running is not None:
            await asyncio.wait({running})
            running = self._running
        if running is None or running.done():
            running = self._running = share(self._refresh())
        # Not awaited itself: a caller that is cancelled must not take the others' answer away.
        await asyncio.wait({running})
        running.result()

    async def until_moved(self, topic: str, partition: int, timeout_s: float) -> bool:
        """Sleep, but only until somebody's refresh shows a new leader of the partition; whether
        one did."""
        before = self.partition(topic, partition)
        try:
            async with asyncio.timeout(timeout_s):
                while not _has_moved(before, self.partition(topic, partition)):
                    await self._refreshed.wait()
        except TimeoutError:
            return False
        return True

    def watch(self, on_look: Callable[[], None]) -> None:
        """Until ``close``, ask again what nobody asked for a minute, and call ``on_look`` every
        half: that partitions were added shows in nothing else while nothing fails."""
        self._watching = share(self._watch(on_look))

    async def _watch(self, on_look: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_AGE_MS_MAX / 2000)
            try:
                if self._names and self.age_ms > _AGE_MS_MAX:
                    await self.refresh()
            except IcecoreError:
                continue  # who needs it now finds out and says so
            on_look()

    async def close(self) -> None:
        """Stop watching, and a refresh that is under way."""
        tasks = [task for task in (self._watching, self._running) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _refresh(self) -> None:
        if (wait_ms := _DISTANCE_MS - self.age_ms) > 0:
            await asyncio.sleep(wait_ms / 1000)
        request = admin_pb2.GetMetadataRequest(topics=sorted(self._names))
        answer = await self._connection.admin(
            "GetMetadata", request, admin_pb2.GetMetadataResponse, timeout_s=self._timeout_s
        )
        topics = dict(self._view.topics)
        has_other = False
        for message in answer.topics:
            error = convert.error_from_proto(message.error)
            if error is None and not message.partitions:  # it is being made: nothing can be sent
                error = UnknownTopicError(f"topic {message.name} has no partitions yet")
            if error is not None:
                self._errors[message.name] = error
                continue
            self._errors.pop(message.name, None)
            before = topics.get(message.name)
            topics[message.name] = found = _topic(message, before)
            has_other = has_other or (before is not None and before.topic_id != found.topic_id)
        nodes = {node.node_id: convert.node_from_proto(node) for node in answer.nodes}
        self._view = ClusterView(answer.cluster_id, nodes, topics)
        self._refreshed_ms = self._connection.clock.monotonic_ms()
        self._refreshed.set()
        self._refreshed.clear()
        if has_other:
            self.on_recreated()


def topic_recreated(name: str, before: bytes, now: bytes) -> TopicRecreatedError:
    """The error of who meant the topic that had the id ``before``."""
    return TopicRecreatedError(
        f"topic {name} was deleted and made again: {before.hex()} was meant, {now.hex()} is there; "
        "offsets and unsent records of the old one mean nothing in the new one",
        topic=name,
        topic_id=before.hex(),
        new_topic_id=now.hex(),
    )


def _has_moved(before: PartitionMetadata | None, now: PartitionMetadata | None) -> bool:
    if now is None or not now.leader:
        return False
    return before is None or now.epoch > before.epoch or not before.leader


def _topic(message: admin_pb2.TopicMetadata, before: TopicMetadata | None) -> TopicMetadata:
    """The topic of an answer; a partition never goes back to an older epoch."""
    same = before if before is not None and before.topic_id == message.topic_id else None
    partitions = []
    for found in sorted(message.partitions, key=lambda p: p.partition):
        partition = PartitionMetadata(
            partition=found.partition,
            log_start_offset=found.log_start_offset,
            segment_id=found.segment_id,
            epoch=found.epoch,
            leader=found.leader,
            replicas=tuple(found.replicas),
            isr=tuple(found.isr),
            tail_base_offset=found.tail_base_offset,
        )
        if same is not None and found.partition < len(same.partitions):
            old = same.partitions[found.partition]
            partition = old if old.epoch > partition.epoch else partition
        partitions.append(partition)
    partitioner = message.settings.partitioner or "xxh64"
    return TopicMetadata(message.name, message.topic_id, tuple(partitions), partitioner)
