"""The blocking admin: each call crosses to the loop and waits there."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from icecore import client
from icecore.blocking.background import background
from icecore.client.admin.tiering import MergedSegment, MergePlan
from icecore.client.cluster.offsets import Position
from icecore.client.retries import OnRetry
from icecore.client.types import (
    MERGED_BYTES,
    ClusterDescription,
    ClusterTiering,
    DeletedRecords,
    DeletedTopic,
    OffsetResult,
    PositionChange,
    RollResult,
    SavedPosition,
    SnapshotHold,
    TopicDescription,
)
from icecore.model import Segment
from icecore.rpc.addresses import Transport
from icecore.topic_settings import TopicFields, TopicSettings


class Admin:
    """``icecore.Admin`` for threads: the same arguments, methods and errors."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 30.0,
        transport: Transport | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self._admin = background.make(
            lambda: client.Admin(
                bootstrap, timeout_s=timeout_s, transport=transport, on_retry=on_retry
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_topic(
        self,
        name: str,
        settings: TopicSettings | None = None,
        *,
        if_not_exists: bool = False,
        **fields: Unpack[TopicFields],
    ) -> TopicDescription:
        """See ``icecore.Admin.create_topic``."""
        return background.run(
            self._admin.create_topic(name, settings, if_not_exists=if_not_exists, **fields)
        )

    def describe_topics(
        self, names: Sequence[str] = (), *, deleted: bool = False
    ) -> list[TopicDescription]:
        """See ``icecore.Admin.describe_topics``."""
        return background.run(self._admin.describe_topics(names, deleted=deleted))

    def alter_topic(
        self, name: str, settings: TopicSettings | None = None, **fields: Unpack[TopicFields]
    ) -> TopicDescription:
        """See ``icecore.Admin.alter_topic``."""
        return background.run(self._admin.alter_topic(name, settings, **fields))

    def add_partitions(self, name: str, partitions: int) -> TopicDescription:
        """See ``icecore.Admin.add_partitions``."""
        return background.run(self._admin.add_partitions(name, partitions))

    def delete_topic(
        self, name: str = "", *, now: bool = False, topic_id: bytes = b""
    ) -> DeletedTopic:
        """See ``icecore.Admin.delete_topic``."""
        return background.run(self._admin.delete_topic(name, now=now, topic_id=topic_id))

    def undelete_topic(
        self, name: str = "", *, topic_id: bytes = b"", new_name: str = ""
    ) -> TopicDescription:
        """See ``icecore.Admin.undelete_topic``."""
        return background.run(
            self._admin.undelete_topic(name, topic_id=topic_id, new_name=new_name)
        )

    def delete_records(
        self, topic: str, before_offsets: Mapping[int, int], *, dry_run: bool = False
    ) -> list[DeletedRecords]:
        """See ``icecore.Admin.delete_records``."""
        return background.run(self._admin.delete_records(topic, before_offsets, dry_run=dry_run))

    def roll_topic(self, name: str) -> RollResult:
        """See ``icecore.Admin.roll_topic``."""
        return background.run(self._admin.roll_topic(name))

    def describe_cluster(self) -> ClusterDescription:
        """See ``icecore.Admin.describe_cluster``."""
        return background.run(self._admin.describe_cluster())

    def list_segments(
        self, topic: str = "", partitions: Iterable[int] = (), from_offset: int = 0
    ) -> list[Segment]:
        """See ``icecore.Admin.list_segments``."""
        return background.run(self._admin.list_segments(topic, partitions, from_offset))

    def declare_lost(self, topic: str, partition: int, segment_id: int) -> Segment:
        """See ``icecore.Admin.declare_lost``."""
        return background.run(self._admin.declare_lost(topic, partition, segment_id))

    def accept_disk(self, node_id: int) -> int:
        """See ``icecore.Admin.accept_disk``."""
        return background.run(self._admin.accept_disk(node_id))

    def recover_unclean(self, topic: str, partition: int, segment_id: int) -> Segment | None:
        """See ``icecore.Admin.recover_unclean``."""
        return background.run(self._admin.recover_unclean(topic, partition, segment_id))

    def list_offsets(
        self, topic: str, position: Position, partitions: Iterable[int] | None = None
    ) -> dict[int, OffsetResult]:
        """See ``icecore.Admin.list_offsets``."""
        return background.run(self._admin.list_offsets(topic, position, partitions))

    def hold_snapshot(
        self, topic: str, hold_ms: int, *, lease_id: bytes = b"", owner: str = ""
    ) -> SnapshotHold:
        """See ``icecore.Admin.hold_snapshot``."""
        return background.run(
            self._admin.hold_snapshot(topic, hold_ms, lease_id=lease_id, owner=owner)
        )

    def release_snapshot(self, topic: str, lease_id: bytes) -> None:
        """See ``icecore.Admin.release_snapshot``."""
        background.run(self._admin.release_snapshot(topic, lease_id))

    def list_positions(self, name: str = "", topics: Sequence[str] = ()) -> list[SavedPosition]:
        """See ``icecore.Admin.list_positions``."""
        return background.run(self._admin.list_positions(name, topics))

    def reset_position(
        self,
        name: str,
        topic: str,
        position: Position,
        partitions: Iterable[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> dict[int, PositionChange]:
        """See ``icecore.Admin.reset_position``."""
        return background.run(
            self._admin.reset_position(name, topic, position, partitions, dry_run=dry_run)
        )

    def delete_positions(self, name: str, topic: str = "") -> int:
        """See ``icecore.Admin.delete_positions``."""
        return background.run(self._admin.delete_positions(name, topic))

    def describe_tiering(
        self, topics: Sequence[str] = (), *, with_copies: bool = False
    ) -> ClusterTiering:
        """See ``icecore.Admin.describe_tiering``."""
        return background.run(self._admin.describe_tiering(topics, with_copies=with_copies))

    def import_tiered(self, plan: Mapping[str, Any], settings: TopicSettings) -> TopicDescription:
        """See ``icecore.Admin.import_tiered``."""
        return background.run(self._admin.import_tiered(plan, settings))

    def plan_merges(self, topic: str, target_bytes: int = MERGED_BYTES) -> MergePlan:
        """See ``icecore.Admin.plan_merges``."""
        return background.run(self._admin.plan_merges(topic, target_bytes))

    def merge_segments(self, topic: str, segment_ids: Sequence[int]) -> MergedSegment:
        """See ``icecore.Admin.merge_segments``."""
        return background.run(self._admin.merge_segments(topic, segment_ids))

    def close(self) -> None:
        """Close the connections. Does nothing in a fork of the process."""
        if not background.is_forked:
            background.run(self._admin.close())
