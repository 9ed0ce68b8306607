"""Topics that are in object storage, as messages of a client have them."""

from dataclasses import replace

from icecore.errors import InvalidRequestError
from icecore.model import Epoch, Generation, Segment, SegmentId, SegmentState
from icecore.rpc.convert import retention_with, tiering_with
from icecore.rpc.messages import value_of
from icecore.tier_records import TierCopy
from icecore.topic_settings import KEEP_ALL, NOT_TIERED
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.adoption.published import ToldTopicCopies
from icecore_coordinator.decisions.remote.imported import ImportedSegment, ImportedTopic
from icecore_coordinator.decisions.topic_changes import completed
from icecore_coordinator.services.settings_messages import grace_of, settings_of, with_defaults

PARTS_MAX = 100_000
"""Parts of what a bucket has: a hundred million segments."""


def imported_topic(
    request: pb.ImportTieredRequest, defaults: TopicDefaults, nodes: int
) -> ImportedTopic:
    """Return the topic without its segments.

    Args:
        request: Names it.
        defaults: Of settings that it does not say.
        nodes: How many there are.

    Raises:
        InvalidRequestError: Nobody knows how many partitions it has.
    """
    asked = with_defaults(request.settings, defaults)
    if not asked.partitions:
        raise InvalidRequestError("settings of a topic that is imported say its partitions")
    return ImportedTopic(
        name=request.name,
        topic_id=request.topic_id,
        partitions=asked.partitions,
        settings=completed(settings_of(asked), nodes),
        delete_grace_ms=grace_of(asked),
        retention=retention_with(KEEP_ALL, asked),
        tiering=tiering_with(NOT_TIERED, asked),
        partition_counts=(*request.partition_counts,),
        log_starts=(*request.log_starts,),
    )


def imported_segment(topic: ImportedTopic, message: pb.ImportedSegment) -> ImportedSegment:
    """Return one of its segments with its copy."""
    copy = message.copy
    segment = Segment(
        segment_id=SegmentId(message.segment_id),
        topic_id=topic.topic_id,
        topic=topic.name,
        partition=message.partition,
        state=SegmentState.SEALED,
        epoch=Epoch(message.epoch),
        settings=replace(topic.settings, indexed_headers=(*message.indexed_headers,)),
        generation=Generation(message.generation),
        base_offset=message.base_offset,
        end_offset=message.end_offset,
        seal_digest=message.seal_digest,
        full_digest=message.full_digest,
    )
    facts = value_of(TierCopy, copy)
    return ImportedSegment(segment, message.max_append_timestamp_ms, copy.attempt, facts)


class BucketTelling:
    """The parts of what a bucket has that have come, as a client has read it.

    Args:
        defaults: Of settings that a topic does not say.
    """

    def __init__(self, defaults: TopicDefaults) -> None:
        self._defaults = defaults
        self._parts: dict[int, pb.BucketPart] = {}

    def take(self, page: int, part: pb.BucketPart) -> None:
        """Take one part in; the same may come again. The first one replaces what came before.

        Raises InvalidRequestError: the one before it is missing.
        """
        if page == 0:
            self._parts.clear()
        if page > len(self._parts) or page >= PARTS_MAX:
            last = len(self._parts) - 1
            raise InvalidRequestError(
                f"part {page} of what the bucket has does not follow on part {last}: begin anew"
            )
        self._parts[page] = part

    def topics(self, nodes: int) -> list[ToldTopicCopies]:
        """Return what all parts tell. A part without a topic tells that there is none.

        Args:
            nodes: How many there are.

        Raises InvalidRequestError.
        """
        found: dict[bytes, ToldTopicCopies] = {}
        for part in self._parts.values():
            if not part.HasField("topic"):
                continue
            topic = imported_topic(part.topic, self._defaults, nodes)
            segments = tuple(imported_segment(topic, each) for each in part.topic.segments)
            known = found.get(topic.topic_id)
            found[topic.topic_id] = ToldTopicCopies(
                topic=topic,
                segments=(*(known.segments if known is not None else ()), *segments),
                table_revisions=(*part.topic.table_revisions,),
                segment_ids_max=part.topic.segment_ids_max,
                attempts_max=part.topic.attempts_max,
                is_deleted=part.deleted,
            )
        return [*found.values()]
