"""The beginnings of the newest batches of a log, in memory.

Most reads are at the end of a log, and from there no walk is needed.
"""

from bisect import bisect_right


class RecentBatches:
    """Start offsets and positions of the newest batches, contiguous up to the end of the log.

    Append-only for its one writer; readers may look at any moment, since a position is there
    before its offset.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def add(self, offset: int, position: int) -> None:
        """One more batch."""
        self.positions.append(position)
        self.offsets.append(offset)

    def newest(self, count: int) -> "RecentBatches":
        """A copy of the last ``count``."""
        copy = RecentBatches()
        copy.offsets = self.offsets[-count:]
        copy.positions = self.positions[-count:]
        return copy

    def span(
        self, offset: int, max_bytes: int, end_offset: int, log_end_offset: int, log_position: int
    ) -> tuple[int, int, int] | None:
        """(position, length, next offset) of the batches to read; None when ``offset`` is older.

        The log's end is passed in as it was *before* this object was looked at.
        """
        offsets = self.offsets
        count = bisect_right(offsets, log_end_offset - 1)
        first = bisect_right(offsets, offset, 0, count) - 1
        if first < 0:
            return None
        positions = self.positions
        start = positions[first]
        stop = bisect_right(positions, start + max_bytes, first, count) - 1
        if stop == count - 1 and log_position - start <= max_bytes:
            stop = count
        # A batch that starts at end_offset or ends beyond it is not for this reader.
        if end_offset < log_end_offset:
            stop = min(stop, bisect_right(offsets, end_offset, first, count) - 1)
        stop = max(stop, first + 1)
        if stop >= count:
            return start, log_position - start, log_end_offset
        return start, positions[stop] - start, offsets[stop]
