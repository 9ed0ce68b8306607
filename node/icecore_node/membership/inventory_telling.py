"""All that this node holds and has heard, told to a coordinator whose metadata are suspended.

Such a coordinator stands on an older copy of its store, or on an empty one. It orders nothing, and
asks by its refusals for the word of each node, from which a person may let it go on. The node tells
it once to each such process, in pages, and serves on meanwhile. It changes nothing here.

A node with an object store lists that first, beside its other work: segments that all nodes have
dropped are in the bucket alone, and their numbers must not be given out again.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from icecore.errors import IcecoreError
from icecore.model import INVENTORY_WANTED, PROTOCOL_VERSION
from icecore.process.log import event
from icecore.rpc.convert import segment_to_proto
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import ITEMS_PER_CALL_MAX, CoordinatorLink
from icecore_node.ports import Folder
from icecore_node.registry.table import ReplicaTable
from icecore_node.registry.topic_mirror import TopicMirror
from icecore_node.replica.replica import Replica

_log = logging.getLogger(__name__)

T = TypeVar("T")

PROBLEM_MAX = 500
"""Most characters of the reason why a bucket could not be read."""
ReadNumbers = Callable[[], Awaitable[pb.ToldBucket]]
"""Lists the object store. Raises what the store raises."""


def register_request(
    context: NodeContext, folder: Folder, inventory: Sequence[pb.SegmentInventory]
) -> pb.RegisterRequest:
    """Return what a node says of itself when it registers."""
    return pb.RegisterRequest(
        cluster_id=context.identity.cluster_id,
        node_id=context.identity.node_id,
        disk_id=folder.disk_id,
        incarnation=folder.incarnation,
        address=context.identity.address,
        native_address=context.identity.native_address,
        rack=context.settings.rack,
        host=context.settings.host or socket.gethostname(),
        protocol_version=PROTOCOL_VERSION,
        segments=inventory,
        disk_counter=folder.disk_counter,
        tier_url=context.settings.tier_url,
        metadata_revision=context.identity.metadata_revision,
    )


class InventoryTelling:
    """Answers the refusals that ask for the inventory. Loop only."""

    def __init__(
        self,
        context: NodeContext,
        folder: Folder,
        coordinator: CoordinatorLink,
        table: ReplicaTable,
        mirror: TopicMirror,
        read_numbers: ReadNumbers | None,
    ) -> None:
        self._read_numbers = read_numbers
        self._listing: asyncio.Task[pb.ToldBucket] | None = None
        self._context = context
        self._folder = folder
        self._coordinator = coordinator
        self._table = table
        self._mirror = mirror
        self._told = ""
        """Name of the coordinator's process that was told all."""

    async def heard(self, error: IcecoreError) -> None:
        """A coordinator refused this node. Tell it the inventory if it asks for that."""
        wanted = error.metadata.get(INVENTORY_WANTED, "")
        if wanted in ("", self._told):
            return
        if self._read_numbers is not None:
            self._listing = self._listing or asyncio.ensure_future(_listed(self._read_numbers))
            if not self._listing.done():
                return  # the next refusal asks again
        bucket = self._listing.result() if self._listing is not None else None
        pages = 0
        try:
            for page in self._pages(bucket):
                await self._coordinator.tell_inventory(page)
                pages += 1
        except IcecoreError as refusal:  # the next refusal asks again
            event(_log, logging.WARNING, "inventory_not_told", pages=pages, error=refusal)
            return
        self._told, self._listing = wanted, None
        event(_log, logging.WARNING, "inventory_told", pages=pages, why=error.message)

    def _pages(self, bucket: pb.ToldBucket | None) -> Iterator[pb.TellInventoryRequest]:
        """Segments as they are when their page goes out."""
        context, count = self._context, ITEMS_PER_CALL_MAX
        replicas, topics = list(self._table), list(self._topics())
        pages = max(1, -(-max(len(replicas), len(topics)) // count))
        for number in range(pages):
            held, told = _page(replicas, number, count), _page(topics, number, count)
            node = register_request(context, self._folder, [told_copy(each) for each in held])
            yield pb.TellInventoryRequest(
                node=node,
                coordinator_epoch=context.identity.coordinator_epoch,
                page=number,
                more=number + 1 < pages,
                peers=sorted(context.peers.nodes),
                topics=told,
                bucket=bucket,
            )

    def _topics(self) -> Iterator[pb.ToldTopic]:
        for name, topic_id in self._mirror.names():
            found = self._mirror.find(name)
            numbers = [each.partition for each in found.partitions] if found is not None else []
            count = max(numbers, default=-1) + 1
            yield pb.ToldTopic(topic_id=topic_id, name=name, partitions=count)


async def _listed(read_numbers: ReadNumbers) -> pb.ToldBucket:
    """The numbers of the bucket, or the reason why they are not known."""
    try:
        return await read_numbers()
    except IcecoreError as error:
        event(_log, logging.WARNING, "bucket_not_listed", error=error)
        return pb.ToldBucket(problem=error.message[:PROBLEM_MAX] or "it could not be read")


def _page(items: Sequence[T], number: int, count: int) -> Sequence[T]:
    return items[number * count : (number + 1) * count]


def told_copy(replica: Replica) -> pb.SegmentInventory:
    """Return one replica as metadata hear of it that may not know its segment."""
    identity, tail = replica.identity, replica.log.durable_tail
    told = pb.SegmentInventory(
        segment_id=identity.segment_id,
        durable_end_offset=tail.end_offset,
        sealed=replica.sealed,
        intact=replica.life.is_intact,
        topic_id=identity.topic_id,
        partition=identity.partition,
        base_offset=identity.base_offset,
        epoch=identity.epoch,
        promised_epoch=replica.promised_epoch,
        generation=identity.generation,
        digest=tail.digest,
        length_bytes=tail.length_bytes,
        max_append_timestamp_ms=tail.max_append_timestamp_ms,
    )
    if replica.segment is not None:
        told.record.CopyFrom(segment_to_proto(replica.segment))
    return told
