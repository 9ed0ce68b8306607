"""Seeded mistakes about look-ups where client and node know different things; see ``mistakes``."""

from collections.abc import Iterator
from contextlib import contextmanager

from icecore.client.cluster.held_segments import is_gap
from icecore.client.lookup import partition_search
from icecore.client.lookup.search_answer import Answer, Group, Question
from icecore.model import Segment, SegmentId
from icecore.v1 import data_pb2
from icecore_node.serving.query.query_answer import PartitionAnswer
from tests.simulation.mistakes import Mistake, patch


def plan_is_believed() -> Mistake:
    """I1: a client takes the newest segment that it knows for the last one, although the leader
    has records behind it."""
    read_answer = partition_search.read_answer

    def wrong(
        question: Question, group: Group, message: data_pb2.QueryResponse, count: int
    ) -> Answer:
        for result in message.partitions:
            result.high_watermark = 0
        return read_answer(question, group, message, count)

    return patch(partition_search, "read_answer", wrong)


@contextmanager
def unnamed_counts_as_searched() -> Iterator[None]:
    """I1: the same, and nodes say of records behind the segments that were named that they have
    looked at them, too."""
    with plan_is_believed(), patch(PartitionAnswer, "_end_with_what_is_named", lambda _: None):
        yield


def holes_are_passed_over() -> Mistake:
    """I1: a node that leads the next segment searches what it knows of the one before, which waits
    for its seal, and says nothing of the rest."""
    short = PartitionAnswer._named_and_short

    def wrong(self: PartitionAnswer, limit: float) -> Iterator[SegmentId]:
        last = self._replicas[-1].segment_id
        return (each for each in short(self, limit) if each == last)

    return patch(PartitionAnswer, "_named_and_short", wrong)


def restarted_leader_answers() -> Mistake:
    """I1: a leader that was restarted answers as if it knew what it had acknowledged."""
    short = PartitionAnswer._named_and_short

    def wrong(self: PartitionAnswer, limit: float) -> Iterator[SegmentId]:
        last = self._replicas[-1].segment_id
        return (each for each in short(self, limit) if each != last)

    return patch(PartitionAnswer, "_named_and_short", wrong)


def gaps_are_skipped() -> Mistake:
    """I1: records that no node has spoken for, while the coordinator is away, are passed over as if
    they had never been there."""
    skipped = Segment.is_skipped.fget
    assert skipped is not None

    def wrong(self: Segment) -> bool:
        return skipped(self) or (is_gap(self) and not self.holders)

    return patch(Segment, "is_skipped", property(wrong))
