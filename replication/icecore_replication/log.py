"""The log of a leader as numbers: which offsets and times it gives out, how much is in it.

A part of ``LeaderCore``. The bytes are the shell's; here a batch is its offsets and its length. A
leader begins on an empty log, so all that is in the segment went through here. Rules R1, R25 and
R51 of docs/design/protocol.md.
"""

from collections import deque
from math import inf

from icecore.topic_settings import SegmentSettings
from icecore_replication.effects import Append
from icecore_replication.inputs import ProduceReceived
from icecore_replication.leading import LeaderStart


class LeaderLog:
    """Offsets given out, and what of them is on its way to the disk here."""

    def __init__(self, start: LeaderStart) -> None:
        self.base_offset = start.segment.base_offset
        self.end_offset = self.base_offset
        """The next offset to be given out. Invariant: base_offset <= end_offset, never back."""
        self.max_append_timestamp_ms = start.max_append_timestamp_ms
        """Invariant: no batch of the partition below ``end_offset`` has a later one."""
        self.length_bytes = 0
        """Length of all batches in bytes. Invariant: 0 exactly while the log is empty."""
        self.unsynced_bytes = 0
        """Invariant: the lengths in ``_unsynced`` added up."""
        self._unsynced: deque[tuple[int, int]] = deque()  # (end offset, bytes), in order
        self._first_append_ms = inf

    @property
    def is_empty(self) -> bool:
        """Nothing was appended yet."""
        return self.end_offset == self.base_offset

    def append(self, item: ProduceReceived, now_ms: float) -> Append:
        """Give the batch the next offsets, and a time that is not before any other's (R51)."""
        base, length_bytes = self.end_offset, item.length_bytes
        if base == self.base_offset:
            self._first_append_ms = now_ms
        end = self.end_offset = base + item.record_count
        if item.clock_ms > self.max_append_timestamp_ms:
            self.max_append_timestamp_ms = item.clock_ms
        self.length_bytes += length_bytes
        self.unsynced_bytes += length_bytes
        self._unsynced.append((end, length_bytes))
        return Append(item.request_id, base, end, self.max_append_timestamp_ms)

    def synced(self, end_offset: int) -> None:
        """Everything below is fsynced here."""
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] <= end_offset:
            self.unsynced_bytes -= unsynced.popleft()[1]

    def has_room_for(self, length_bytes: int, pending_bytes_max: int) -> bool:
        """Return whether so much may wait for the disk; a single batch always may."""
        return not self.unsynced_bytes or self.unsynced_bytes + length_bytes <= pending_bytes_max

    def why_to_roll(self, settings: SegmentSettings, now_ms: float) -> str:
        """ "size" or "age" when the segment is to be sealed for it, "" otherwise (R25)."""
        if self.length_bytes >= settings.segment_bytes:
            return "size"
        return "age" if now_ms >= self.old_at_ms(settings) else ""

    def old_at_ms(self, settings: SegmentSettings) -> float:
        """Return when the segment is to be sealed for its age; never while it is empty."""
        return self._first_append_ms + settings.segment_age_ms
