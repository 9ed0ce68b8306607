"""One log in shared files: where its batches lie, and how it is read as if they lay in one piece.

Of each append there is a *run*: batches that lie one behind the other. A place in the log is
counted in bytes from its first batch, so that readers walk it like any other log; runs say where in
which file that is. I/O workers change a log, reader threads only look: what is behind the durable
end is looked at by nobody, and what both touch is replaced in one step.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from icecore.codec.batch import HEADER_LENGTH, parse_header
from icecore.errors import CorruptBatchError, IcecoreError, NotReplicaError
from icecore_node.storage.batches.batch_log import Place, Readable
from icecore_node.storage.batches.batch_scan import empty_tail
from icecore_node.storage.engine import NO_TAIL, LogTail, SegmentIdentity

_NUMBER_SHIFT = 40
_POSITION_MASK = (1 << _NUMBER_SHIFT) - 1
_RECENT_TAILS = 64


class Bytes(Protocol):
    """Bytes of shared files."""

    def pread(self, number: int, length: int, position: int) -> bytes:
        """Read from file ``number``. Raises NotReplicaError when it was removed."""
        ...


@dataclass(frozen=True, slots=True)
class FileRun:
    """Batches that lie one behind the other in one file."""

    first_offset: int
    end_offset: int
    number: int
    """Number of the file."""
    position: int
    length: int
    max_append_timestamp_ms: int
    """Maximum append time of the log up to the end of this run."""


class Runs:
    """All runs of a log, 32 bytes each. One thread at a time changes them, any may look."""

    __slots__ = ("_offsets", "_places", "_starts", "_times")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._times = array("q")
        self._places = array("q")
        self._starts = array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, first_offset: int, start: int, place: int, time_ms: int) -> None:
        """One more; ``start`` counts from the first batch of the log."""
        self._offsets.append(first_offset)
        self._times.append(time_ms)
        self._places.append(place)
        self._starts.append(start)

    def at(self, index: int, end: Place) -> FileRun:
        """One of them; ``end`` is that of the log."""
        is_last = index + 1 >= len(self._starts)
        stop = end[1] if is_last else self._starts[index + 1]
        end_offset = end[0].end_offset if is_last else self._offsets[index + 1]
        return FileRun(
            self._offsets[index],
            end_offset,
            self._places[index] >> _NUMBER_SHIFT,
            self._places[index] & _POSITION_MASK,
            stop - self._starts[index],
            self._times[index],
        )

    def in_file(self, number: int) -> Iterator[int]:
        """Indexes of those that lie in this file."""
        low, high = number << _NUMBER_SHIFT, (number + 1) << _NUMBER_SHIFT
        return (at for at, place in enumerate(self._places) if low <= place < high)

    def move(self, index: int, place: int) -> None:
        """It has been copied there."""
        self._places[index] = place

    def cut(self, position: int) -> "Runs":
        """A copy of those that begin before."""
        count, copy = bisect_left(self._starts, position), Runs()
        copy._offsets, copy._times = self._offsets[:count], self._times[:count]
        copy._places, copy._starts = self._places[:count], self._starts[:count]
        return copy

    def parts(self, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(file number, position in it, length) of what makes up [``position``, ``stop``)."""
        starts = self._starts
        index = bisect_right(starts, position) - 1
        while position < stop:
            end = starts[index + 1] if index + 1 < len(starts) else stop
            length = min(end, stop) - position
            place = self._places[index] + position - starts[index]
            yield place >> _NUMBER_SHIFT, place & _POSITION_MASK, length
            position += length
            index += 1

    def before_offset(self, offset: int) -> int:
        """Return where the run begins that holds an offset; 0 without one."""
        index = bisect_right(self._offsets, offset) - 1
        return self._starts[index] if index >= 0 else 0

    def before_time(self, timestamp_ms: int, base_offset: int) -> int:
        """The first offset of the first run that may hold a batch of this time or later."""
        index = bisect_left(self._times, timestamp_ms)
        return self._offsets[index] if index < len(self._offsets) else base_offset


def place_of(number: int, position: int) -> int:
    """A position in a file as one number."""
    return number << _NUMBER_SHIFT | position


class SharedLog:
    """A ``BatchLog`` over runs; its own ``Handle`` and what that gives."""

    __slots__ = (
        "_bytes",
        "base",
        "end",
        "failed",
        "identity",
        "is_sealed",
        "lane",
        "runs",
        "tails",
    )

    def __init__(
        self, identity: SegmentIdentity, start_timestamp_ms: int, lane: int, bytes_: Bytes
    ) -> None:
        """
        Args:
            lane: Which worker writes it.
            bytes_: Of all shared files.
        """
        self._bytes = bytes_
        self.lane = lane
        self.is_sealed = False
        self.failed: IcecoreError | None = None
        """Error of a failed append; the log refuses appends until it is cut or dropped."""
        self.runs = Runs()
        self.tails: deque[Place] = deque(maxlen=_RECENT_TAILS)
        self.confirm(identity, start_timestamp_ms)

    def confirm(self, identity: SegmentIdentity, start_timestamp_ms: int) -> None:
        """Fix its base; it has no batches."""
        is_prepared = identity.base_offset < 0
        start = NO_TAIL if is_prepared else empty_tail(identity, start_timestamp_ms)
        self.identity = identity
        self.base: Place = (start, 0)
        self.end: Place = self.base

    @property
    def handle(self) -> "SharedLog":
        """See ``BatchLog.handle``."""
        return self

    def using(self) -> AbstractContextManager["SharedLog"]:
        """See ``Handle.using``: files are held for each read, so that none is for long."""
        return nullcontext(self)

    def pread(self, length: int, position: int) -> bytes:
        """See ``Readable.pread``; what is behind the durable end is not there."""
        stop = min(position + length, self.end[1])
        try:
            return self._pread(position, stop)
        except NotReplicaError:  # its runs may have been copied in between, then they are elsewhere
            return self._pread(position, stop)

    def _pread(self, position: int, stop: int) -> bytes:
        parts = self.runs.parts(position, stop) if position < stop else ()
        read = [self._bytes.pread(number, length, at) for number, at, length in parts]
        return read[0] if len(read) == 1 else b"".join(read)

    def advance(self, first_offset: int, place: int, length: int, tail: LogTail) -> None:
        """Take over batches that are durable now."""
        position = self.end[1]
        self.runs.add(first_offset, position, place, tail.max_append_timestamp_ms)
        self.end = (tail, position + length)
        self.tails.append(self.end)

    def rewind(self, tail: LogTail, position: int) -> None:
        """It was cut there."""
        runs = self.runs.cut(position)
        self.end = (tail, position)
        self.runs = runs
        self.tails.clear()
        self.failed = None

    def all_runs(self) -> list[FileRun]:
        """In the order of their offsets."""
        return [self.runs.at(index, self.end) for index in range(len(self.runs))]

    def nearest_tail(self, end_offset: int) -> Place:
        """The latest remembered place at or before ``end_offset``."""
        for place in reversed(list(self.tails)):
            if place[0].end_offset <= end_offset:
                return place
        return self.base


class RunShortcuts:
    """``Shortcuts`` by the first offset and the time of each run."""

    def span(
        self, log: SharedLog, offset: int, max_bytes: int, end_offset: int, end: Place
    ) -> tuple[int, int, int] | None:
        """See ``Shortcuts.span``: a run is short, so that the walk in it is."""
        return None

    def tail_before(self, log: SharedLog, end_offset: int) -> Place:
        """See ``Shortcuts.tail_before``."""
        return log.nearest_tail(end_offset)

    def batch_before(self, log: SharedLog, file: Readable, offset: int) -> Place:
        """See ``Shortcuts.batch_before``."""
        position = log.runs.before_offset(offset)
        if not 0 < position < log.end[1]:
            return log.base
        try:
            header = parse_header(file.pread(HEADER_LENGTH, position))
        except CorruptBatchError:
            return log.base
        tail = replace(
            NO_TAIL,
            end_offset=header.base_offset,
            last_header_crc32c=header.prev_header_crc32c,
        )
        return tail, position

    def offset_before(self, log: SharedLog, timestamp_ms: int) -> int:
        """See ``Shortcuts.offset_before``."""
        return log.runs.before_time(timestamp_ms, log.identity.base_offset)
