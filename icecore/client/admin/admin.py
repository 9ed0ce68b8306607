"""Admin: every command for operators. Values in, values out.

Commands of one call are here; longer ones are in the files beside this one, by what they change.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, NoReturn, Self, Unpack

from icecore.client import checks
from icecore.client.admin import cluster, positions, tiering, topics
from icecore.client.admin.descriptions import topic_from_proto
from icecore.client.admin.tiering import MergedSegment, MergePlan
from icecore.client.cluster.connection import AdminCalls, Connection
from icecore.client.cluster.held_segments import list_segments
from icecore.client.cluster.metadata import Metadata
from icecore.client.cluster.offsets import Position
from icecore.client.cluster_types import (
    AdoptedMetadata,
    ClusterDescription,
    MetadataBackup,
    SegmentMove,
)
from icecore.client.consume.saved_positions import check_name, delete_positions, list_positions
from icecore.client.options import stays
from icecore.client.produce.identity import list_producer_names
from icecore.client.retries import OnRetry
from icecore.client.types import (
    MERGED_BYTES,
    ClusterTiering,
    DeletedRecords,
    DeletedTopic,
    OffsetResult,
    PositionChange,
    ProducerNameInfo,
    RollResult,
    SavedPosition,
    SnapshotHold,
    TopicDescription,
)
from icecore.model import Segment
from icecore.rpc.addresses import Transport
from icecore.rpc.ports import Clock, Net, Rng
from icecore.topic_settings import TopicFields, TopicSettings
from icecore.v1 import admin_pb2


class Admin:
    """The control side of a cluster. Every method raises IcecoreError subclasses.

    Calls are repeated while coordinators are unreachable or changing, up to ``timeout_s``; a
    change that an earlier attempt had made already counts as done.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        timeout_s: Seconds for one method, retries included.
        transport: ``auto`` = native to nodes that have it, ``grpc`` = never. Unless given, the
            environment says so: ``ICECORE_CLIENT__TRANSPORT``.
        on_retry: Called with whatever is tried again (``icecore.Retry``), which the log ``icecore``
            tells as well, a line per reason at a time. It must not wait.
        net: Made here unless given.
        clock: Of the system unless given.
        rng: Of the system unless given.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 30.0,
        transport: Transport | None = None,
        on_retry: OnRetry | None = None,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        checks.duration("timeout_s", timeout_s, 0, checks.DURATION_MS_MAX / 1000)
        self._connection = Connection(bootstrap, net, clock, rng, transport, on_retry)
        self._metadata = Metadata(self._connection)
        self._timeout_s = timeout_s
        self._calls = AdminCalls(self._connection, timeout_s)

    def __reduce__(self) -> NoReturn:
        raise stays(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._metadata.close()
        await self._connection.close()

    async def create_topic(
        self,
        name: str,
        settings: TopicSettings | None = None,
        *,
        if_not_exists: bool = False,
        **fields: Unpack[TopicFields],
    ) -> TopicDescription:
        """Create a topic; settings as a value or as keywords (``partitions=4``).

        Raises:
            InvalidTopicNameError: The name is not allowed.
            TopicExistsError: It exists already, unless ``if_not_exists``.
            IcecoreError: Too few nodes, or no coordinator answered.
        """
        return await topics.create_topic(
            self._calls, name, settings, fields, if_not_exists=if_not_exists
        )

    async def describe_topics(
        self, names: Sequence[str] = (), *, deleted: bool = False
    ) -> list[TopicDescription]:
        """Topics by name, all without names; ``deleted``: those that can be undeleted.

        Raises UnknownTopicError, but not for deleted ones.
        """
        return await topics.describe_topics(self._calls, names, deleted=deleted)

    async def alter_topic(
        self, name: str, settings: TopicSettings | None = None, **fields: Unpack[TopicFields]
    ) -> TopicDescription:
        """Change settings; they apply from the next segments, which this opens. A partition
        without a leader opens its next one when it has a leader again.

        Raises:
            UnknownTopicError: There is no such topic.
            IcecoreError: A segment could not be rolled; the settings are changed nevertheless.
        """
        return await topics.alter_topic(self._calls, name, settings, fields)

    async def add_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Grow a topic to ``partitions`` in total. Keys move: see the partitioner."""
        request = admin_pb2.AddPartitionsRequest(
            name=checks.topic_name(name),
            partitions=checks.whole("partitions", partitions, 1, checks.UINT32_MAX),
        )
        answer = await self._calls.call("AddPartitions", request, admin_pb2.AddPartitionsResponse)
        return topic_from_proto(answer.topic)

    async def delete_topic(
        self, name: str = "", *, now: bool = False, topic_id: bytes = b""
    ) -> DeletedTopic:
        """Delete a topic; until its ``delete_grace_ms`` are over it can be undeleted.

        Args:
            name: Of the topic.
            now: Without any grace: its records are gone. Also of a topic that is deleted, by id.
            topic_id: Instead of the name.

        Raises:
            UnknownTopicError: There is no such topic, or it is deleted already.
        """
        return await topics.delete_topic(self._calls, name, topic_id, now=now)

    async def undelete_topic(
        self, name: str = "", *, topic_id: bytes = b"", new_name: str = ""
    ) -> TopicDescription:
        """Bring back a deleted topic with all its records; offsets go on where they were.

        Args:
            name: That it had, if no other deleted topic had it.
            topic_id: Instead of the name.
            new_name: What to call it from now on; empty = as before.

        Raises:
            UnknownTopicError: No such topic is kept: it never was, or its grace is over.
            TopicExistsError: The name is taken: give another one.
            InvalidRequestError: Several deleted topics had the name: say which one by its id.
        """
        return await topics.undelete_topic(self._calls, name, topic_id, new_name)

    async def delete_records(
        self, topic: str, before_offsets: Mapping[int, int], *, dry_run: bool = False
    ) -> list[DeletedRecords]:
        """Delete the records of some partitions below given offsets: all of it, or nothing.

        Readers are told at once; files of whole sealed segments go within seconds.

        Args:
            topic: Its name.
            before_offsets: By partition, the first offset to keep: at most the high watermark. At
                or below the log start nothing is deleted.
            dry_run: Only say what would go.

        Raises:
            UnknownTopicError: There is no such topic.
            TopicRecreatedError: It was deleted and made again meanwhile.
            InvalidRequestError: There is no such partition, or none is given.
            OffsetOutOfRangeError: An offset is above the high watermark; the valid range is in the
                metadata.
        """
        return await topics.delete_records(self._calls, topic, before_offsets, dry_run=dry_run)

    async def roll_topic(self, name: str) -> RollResult:
        """Seal the active segments of a topic and open their successors."""
        return await topics.roll_topic(self._calls, name)

    async def describe_cluster(self) -> ClusterDescription:
        """Nodes and totals."""
        return await cluster.describe_cluster(self._calls)

    async def list_segments(
        self, topic: str = "", partitions: Iterable[int] = (), from_offset: int = 0
    ) -> list[Segment]:
        """Segments by topic, partition and base offset; all topics when ``topic`` is empty."""
        return await list_segments(
            self._connection,
            topic if topic == "" else checks.topic_name(topic),
            checks.partitions(partitions) or (),
            checks.whole("from_offset", from_offset, 0, checks.OFFSET_MAX),
            timeout_s=self._timeout_s,
        )

    async def declare_lost(self, topic: str, partition: int, segment_id: int) -> Segment:
        """Give up a sealed segment whose every copy is gone: consumers skip its records.

        Raises:
            InvalidRequestError: It is no such segment, or a node still holds a copy.
        """
        return await topics.declare_lost(self._calls, topic, partition, segment_id)

    async def accept_disk(self, node_id: int) -> int:
        """Let a node register with another disk although the one before holds last copies.

        Returns:
            Of how many segments that disk holds the last intact copy.

        Raises:
            InvalidRequestError: There is no such node.
            UnavailableError: The node is up, with the disk that it had.
        """
        return await cluster.accept_disk(self._calls, node_id)

    async def remove_node(self, node_id: int, *, disk_gone: bool = False) -> int:
        """Take a node that is gone for good out of the cluster.

        Args:
            node_id: The node. It is down, and who comes with its id later is a new node.
            disk_gone: Its disk never comes back. What it holds is given up, as far as other nodes
                that are up have it, and nobody waits until it has deleted what it was to delete.

        Returns:
            How many of its copies were given up.

        Raises:
            InvalidRequestError: There is no such node, it is up, or it still holds something: the
                error says what, and what to do.
        """
        return await cluster.remove_node(self._calls, node_id, disk_gone=disk_gone)

    async def drain_node(self, node_id: int, *, allow_fewer_copies: bool = False) -> None:
        """Have a node emptied: it gets nothing new, and other nodes take what it has.

        ``describe_cluster`` shows what it still holds. May be repeated.

        Args:
            node_id: The node; it may be down.
            allow_fewer_copies: Also where too few other nodes are left for the copies of a topic.

        Raises:
            InvalidRequestError: There is no such node, or too few others are left.
        """
        await cluster.drain_node(self._calls, node_id, allow_fewer_copies=allow_fewer_copies)

    async def undrain_node(self, node_id: int) -> None:
        """Let a node get new segments again. May be repeated.

        Raises:
            InvalidRequestError: There is no such node.
        """
        await cluster.drain_node(self._calls, node_id, undrain=True)

    async def balance_cluster(self, *, dry_run: bool = False) -> tuple[SegmentMove, ...]:
        """Even out leaders and replicas at once. It also happens by itself while no node is away.

        Segments roll, a few at a time, and their successors open on other nodes; what is sealed
        stays where it is. A segment without records does not move.

        Args:
            dry_run: Only say what would move.

        Returns:
            The moves, at most 1,000. They go on after the call.
        """
        return await cluster.balance_cluster(self._calls, dry_run=dry_run)

    async def adopt_metadata(
        self,
        *,
        dry_run: bool = False,
        without_nodes: Sequence[int] = (),
        skip_gaps: bool = False,
        bucket: Sequence[Mapping[str, Any]] | None = None,
    ) -> AdoptedMetadata:
        """Let suspended metadata go on: those of an older copy of the store, or of an empty one.

        Nothing is changed while a node is missing, or offsets are, unless an argument allows it.

        Args:
            dry_run: Only say what would come back.
            without_nodes: Nodes that are gone for good. What they alone have is lost.
            skip_gaps: Offsets that no node has count as lost.
            bucket: What object storage has: the topics that `icecore cluster adopt --bucket` reads.
                None = nobody has read it.

        Raises:
            InvalidRequestError: The metadata are not suspended.
            ConflictError: Nodes contradict each other; the message says what to do.
        """
        return await cluster.adopt_metadata(
            self._calls,
            dry_run=dry_run,
            without_nodes=without_nodes,
            skip_gaps=skip_gaps,
            bucket=bucket,
        )

    async def backup_metadata(self, path: str | PathLike[str]) -> MetadataBackup:
        """Write all metadata of this moment into a file, while the cluster goes on.

        Args:
            path: Of the file. An earlier backup of this cluster is replaced when the new one is
                whole and on the disk.

        Raises:
            ConfigurationError: The path is something else than a backup of this cluster.
            StorageError: The file can't be written.
            InvalidRequestError: The coordinator was started again meanwhile: repeat it.
            ThrottledError: Several others take a backup.
        """
        return await cluster.backup_metadata(self._calls, path)

    async def recover_unclean(self, topic: str, partition: int, segment_id: int) -> Segment | None:
        """End a segment whose end can't be proved at the longest log left of it.

        Acknowledged records may be lost, and their offsets given to others.

        Returns:
            The segment as sealed; None when nothing was left of it.

        Raises:
            InvalidRequestError: It is no such segment, or needs no such thing.
            NotEnoughReplicasError: Too few nodes are up; it will be done when there are more.
        """
        return await topics.recover_unclean(self._calls, topic, partition, segment_id)

    async def list_offsets(
        self, topic: str, position: Position, partitions: Iterable[int] | None = None
    ) -> dict[int, OffsetResult]:
        """The offset of ``position`` in each partition.

        Args:
            topic: Its name.
            position: ``"earliest"``, ``"latest"`` (the high watermark) or a time with time zone:
                the first record appended then or later, or the high watermark when there is none.
            partitions: All unless given.
        """
        return await positions.list_offsets(
            self._calls, self._metadata, topic, position, partitions
        )

    async def hold_snapshot(
        self, topic: str, hold_ms: int, *, lease_id: bytes = b"", owner: str = ""
    ) -> SnapshotHold:
        """Have a topic keep what it has: retention takes nothing from it while this lasts.

        Records that somebody deletes, a topic that is deleted and a full disk count more.

        Args:
            topic: Its name.
            hold_ms: For how long from now, a day at most. Nothing is shortened by it.
            lease_id: Of the hold that is to last longer; a new one unless given.
            owner: Who that is, for people.

        Raises:
            UnknownTopicError: There is no such topic.
            ConflictError: The hold of this id has ended.
            InvalidRequestError: The topic has too many holds.
        """
        return await positions.hold_snapshot(self._calls, topic, hold_ms, lease_id, owner)

    async def release_snapshot(self, topic: str, lease_id: bytes) -> None:
        """End a hold; nothing happens when it has ended. Raises UnknownTopicError."""
        await positions.release_snapshot(self._calls, topic, lease_id)

    async def list_positions(
        self, name: str = "", topics: Sequence[str] = ()
    ) -> list[SavedPosition]:
        """Return how far readers have come, by name, topic and partition; see ``Consumer``.

        Args:
            name: Only under this name.
            topics: Only of these.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        return await list_positions(
            self._connection,
            checks.text("name", name),
            checks.names("topics", topics),
            timeout_s=self._timeout_s,
        )

    async def reset_position(
        self,
        name: str,
        topic: str,
        position: Position,
        partitions: Iterable[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> dict[int, PositionChange]:
        """Let the readers of a name go on elsewhere. One that runs is told when it saves next.

        Args:
            name: Of the readers; there need not be any yet.
            topic: Of the partitions.
            position: As where a consumer starts, within the log.
            partitions: All unless given.
            dry_run: Only say what would change.

        Raises:
            InvalidRequestError: An offset is not in the log, or it is no name.
            PositionConflictError: A reader saved at the same time; other partitions are reset.
        """
        return await positions.reset_position(
            self._calls, self._metadata, name, topic, position, partitions, dry_run=dry_run
        )

    async def delete_positions(self, name: str, topic: str = "") -> int:
        """Forget how far the readers of a name have come, in one topic or in all; how many
        positions there were.

        Raises:
            UnknownTopicError: There is no such topic.
            InvalidRequestError: It is no name.
        """
        check_name(checks.text("name", name))
        if checks.text("topic", topic):
            checks.topic_name(topic)
        return await delete_positions(self._connection, name, topic, timeout_s=self._timeout_s)

    async def list_producer_names(self) -> list[ProducerNameInfo]:
        """Names that producers have taken, in order."""
        return await list_producer_names(self._connection, timeout_s=self._timeout_s)

    async def delete_producer_name(self, name: str) -> None:
        """Forget a name that nobody uses any more. Who has it gets PRODUCER_FENCED from then on;
        who takes it later begins a new sequence.

        Raises:
            InvalidRequestError: There is no such name.
            ConflictError: A producer took it at the same time.
            UnavailableError: Some leader did not answer; the name is still there: try again.
        """
        await positions.delete_producer_name(self._calls, name)

    async def describe_tiering(
        self, topics: Sequence[str] = (), *, with_copies: bool = False
    ) -> ClusterTiering:
        """Describe how far topics are copied into object storage; all tiered topics unless named.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        return await tiering.describe_tiering(self._calls, topics, with_copies=with_copies)

    async def import_tiered(
        self, plan: Mapping[str, Any], settings: TopicSettings
    ) -> TopicDescription:
        """Make a topic of segments that are in object storage. May be repeated.

        Args:
            plan: One topic, as ``icecore tier restore --dry-run --json`` shows it.
            settings: Of the topic, with its partitions.

        Raises:
            TopicExistsError: It is there, with other contents.
            ConflictError: Ids of its segments are taken in this cluster.
            InvalidRequestError: The plan contradicts itself.
        """
        return await tiering.import_tiered(self._calls, plan, settings)

    async def forget_store(self, store_id: bytes) -> None:
        """Give up an object store that is gone for good: the next one that a node uploads to is the
        cluster's. Segments that only the old one had can't be read. May be repeated.

        Args:
            store_id: Its 16 bytes, as ``describe_tiering`` shows them.

        Raises:
            InvalidRequestError: The cluster uses another object store, or none.
        """
        await tiering.forget_store(self._calls, store_id)

    async def plan_merges(self, topic: str, target_bytes: int = MERGED_BYTES) -> MergePlan:
        """Plan which small segments, in object storage alone, could become large ones.

        Args:
            topic: Its name.
            target_bytes: Of objects: no group has more.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        return await tiering.plan_merges(self._calls, topic, target_bytes)

    async def merge_segments(self, topic: str, segment_ids: Sequence[int]) -> MergedSegment:
        """Put one segment in the place of several, while readers go on. May be repeated.

        Args:
            topic: Its name.
            segment_ids: Of a group of ``plan_merges``.

        Raises:
            InvalidRequestError: They can't be merged (any more): make a new plan. Or they don't
                follow each other, or one has batches without rows.
            UnavailableError: All nodes with an object store were busy for all the time.
        """
        return await tiering.merge_segments(self._calls, topic, segment_ids)
