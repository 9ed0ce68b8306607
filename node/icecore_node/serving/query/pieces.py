"""Holders of a range of offsets, in the order of a search: replicas here, or object storage. Also
the part of a replica that readers may see."""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from icecore.model import NO_SEGMENT, Segment, SegmentId
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.serving.query.log_search import LogView
from icecore_node.storage.engine import OffsetRange
from icecore_node.storage.port import Store


def view_of(store: Store, replica: Replica) -> LogView:
    """Return the log of a replica as readers may see it now."""
    record = replica.segment
    return LogView(
        store.reader,
        store.index,
        replica.segment_id,
        replica.high_watermark,
        frozenset() if record is None else frozenset(record.settings.indexed_headers),
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range: one replica, a segment in object storage, or neither holds it."""

    replica: Replica | None
    from_offset: int
    end_offset: int
    segment_id: SegmentId = NO_SEGMENT
    """Id of a segment that is not here, if the request named it."""
    remote: Segment | None = None
    """Record of a segment that lies in object storage."""


def pieces(
    replicas: Sequence[Replica],
    asked: OffsetRange,
    *,
    newest_first: bool,
    named: Container[int] | None = None,
) -> Iterator[Piece]:
    """The whole range in order, each offset once. Replicas follow each other by base offset; where
    two overlap, the newer one counts.

    Made as they are asked for: a partition may have ten thousand, and a page looks at a few.

    Args:
        replicas: By base offset.
        asked: The range.
        newest_first: The order.
        named: Others hold nothing. A source of a merged segment may still be here, and would hide a
            part of it. None = all hold what they have.
    """
    return _down(replicas, asked, named) if newest_first else _up(replicas, asked, named)


def filled(piece: Piece, remote: Sequence[Segment], *, newest_first: bool) -> Sequence[Piece]:
    """Fill a piece that no replica here can search with segments from object storage.

    Args:
        piece: Any piece; one of an intact replica stays as it is.
        remote: Segments in object storage, by base offset and by end offset.
        newest_first: The order of what is returned.
    """
    if piece.replica is not None and piece.replica.life.is_intact:
        return (piece,)
    found: list[Piece] = []
    at = piece.from_offset
    for segment in remote[max(0, bisect_right(remote, at, key=_remote_base) - 1) :]:
        if segment.base_offset >= piece.end_offset:
            break
        low, end = max(segment.base_offset, at), min(segment.end_offset, piece.end_offset)
        if low < end:
            if at < low:
                found.append(replace(piece, from_offset=at, end_offset=low))
            found.append(Piece(None, low, end, segment.segment_id, segment))
            at = end
    if at < piece.end_offset or not found:
        found.append(replace(piece, from_offset=at))
    return found[::-1] if newest_first else found


def _remote_base(segment: Segment) -> int:
    return segment.base_offset


def _up(
    replicas: Sequence[Replica], asked: OffsetRange, named: Container[int] | None
) -> Iterator[Piece]:
    at, high = asked
    first = max(0, bisect_right(replicas, at, key=_base) - 1)
    while first > 0 and not _counts(replicas[first], named):
        first -= 1  # the one before it may be the longer one
    for number in range(first, len(replicas)):
        if not _counts(replicas[number], named):
            continue
        low, end = _held(replicas, number, high, named)
        if low >= high:
            break
        low = max(low, at)
        if low < end:
            if at < low:
                yield Piece(None, at, low)
            yield Piece(replicas[number], low, end)
            at = end
    if at < high:
        yield Piece(None, at, high)


def _down(
    replicas: Sequence[Replica], asked: OffsetRange, named: Container[int] | None
) -> Iterator[Piece]:
    low, at = asked
    for number in range(bisect_left(replicas, at, key=_base) - 1, -1, -1):
        if not _counts(replicas[number], named):
            continue
        start, end = _held(replicas, number, at, named)
        if end <= low:
            if _base(replicas[number]) < low:
                break
            continue
        start = max(start, low)
        if start < end:
            if end < at:
                yield Piece(None, end, at)
            yield Piece(replicas[number], start, end)
            at = start
    if low < at:
        yield Piece(None, low, at)


def _counts(replica: Replica, named: Container[int] | None) -> bool:
    return named is None or replica.segment_id in named


def _base(replica: Replica) -> int:
    return replica.base_offset


def _held(
    replicas: Sequence[Replica], number: int, high: int, named: Container[int] | None
) -> OffsetRange:
    """Return the part of the range below ``high`` that one replica holds. A damaged replica counts
    as holding all of its segment."""
    replica = replicas[number]
    sealed_end = replica.sealed_end_offset
    for other in islice(replicas, number + 1, None):
        if sealed_end is None or _counts(other, named):
            high = min(high, other.base_offset)
            break
    if replica.life is Life.GONE:
        return replica.base_offset, replica.base_offset
    if sealed_end is not None:
        return replica.base_offset, min(high, sealed_end)
    end = replica.high_watermark if replica.life.is_intact else high
    return replica.base_offset, min(high, end)
