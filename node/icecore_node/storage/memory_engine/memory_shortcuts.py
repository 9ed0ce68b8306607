"""Where a read of a log in memory begins: at the batch itself, for where each one is is known."""

from bisect import bisect_left, bisect_right
from dataclasses import replace

from icecore.codec.batch import parse_header
from icecore_node.storage.batches.batch_log import Place, Readable
from icecore_node.storage.engine import NO_TAIL
from icecore_node.storage.memory_engine.memory_log import MemoryLog


class MemoryShortcuts:
    """``Shortcuts`` of logs in memory; used by any number of threads."""

    def span(
        self, log: MemoryLog, offset: int, max_bytes: int, end_offset: int, end: Place
    ) -> tuple[int, int, int] | None:
        """See ``Shortcuts.span``."""
        tail, position = end
        return log.held.places.span(offset, max_bytes, end_offset, tail.end_offset, position)

    def tail_before(self, log: MemoryLog, end_offset: int) -> Place:
        """See ``Shortcuts.tail_before``."""
        for place in reversed(list(log.tails)):
            if place[0].end_offset <= end_offset:
                return place
        return log.base

    def batch_before(self, log: MemoryLog, file: Readable, offset: int) -> Place:
        """See ``Shortcuts.batch_before``."""
        held = log.held
        number = bisect_right(held.places.offsets, offset) - 1
        if number < 0:
            return log.base
        header = parse_header(held.batches[number])
        # Enough to follow the chain from there; what has to be added up from the base is not known.
        tail = replace(
            NO_TAIL, end_offset=header.base_offset, last_header_crc32c=header.prev_header_crc32c
        )
        return tail, held.places.positions[number]

    def offset_before(self, log: MemoryLog, timestamp_ms: int) -> int:
        """See ``Shortcuts.offset_before``: of the very batch, if there is one."""
        held = log.held
        number = bisect_left(held.times_ms, timestamp_ms)
        offsets = held.places.offsets
        return offsets[number] if number < len(offsets) else log.identity.base_offset
