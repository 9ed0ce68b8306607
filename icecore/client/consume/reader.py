"""State of reading one partition: the next fetch and its node, the next record to deliver.

The consumer moves a reader, the fetcher reads ahead for it. A chunk remembers in which generation
of its reader it was fetched, so that a seek makes void what was fetched before.
"""

from typing import NamedTuple

from icecore.codec.batch import BatchHeader, LeaderFlag
from icecore.errors import IcecoreError
from icecore.model import OFFSETS_LEFT_OUT


class Reader:
    """State of reading one partition."""

    def __init__(
        self,
        partition: int,
        offset: int,
        end_offset: int | None,
        topic: str = "",
        topic_id: bytes = b"",
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        """A topic made again under the name is another one."""
        self.partition = partition
        self.offset = offset
        """To fetch next."""
        self.delivered = offset
        """To hand to the user next."""
        self.end_offset = end_offset
        """Stop here; None means never."""
        self.generation = 0
        """Grows with each seek; what was fetched before is void."""
        self.is_left = False
        """Its topic is gone and another one is read: what was fetched counts, no more comes."""
        self.node_id = 0
        """Node to read from; 0 = the leader."""
        self.segment_id = 0
        """The sealed segment to ask for; 0 means whichever covers the offset."""
        self.high_watermark = 0
        self.is_known = False
        """A node has said the high watermark."""
        self.buffered_bytes = 0
        self.served = 0
        """Which fetch brought data last: partitions take turns."""
        self.is_busy = False
        """A fetch is under way, or a failure is being dealt with."""
        self.asked = 0
        """How often: only the answer to the last fetch counts."""
        self.is_stuck = False
        """The last answer has moved nothing."""
        self.empty_polls = 0
        """In a row: the more, the longer the next one may last."""
        self.attempts = 0
        """Failures since the last success."""
        self.failing_ms = 0.0
        """When the first of these failures happened, on the monotonic clock."""
        self.avoided: set[int] = set()
        """Nodes that failed to serve this segment."""
        self.is_from_start = False
        """It was asked for what there is, whatever that is, and nothing came yet."""
        self.skipped_records = 0
        """Passed over, for they are gone: deleted, or lost."""
        self.failure: IcecoreError | None = None
        """Why reading cannot go on."""

    @property
    def stamp(self) -> tuple[int, int]:
        """An answer counts while this is what it was when the fetch began."""
        return self.generation, self.asked

    @property
    def is_at_end(self) -> bool:
        return self.end_offset is not None and self.offset >= self.end_offset

    @property
    def is_behind(self) -> bool:
        """There is something to fetch, as far as we have heard."""
        return self.offset < self.high_watermark

    @property
    def known_end_offset(self) -> int:
        """The log goes so far, as far as we have heard: a position was an end, too."""
        return max(self.high_watermark, self.offset)

    @property
    def drained_through(self) -> int:
        """``delivered``, or further where nodes have looked at records that are not wanted. Only of
        a reader of which no batch is being delivered."""
        if self.buffered_bytes:
            return self.delivered
        return max(self.delivered, self._wanted_of(self.offset))

    def pass_by(self, offset: int) -> None:
        """All that is wanted below ``offset`` was handed out."""
        self.delivered = self._wanted_of(offset)

    def _wanted_of(self, offset: int) -> int:
        """No further than the end: whoever goes on there still wants what was fetched behind it."""
        return offset if self.end_offset is None else min(offset, self.end_offset)

    def move_to(self, offset: int) -> None:
        """Read from ``offset`` on."""
        self.generation += 1
        self.is_from_start = False
        self.offset = self.delivered = offset
        self.buffered_bytes = self.attempts = 0
        self.is_busy, self.failure = False, None
        self.use_leader()

    def fetch_from(self, offset: int) -> None:
        """Go on fetching from ``offset``; what was fetched already lies before it."""
        self.offset = offset
        if not self.buffered_bytes:
            self.delivered = offset
        self.attempts, self.is_busy = 0, False
        self.use_leader()

    def skip_to(self, offset: int) -> None:
        """Go on fetching behind records that are gone, or where a log ends that was longer once."""
        if not self.is_from_start:
            gone = max(0, offset - self.offset)
            # Nothing says which offsets were left out there, but only these are so many.
            self.skipped_records += gone % OFFSETS_LEFT_OUT
        if offset < self.offset:
            self.delivered = min(self.delivered, offset)
        self.fetch_from(offset)

    def use_leader(self) -> None:
        """Forget about a particular segment."""
        self.node_id = self.segment_id = self.empty_polls = 0
        self.avoided.clear()


class Chunk(NamedTuple):
    """One fetched batch. Records below ``from_offset`` were not asked for."""

    reader: Reader
    generation: int
    data: memoryview
    position: int
    header: BatchHeader
    from_offset: int

    @property
    def is_row_group(self) -> bool:
        """It is no batch of columns, but rows of object storage as they lie there."""
        return bool(self.header.leader_flags & LeaderFlag.ROW_GROUP)
