"""Admin: create, describe and change topics, look at the cluster. Values in, values out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Self, Unpack

from icecore.client import checks
from icecore.client.admin.backup import take_backup
from icecore.client.admin.descriptions import (
    adopted_from_proto,
    cluster_from_proto,
    topic_from_proto,
)
from icecore.client.admin.tiering import (
    MERGED_BYTES_MAX,
    MergedSegment,
    MergePlan,
    import_requests,
    merge_plan,
    tiering_of,
)
from icecore.client.admin.topic_settings import settings_to_proto
from icecore.client.cluster.connection import Connection
from icecore.client.cluster.held_segments import list_segments
from icecore.client.cluster.metadata import Metadata
from icecore.client.cluster.offsets import OffsetLookup, Position, check_position
from icecore.client.consume.saved_positions import (
    NOWHERE,
    ReaderPlace,
    SavedPositions,
    check_name,
    delete_positions,
    list_positions,
)
from icecore.client.produce.identity import list_producer_names
from icecore.client.retries import OnRetry
from icecore.client.types import (
    MERGED_BYTES,
    AdoptedMetadata,
    ClusterDescription,
    ClusterTiering,
    DeletedRecords,
    DeletedTopic,
    MetadataBackup,
    OffsetResult,
    PositionChange,
    ProducerNameInfo,
    RollResult,
    SavedPosition,
    SnapshotHold,
    TopicDescription,
)
from icecore.errors import InvalidRequestError, TopicExistsError, UnknownTopicError
from icecore.model import Segment
from icecore.rpc import convert
from icecore.rpc.addresses import Transport
from icecore.rpc.ports import Clock, Net, Rng
from icecore.topic_settings import TopicFields, TopicSettings
from icecore.v1 import admin_pb2

LEASE_ID_BYTES: Final = 16
STORE_ID_BYTES: Final = 16


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
        request = admin_pb2.CreateTopicRequest(
            name=checks.topic_name(name),
            settings=settings_to_proto(settings, fields),
            if_not_exists=checks.flag("if_not_exists", if_not_exists),
        )
        try:
            answer = await self._call("CreateTopic", request, admin_pb2.CreateTopicResponse)
        except TopicExistsError as error:
            if error.metadata.get("repeated") != "true":
                raise
            return (await self.describe_topics([name]))[0]
        return topic_from_proto(answer.topic)

    async def describe_topics(
        self, names: Sequence[str] = (), *, deleted: bool = False
    ) -> list[TopicDescription]:
        """Topics by name, all without names; ``deleted``: those that can be undeleted.

        Raises UnknownTopicError, but not for deleted ones.
        """
        request = admin_pb2.DescribeTopicsRequest(
            names=checks.names("names", names), deleted=checks.flag("deleted", deleted)
        )
        answer = await self._call("DescribeTopics", request, admin_pb2.DescribeTopicsResponse)
        return [topic_from_proto(topic) for topic in answer.topics]

    async def alter_topic(
        self, name: str, settings: TopicSettings | None = None, **fields: Unpack[TopicFields]
    ) -> TopicDescription:
        """Change settings; they apply from the next segments, which this opens.

        Raises:
            UnknownTopicError: There is no such topic.
            IcecoreError: A segment could not be rolled; the settings are changed nevertheless.
        """
        changed = settings_to_proto(settings, fields)
        asked = fields.get("indexed_headers") if settings is None else settings.indexed_headers
        request = admin_pb2.AlterTopicRequest(
            name=checks.topic_name(name),
            settings=changed,
            clear_indexed_headers=asked is not None and not changed.indexed_headers,
        )
        answer = await self._call("AlterTopic", request, admin_pb2.AlterTopicResponse)
        for message in answer.roll_errors:
            if (error := convert.error_from_proto(message)) is not None:
                raise error
        return topic_from_proto(answer.topic)

    async def add_partitions(self, name: str, partitions: int) -> TopicDescription:
        """Grow a topic to ``partitions`` in total. Keys move: see the partitioner."""
        request = admin_pb2.AddPartitionsRequest(
            name=checks.topic_name(name),
            partitions=checks.whole("partitions", partitions, 1, checks.UINT32_MAX),
        )
        answer = await self._call("AddPartitions", request, admin_pb2.AddPartitionsResponse)
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
        checks.flag("now", now)
        meant = _which(name, topic_id)
        # By its id: a repeated call must not hit a later topic of the name.
        topic_id = topic_id or await self._id_of(name)
        request = admin_pb2.DeleteTopicRequest(now=now, **(meant | {"topic_id": topic_id}))
        try:
            answer = await self._call("DeleteTopic", request, admin_pb2.DeleteTopicResponse)
        except UnknownTopicError as error:
            if error.metadata.get("repeated") != "true":
                raise
            kept = await self.describe_topics([name] if name else (), deleted=True)
            mine = [each for each in kept if topic_id in (b"", each.topic_id)]
            newest = max(mine, key=lambda each: each.deleted_at_ms, default=None)
            if now or newest is None:
                return DeletedTopic(topic_id, 0)
            return DeletedTopic(newest.topic_id, newest.grace_left_ms)
        return DeletedTopic(answer.topic_id, answer.grace_ms)

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
        request = admin_pb2.UndeleteTopicRequest(
            new_name=new_name if new_name == "" else checks.topic_name(new_name),
            **_which(name, topic_id),
        )
        try:
            answer = await self._call("UndeleteTopic", request, admin_pb2.UndeleteTopicResponse)
        except (UnknownTopicError, TopicExistsError) as error:
            if error.metadata.get("repeated") != "true":
                raise
            found = await self.describe_topics([new_name or name] if new_name or name else ())
            mine = [each for each in found if topic_id in (b"", each.topic_id)]
            if not mine:
                raise
            return mine[0]
        return topic_from_proto(answer.topic)

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
        if not isinstance(before_offsets, Mapping):
            raise checks.wrong_type("before_offsets", before_offsets, "a mapping")
        request = admin_pb2.DeleteRecordsRequest(
            topic=checks.topic_name(topic), dry_run=checks.flag("dry_run", dry_run)
        )
        for partition, offset in before_offsets.items():
            request.partitions.add(
                partition=checks.partition_number(partition),
                before_offset=checks.whole("before_offset", offset, 0, checks.OFFSET_MAX),
            )
        request.topic_id = await self._id_of(topic)  # as with delete_topic
        answer = await self._call("DeleteRecords", request, admin_pb2.DeleteRecordsResponse)
        return [
            DeletedRecords(
                each.partition,
                each.from_offset,
                each.log_start_offset,
                tuple(map(convert.segment_from_proto, each.segments)),
            )
            for each in answer.partitions
        ]

    async def roll_topic(self, name: str) -> RollResult:
        """Seal the active segments of a topic and open their successors."""
        request = admin_pb2.RollTopicRequest(name=checks.topic_name(name))
        answer = await self._call("RollTopic", request, admin_pb2.RollTopicResponse)
        found = (convert.error_from_proto(error) for error in answer.errors)
        return RollResult(answer.rolled, tuple(error for error in found if error is not None))

    async def describe_cluster(self) -> ClusterDescription:
        """Nodes and totals."""
        request = admin_pb2.DescribeClusterRequest()
        answer = await self._call("DescribeCluster", request, admin_pb2.DescribeClusterResponse)
        return cluster_from_proto(answer)

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
        request = admin_pb2.DeclareLostRequest(**_segment(topic, partition, segment_id))
        answer = await self._call("DeclareLost", request, admin_pb2.DeclareLostResponse)
        return convert.segment_from_proto(answer.segment)

    async def accept_disk(self, node_id: int) -> int:
        """Let a node register with another disk although the one before holds last copies.

        Returns:
            Of how many segments that disk holds the last intact copy.

        Raises:
            InvalidRequestError: There is no such node.
            UnavailableError: The node is up, with the disk that it had.
        """
        request = admin_pb2.AcceptDiskRequest(
            node_id=checks.whole("node_id", node_id, 1, checks.UINT32_MAX)
        )
        answer = await self._call("AcceptDisk", request, admin_pb2.AcceptDiskResponse)
        return int(answer.last_copies)

    async def forget_node(self, node_id: int, *, disk_gone: bool = False) -> int:
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
        request = admin_pb2.ForgetNodeRequest(
            node_id=checks.whole("node_id", node_id, 1, checks.UINT32_MAX),
            disk_gone=checks.flag("disk_gone", disk_gone),
        )
        answer = await self._call("ForgetNode", request, admin_pb2.ForgetNodeResponse)
        return int(answer.given_up_copies)

    async def adopt_metadata(
        self,
        *,
        dry_run: bool = False,
        without_nodes: Sequence[int] = (),
        skip_gaps: bool = False,
    ) -> AdoptedMetadata:
        """Let suspended metadata go on: those of an older copy of the store, or of an empty one.

        Nothing is changed while a node is missing, or offsets are, unless an argument allows it.

        Args:
            dry_run: Only say what would come back.
            without_nodes: Nodes that are gone for good. What they alone have is lost.
            skip_gaps: Offsets that no node has count as lost.

        Raises:
            InvalidRequestError: The metadata are not suspended.
            ConflictError: Nodes contradict each other; the message says what to do.
        """
        request = admin_pb2.AdoptMetadataRequest(
            dry_run=checks.flag("dry_run", dry_run),
            without_nodes=checks.node_ids("without_nodes", without_nodes),
            skip_gaps=checks.flag("skip_gaps", skip_gaps),
        )
        answer = await self._call("AdoptMetadata", request, admin_pb2.AdoptMetadataResponse)
        return adopted_from_proto(answer)

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
        if not isinstance(path, str | PathLike) or not (name := fspath(path)):
            raise checks.wrong_type("path", path, "the path of a file")
        return await take_backup(self._connection, Path(name), timeout_s=self._timeout_s)

    async def recover_unclean(self, topic: str, partition: int, segment_id: int) -> Segment | None:
        """End a segment whose end can't be proved at the longest log left of it.

        Acknowledged records may be lost, and their offsets given to others.

        Returns:
            The segment as sealed; None when nothing was left of it.

        Raises:
            InvalidRequestError: It is no such segment, or needs no such thing.
            NotEnoughReplicasError: Too few nodes are up; it will be done when there are more.
        """
        request = admin_pb2.RecoverUncleanRequest(**_segment(topic, partition, segment_id))
        try:
            answer = await self._call("RecoverUnclean", request, admin_pb2.RecoverUncleanResponse)
        except InvalidRequestError as error:
            if error.metadata.get("repeated") != "true":
                raise
            found = await self.list_segments(topic, [partition])
            return next((each for each in found if each.segment_id == segment_id), None)
        has_segment = answer.HasField("segment")
        return convert.segment_from_proto(answer.segment) if has_segment else None

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
        checks.topic_name(topic)
        check_position(position)
        wanted = checks.partitions(partitions)
        found = await self._metadata.topic(topic, timeout_s=self._timeout_s, is_fresh=True)
        count = len(found.partitions)
        wanted = tuple(range(count)) if wanted is None else wanted
        if any(partition >= count for partition in wanted):
            raise InvalidRequestError(f"{topic} has partitions 0 to {count - 1}")
        lookup = OffsetLookup(self._connection, self._metadata, topic, timeout_s=self._timeout_s)
        results = {partition: await lookup.find(partition, position) for partition in wanted}
        topic_id = lookup.topic_id or found.topic_id
        return {each: replace(result, topic_id=topic_id) for each, result in results.items()}

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
        if not isinstance(lease_id, bytes) or len(lease_id) not in (0, LEASE_ID_BYTES):
            raise checks.wrong_type("lease_id", lease_id, f"{LEASE_ID_BYTES} bytes")
        request = admin_pb2.HoldSnapshotRequest(
            topic=checks.topic_name(topic),
            lease_id=lease_id or self._connection.rng.bytes(LEASE_ID_BYTES),
            hold_ms=checks.whole("hold_ms", hold_ms, 1, checks.UINT64_MAX),
            owner=checks.text("owner", owner),
            renew=bool(lease_id),
        )
        answer = await self._call("HoldSnapshot", request, admin_pb2.HoldSnapshotResponse)
        held = answer.hold
        return SnapshotHold(answer.topic_id, held.lease_id, held.left_ms, held.owner)

    async def release_snapshot(self, topic: str, lease_id: bytes) -> None:
        """End a hold; nothing happens when it has ended.

        Raises UnknownTopicError.
        """
        if not isinstance(lease_id, bytes):
            raise checks.wrong_type("lease_id", lease_id, "bytes")
        request = admin_pb2.ReleaseSnapshotRequest(
            topic=checks.topic_name(topic), lease_id=lease_id
        )
        await self._call("ReleaseSnapshot", request, admin_pb2.ReleaseSnapshotResponse)

    async def list_positions(
        self, name: str = "", topics: Sequence[str] = ()
    ) -> list[SavedPosition]:
        """How far readers have come, by name, topic and partition; see ``Consumer``.

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
        check_name(checks.text("name", name))
        is_dry_run = checks.flag("dry_run", dry_run)
        found = await self.list_offsets(topic, position, partitions)
        if isinstance(position, int) and position >= 0:
            await self._check_offsets(topic, position, list(found))
        known = self._metadata.known(topic)
        assert known is not None  # the offsets are of it
        stored = await self.list_positions(name, [topic])
        before = {each.partition: each.offset for each in stored}
        changes = {
            number: PositionChange(before.get(number), each.offset)
            for number, each in found.items()
        }
        if not is_dry_run:
            saved = SavedPositions(self._connection, name, self._timeout_s)
            # Where it stands there already, too: a reader that runs has come further since.
            saved.note(replace(each, offset=NOWHERE) for each in stored)
            places = [
                ReaderPlace(known.topic_id, number, each.to) for number, each in changes.items()
            ]
            await saved.save(lambda: places)
        return changes

    async def _check_offsets(self, topic: str, offset: int, partitions: Iterable[int]) -> None:
        first = await self.list_offsets(topic, "earliest", partitions)
        end = await self.list_offsets(topic, "latest", partitions)
        for number in first:
            if not first[number].offset <= offset <= end[number].offset:
                raise InvalidRequestError(
                    f"{topic}/{number} has offsets {first[number].offset} to {end[number].offset}, "
                    f"not {offset}"
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
        request = admin_pb2.DeleteProducerNameRequest(name=checks.text("name", name))
        await self._call("DeleteProducerName", request, admin_pb2.DeleteProducerNameResponse)

    async def describe_tiering(
        self, topics: Sequence[str] = (), *, with_copies: bool = False
    ) -> ClusterTiering:
        """Describe how far topics are copied into object storage; all tiered topics unless named.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        request = admin_pb2.DescribeTieringRequest(
            topics=checks.names("topics", topics),
            with_copies=checks.flag("with_copies", with_copies),
        )
        answer = await self._call("DescribeTiering", request, admin_pb2.DescribeTieringResponse)
        return ClusterTiering(
            cluster_id=answer.cluster_id,
            topics=tuple(map(tiering_of, answer.topics)),
            tier_urls=tuple(answer.tier_urls),
            gone_topics=answer.gone_topics,
            tier_url=answer.tier_url,
            store_id=answer.store_id,
        )

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
        for request in import_requests(plan, settings_to_proto(settings, {})):
            answer = await self._call("ImportTiered", request, admin_pb2.ImportTieredResponse)
        return topic_from_proto(answer.topic)

    async def forget_store(self, store_id: bytes) -> None:
        """Give up an object store that is gone for good: the next one that a node uploads to is the
        cluster's. Segments that only the old one had can't be read. May be repeated.

        Args:
            store_id: Its 16 bytes, as ``describe_tiering`` shows them.

        Raises:
            InvalidRequestError: The cluster uses another object store, or none.
        """
        if not isinstance(store_id, bytes) or len(store_id) != STORE_ID_BYTES:
            raise checks.wrong_type("store_id", store_id, f"{STORE_ID_BYTES} bytes")
        request = admin_pb2.ForgetStoreRequest(store_id=store_id)
        await self._call("ForgetStore", request, admin_pb2.ForgetStoreResponse)

    async def plan_merges(self, topic: str, target_bytes: int = MERGED_BYTES) -> MergePlan:
        """Plan which small segments, in object storage alone, could become large ones.

        Args:
            topic: Its name.
            target_bytes: Of objects: no group has more.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        request = admin_pb2.PlanMergesRequest(
            topic=checks.topic_name(topic),
            target_bytes=checks.whole("target_bytes", target_bytes, 1, MERGED_BYTES_MAX),
        )
        return merge_plan(await self._call("PlanMerges", request, admin_pb2.PlanMergesResponse))

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
        request = admin_pb2.MergeSegmentsRequest(
            topic=checks.topic_name(topic),
            segment_ids=checks.segment_ids("segment_ids", segment_ids),
        )
        answer = await self._call("MergeSegments", request, admin_pb2.MergeSegmentsResponse)
        segment = convert.segment_from_proto(answer.segment)
        return MergedSegment(segment, answer.length_bytes, answer.records)

    async def _id_of(self, name: str) -> bytes:
        """The id of the topic that has this name now. Raises UnknownTopicError."""
        (found,) = await self.describe_topics([name])
        return found.topic_id

    async def _call(self, method: str, request: Any, answer: Any) -> Any:
        """Changes may take as long as the whole method; reading is tried again sooner."""
        is_read = method.startswith(("Describe", "Plan"))
        found = await self._connection.admin(
            method,
            request,
            answer,
            timeout_s=self._timeout_s,
            attempt_s=5.0 if is_read else self._timeout_s,
        )
        return found


def _which(name: str, topic_id: bytes) -> dict[str, Any]:
    """A topic by its id or its name. Raises TypeError, InvalidTopicNameError."""
    if not isinstance(topic_id, bytes):
        raise checks.wrong_type("topic_id", topic_id, "bytes")
    if topic_id and name == "":
        return {"topic_id": topic_id}
    return {"name": checks.topic_name(name), "topic_id": topic_id}


def _segment(topic: str, partition: int, segment_id: int) -> dict[str, Any]:
    """A segment of a partition. Raises TypeError, InvalidRequestError."""
    return {
        "topic": checks.topic_name(topic),
        "partition": checks.partition_number(partition),
        "segment_id": checks.whole("segment_id", segment_id, 1, checks.UINT64_MAX),
    }
