"""The answer to a query for one partition: the pieces to search, and the outcome of each.

The pieces are those that this node has, or can read in object storage. A part of the range that it
lacks or can't read is a piece too. So an answer is complete only when every part was searched.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from icecore.errors import IcecoreError, NotReplicaError
from icecore.model import NO_SEGMENT, Segment, SegmentId
from icecore.rpc import convert
from icecore.v1 import data_pb2
from icecore_node.registry.table import PartitionReplicas
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.serving.query.log_search import LogSearch, skips_by_time
from icecore_node.serving.query.pieces import Piece, filled, pieces
from icecore_node.serving.query.query_request import FROM_THE_START
from icecore_node.storage.engine import NO_INDEX, IndexSummary, LogTail, OffsetRange

_LOOK_BYTES_GUESSED: Final = 64 << 10
"""Bytes that one look at a log, or at one place of an index, reads; in most cases it is less."""


class PartitionAnswer:
    """One partition of one page. Its set of replicas is fixed when it is made.

    Raises:
        NotReplicaError: There are none.
    """

    def __init__(
        self,
        request: data_pb2.QueryRequest,
        asked: data_pb2.QueryPartition,
        held: PartitionReplicas,
        remote: Sequence[Segment],
        result: data_pb2.QueryPartitionResult,
    ) -> None:
        self.result = result
        self._remote = _outermost(remote)
        self.newest_first, self.explain_only = request.newest_first, request.explain_only
        self._remote_ids = frozenset(each.segment_id for each in remote)
        self._replicas = tuple(held.replicas)
        self._segment_ids = frozenset(asked.segment_ids)
        if not remote and not any(each.life is not Life.GONE for each in self._replicas):
            raise NotReplicaError(f"no replica of partition {asked.partition} on this node")
        intact = [each.high_watermark for each in self._replicas if each.life.is_intact]
        intact += [each.end_offset for each in remote]
        lost = [each.sealed_end_offset or 0 for each in self._replicas if _is_damaged(each)]
        self.high_watermark = max(intact, default=0)
        limit = asked.to_offset or max([self.high_watermark, *lost])
        self.visible_end = min(limit, self.high_watermark)
        """End of the asked range that readers may see, as this node knows it."""
        starts = [held.log_start_offset, *(each.log_start_offset for each in remote)]
        self._low = max(asked.from_offset, *starts)
        self._high = max(self._low, min(limit, max([self.high_watermark, *lost])))
        self._short = frozenset(self._named_and_short(asked.to_offset or inf))
        self._end_with_what_is_named()

    def _named_and_short(self, limit: float) -> Iterator[SegmentId]:
        """Yield named segments that are not sealed here yet and may have more records than readers
        see here.

        Either the next segment here begins further on. Or it is the last one, and this process
        never led it: only the process that led it knows all acknowledged records.
        """
        next_base = inf
        for replica in reversed(self._replicas) if self._segment_ids else ():
            if replica.life is Life.GONE:
                continue
            if replica.segment_id in self._segment_ids and _is_open(replica):
                knows_all = next_base == inf and replica.led_in_this_process
                if not knows_all and replica.high_watermark < min(next_base, limit):
                    yield replica.segment_id
            next_base = replica.base_offset

    def is_short(self, replica: Replica) -> bool:
        """Return whether another replica may know more of the segment, so that this one is not
        searched."""
        return replica.segment_id in self._short

    def _end_with_what_is_named(self) -> None:
        """End the range with the last named segment, if segments are named. What follows was not
        looked at; the client may not know it yet."""
        if self._segment_ids:
            named = self._pieces((self._low, self._high), newest_first=True)
            last = next(named, None)
            # They may all end before the range begins: then nothing of it is looked at.
            self._high = self._low if last is None else last.end_offset
            self.visible_end = min(self.visible_end, self._high)

    def range_of(self, offset: int) -> OffsetRange:
        """Return the offsets for this page, when the page before ended at an offset."""
        low, high = self._low, self._high
        if offset == FROM_THE_START:
            return low, high
        offset = max(low, min(offset, high))
        return (low, offset) if self.newest_first else (offset, high)

    def pieces_of(self, asked: OffsetRange, *, is_first: bool) -> Iterator[Piece]:
        """Yield the pieces to search, in order. On the first page, segments without a place in the
        range come first."""
        if is_first:
            yield from self._out_of_place()
        yield from self._pieces(asked, newest_first=self.newest_first)

    def _pieces(self, asked: OffsetRange, *, newest_first: bool) -> Iterator[Piece]:
        only = self._segment_ids
        here = pieces(self._replicas, asked, newest_first=newest_first, named=only or None)
        for piece in here:
            for each in filled(piece, self._remote, newest_first=newest_first):
                segment_id = _segment_of(each)
                if not only or (segment_id in only and segment_id not in self._short):
                    yield each

    def _out_of_place(self) -> Iterator[Piece]:
        here = {each.segment_id for each in self._replicas if each.life is not Life.GONE}
        here.update(self._remote_ids)
        for segment_id in sorted(self._segment_ids - here):
            yield Piece(None, 0, 0, SegmentId(segment_id))
        for replica in self._replicas if self._short else ():
            if self.is_short(replica):
                yield Piece(replica, replica.base_offset, replica.base_offset)
        if not self._replicas:
            return
        tail = self._replicas[-1]
        is_asked = not self._segment_ids or tail.segment_id in self._segment_ids
        if _is_damaged(tail) and not tail.sealed and is_asked:
            # Nobody here knows where it ends.
            yield Piece(tail, tail.base_offset, tail.base_offset)

    def describe(self, piece: Piece) -> data_pb2.SegmentSearch:
        """Add a line to the answer for a piece."""
        replica, low, high = piece.replica, piece.from_offset, piece.end_offset
        elsewhere = data_pb2.SEARCH_OUTCOME_ELSEWHERE
        if (remote := piece.remote) is not None:
            return self.result.segments.add(
                segment_id=remote.segment_id,
                base_offset=remote.base_offset,
                end_offset=remote.end_offset,
                index=NO_INDEX,
                sealed=True,
                remote=True,
            )
        if replica is None:
            return self.result.segments.add(
                segment_id=piece.segment_id, base_offset=low, end_offset=high, outcome=elsewhere
            )
        return self.result.segments.add(
            segment_id=replica.segment_id,
            base_offset=replica.base_offset,
            end_offset=max(high, replica.high_watermark if replica.life.is_intact else 0),
            index=NO_INDEX,
            sealed=replica.sealed,
        )


def _outermost(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments by base offset, without those that lie within others: a merged segment has
    all records of its sources."""
    found: list[Segment] = []
    for each in sorted(segments, key=lambda each: (each.base_offset, -each.end_offset)):
        if not found or each.end_offset > found[-1].end_offset:
            found.append(each)
    return found


def _segment_of(piece: Piece) -> SegmentId:
    if piece.replica is not None:
        return piece.replica.segment_id
    return NO_SEGMENT if piece.remote is None else piece.remote.segment_id


def _is_open(replica: Replica) -> bool:
    return replica.life.is_intact and not replica.sealed


def _is_damaged(replica: Replica) -> bool:
    return replica.life is Life.UNKNOWN


def fail(done: data_pb2.SegmentSearch, error: IcecoreError) -> None:
    """Note that a segment, or a part of it, could not be searched."""
    done.outcome = data_pb2.SEARCH_OUTCOME_UNAVAILABLE
    done.error.CopyFrom(convert.error_to_proto(error))


def is_missing(done: data_pb2.SegmentSearch) -> bool:
    """Return whether records may be missing from the answer because this segment was not
    searched."""
    elsewhere = data_pb2.SEARCH_OUTCOME_ELSEWHERE
    return done.outcome in (elsewhere, data_pb2.SEARCH_OUTCOME_UNAVAILABLE)


def tell(done: data_pb2.SegmentSearch, search: LogSearch) -> None:
    """Fill in the outcome and the costs of a search."""
    work, summary = search.work, search.summary
    if summary is not None:
        done.index, done.index_runs = summary.kind, summary.runs
    done.index_bytes, done.data_bytes = work.index_bytes, work.data_bytes
    done.candidates = work.candidates
    if done.outcome:
        return  # a part of it could not be searched
    if work.outside:
        done.outcome = data_pb2.SEARCH_OUTCOME_SKIPPED_TIME
    elif work.scanned or not search.by_hash:
        done.outcome = data_pb2.SEARCH_OUTCOME_SCAN
    elif work.has_hashes:
        done.outcome = data_pb2.SEARCH_OUTCOME_INDEX
    else:
        done.outcome = data_pb2.SEARCH_OUTCOME_SKIPPED_HASH


def estimate(
    done: data_pb2.SegmentSearch, search: LogSearch, summary: IndexSummary, tail: LogTail
) -> None:
    """Estimate the outcome and the costs of a search without running it. The number of records that
    the index names is not known: one look for each hash is a guess."""
    low, high = search.left
    done.index, done.index_runs = summary.kind, summary.runs
    if skips_by_time(summary, search.selection):
        done.outcome = data_pb2.SEARCH_OUTCOME_SKIPPED_TIME
        return
    records = max(1, tail.end_offset - done.base_offset)
    scanned = tail.length_bytes * (high - low) // records
    if not search.by_hash or summary.kind == NO_INDEX:
        done.outcome, done.data_bytes = data_pb2.SEARCH_OUTCOME_SCAN, scanned
        return
    looks = search.hash_count
    done.outcome = data_pb2.SEARCH_OUTCOME_INDEX
    done.data_bytes = min(scanned, looks * _LOOK_BYTES_GUESSED)
    per_run = min(_LOOK_BYTES_GUESSED, summary.length_bytes // max(1, summary.runs))
    done.index_bytes = min(summary.length_bytes, looks * summary.runs * per_run)
