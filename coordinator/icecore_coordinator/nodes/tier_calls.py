"""Calls to nodes about object storage: upload segments, bring tables up to date, sweep objects,
verify copies.

As with ``NodeCalls``, each is meant for one process, and what any other answers counts for nothing.
Nor does what a node did in another object store than the cluster's (R95).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson

from icecore.errors import ConflictError, IcecoreError, ObjectStoreError
from icecore.model import Incarnation, NodeId, Segment
from icecore.rpc.convert import error_from_proto, segment_to_proto, settings_to_topic
from icecore.rpc.framing import in_parts
from icecore.rpc.messages import message_of, value_of
from icecore.tier_records import TierCopy, TierRecord, TierTopicRecord
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.state.records import TopicRecord

COPIES_PER_CALL = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UploadItem:
    """One segment to copy."""

    segment: Segment
    attempt: int
    tier_format: str
    sources: tuple[TierRecord, ...] = ()
    """Records of the copies to merge; empty for a segment that the node has."""


@dataclass(frozen=True, slots=True)
class UploadedCopy:
    """A copy that is stored, read back and proved."""

    attempt: int
    copy: TierCopy
    incarnation: Incarnation
    store_id: bytes
    """Identity of the object store that has it; empty = it has none."""
    source_digests: tuple[bytes, ...] = ()
    """Content digest of each source, computed from what is stored now."""


@dataclass(frozen=True, slots=True)
class TableItem:
    """All that is published of a partition."""

    topic: TopicRecord
    partition: int
    revision: int
    segments: tuple[TierRecord, ...]
    settings_version: int
    """Version of all that is said of the topic (``stored_version``)."""
    log_starts: tuple[int, ...]
    """By partition."""


@dataclass(frozen=True, slots=True)
class SweepItem:
    """An attempt that is closed."""

    tier: TierRecord
    attempt: int


class CopyMissingError(ObjectStoreError):
    """An object of a published copy is not in the cluster's own object store, for certain."""


class TierCalls:
    """The part of NodeService that is about object storage. Raises what ``NodeCalls`` raises, and
    ObjectStoreError when the node has another object store than the cluster."""

    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    def _ours(self, store_id: bytes, items: Iterable[T]) -> Iterable[T]:
        """The items of an answer. Raises ObjectStoreError when the node used another store."""
        self._calls.state.tiers.check_store(store_id)
        return items

    async def upload(
        self, node_id: NodeId, item: UploadItem, timeout_s: float
    ) -> UploadedCopy | IcecoreError:
        """Have a node copy a segment; one for each call, for it may take minutes."""

        def ask(common: dict[str, Any], part: Sequence[UploadItem]) -> pb.UploadRequest:
            segments = [
                pb.UploadOrder(
                    segment=segment_to_proto(each.segment),
                    attempt=each.attempt,
                    tier_format=each.tier_format,
                    sources=map(_published, each.sources),
                )
                for each in part
            ]
            return pb.UploadRequest(**common, segments=segments)

        [result] = await self._calls.each_part(
            node_id,
            [[item]],
            ask,
            pb.UploadResponse.FromString,
            lambda answer, _: [
                _uploaded(each, Incarnation(answer.incarnation), answer.store_id)
                for each in self._ours(answer.store_id, answer.results)
            ],
            timeout_s,
        )
        if isinstance(result, UploadedCopy) and result.attempt != item.attempt:
            return ConflictError(f"the node speaks of attempt {result.attempt}")
        return result

    async def commit_table(
        self, node_id: NodeId, item: TableItem, timeout_s: float
    ) -> IcecoreError | None:
        """Have a node bring a table to what is published of a partition; why not, or None."""

        def ask(common: dict[str, Any], part: Sequence[TableItem]) -> pb.CommitTablesRequest:
            return pb.CommitTablesRequest(**common, partitions=map(_table, part))

        [result] = await self._calls.each_part(
            node_id,
            [[item]],
            ask,
            pb.CommitTablesResponse.FromString,
            lambda answer, _: [*self._seen(answer)],
            timeout_s,
        )
        return result if isinstance(result, IcecoreError) else None

    async def sweep(
        self, node_id: NodeId, items: Sequence[SweepItem], timeout_s: float
    ) -> list[IcecoreError | bool]:
        """Have a node remove the objects of closed attempts: for each True, or why not."""

        def ask(common: dict[str, Any], part: Sequence[SweepItem]) -> pb.SweepRequest:
            return pb.SweepRequest(**common, attempts=map(_closed, part))

        return await self._calls.each_part(
            node_id,
            [items],
            ask,
            pb.SweepResponse.FromString,
            lambda answer, _: [
                error_from_proto(each) or True
                for each in self._ours(answer.store_id, answer.errors)
            ],
            timeout_s,
        )

    async def empty_topic(
        self, node_id: NodeId, topic_id: bytes, timeout_s: float
    ) -> IcecoreError | None:
        """Have a node remove all that lies under a topic's prefix; why not, or None."""

        def ask(common: dict[str, Any], part: Sequence[bytes]) -> pb.SweepRequest:
            return pb.SweepRequest(**common, gone_topic_ids=part)

        [result] = await self._calls.each_part(
            node_id,
            [[topic_id]],
            ask,
            pb.SweepResponse.FromString,
            lambda answer, _: [
                error_from_proto(each) or True
                for each in self._ours(answer.store_id, answer.topic_errors)
            ],
            timeout_s,
        )
        return result if isinstance(result, IcecoreError) else None

    async def mark_gone(
        self, node_id: NodeId, topic: TierTopicRecord, timeout_s: float
    ) -> IcecoreError | None:
        """Have a node note beside the objects of a topic that it is deleted; why not, or None."""

        def ask(common: dict[str, Any], part: Sequence[TierTopicRecord]) -> pb.SweepRequest:
            to_mark = [
                pb.GoneTopic(topic_id=each.topic_id, settings_version=each.gone_version)
                for each in part
            ]
            return pb.SweepRequest(**common, to_mark=to_mark)

        [result] = await self._calls.each_part(
            node_id,
            [[topic]],
            ask,
            pb.SweepResponse.FromString,
            lambda answer, _: [
                error_from_proto(each) or True
                for each in self._ours(answer.store_id, answer.mark_errors)
            ],
            timeout_s,
        )
        return result if isinstance(result, IcecoreError) else None

    async def verify(
        self, node_id: NodeId, items: Sequence[TierRecord], timeout_s: float
    ) -> list[IcecoreError | bool]:
        """Have a node look for published copies in its own object store. Return True for each copy
        that it sees, or why it does not: CopyMissingError only where nothing else can be."""

        def ask(common: dict[str, Any], part: Sequence[TierRecord]) -> pb.VerifyCopiesRequest:
            return pb.VerifyCopiesRequest(**common, copies=map(_to_verify, part))

        return await self._calls.each_part(
            node_id,
            in_parts(items, lambda _: 0, COPIES_PER_CALL),
            ask,
            pb.VerifyCopiesResponse.FromString,
            lambda answer, _: [*self._seen(answer)],
            timeout_s,
        )

    def _seen(
        self, answer: pb.VerifyCopiesResponse | pb.CommitTablesResponse
    ) -> Iterator[IcecoreError | bool]:
        """Yield the outcome for each item. A store without an id proves nothing by its lacks."""
        is_known = bool(answer.store_id) and answer.store_id == self._calls.state.tiers.store_id
        errors = self._ours(answer.store_id, answer.errors)
        for each, is_missing in zip_longest(errors, answer.missing[: len(answer.errors)]):
            error = error_from_proto(each)
            if error is not None and is_missing and is_known:
                yield CopyMissingError(error.message)
            else:
                yield error or True


def copy_to_proto(tier: TierRecord) -> pb.TierCopy:
    """The copy that counts, as a message."""
    return message_of(pb.TierCopy, tier.copy, attempt=tier.attempt)


def _uploaded(
    message: pb.UploadedCopy, incarnation: Incarnation, store_id: bytes
) -> UploadedCopy | IcecoreError:
    return error_from_proto(message.error) or UploadedCopy(
        message.copy.attempt,
        value_of(TierCopy, message.copy),
        incarnation,
        store_id,
        tuple(message.source_digests),
    )


def _table(item: TableItem) -> pb.PartitionTable:
    return pb.PartitionTable(
        topic_id=item.topic.topic_id,
        topic=item.topic.name,
        partition=item.partition,
        revision=item.revision,
        topic_settings=_settings(item.topic),
        settings_version=item.settings_version,
        partition_counts=item.topic.known_counts,
        deleted=item.topic.is_kept,
        log_starts=item.log_starts,
        segments=map(_published, item.segments),
    )


def _published(tier: TierRecord) -> pb.PublishedCopy:
    return pb.PublishedCopy(
        segment_id=tier.segment_id,
        generation=tier.generation,
        base_offset=tier.base_offset,
        attempt=tier.attempt,
        manifest_sha256=tier.copy.manifest_sha256,
    )


def _to_verify(tier: TierRecord) -> pb.CopyToVerify:
    return pb.CopyToVerify(topic_id=tier.topic_id, partition=tier.partition, copy=_published(tier))


def _settings(topic: TopicRecord) -> str:
    message = settings_to_topic(
        topic.settings,
        partitions=topic.partitions,
        delete_grace_ms=topic.delete_grace_ms,
        retention=topic.retention,
        tiering=topic.tiering,
    )
    return MessageToJson(message, preserving_proto_field_name=True, indent=None)


def _closed(item: SweepItem) -> pb.ClosedAttempt:
    return message_of(pb.ClosedAttempt, item.tier, attempt=item.attempt)
