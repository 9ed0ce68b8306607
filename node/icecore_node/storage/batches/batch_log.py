"""A log as readers see it, whichever engine keeps it, and what may happen to it in which state.

Its batches lie one behind the other between two *places*. A place is a tail and the position
(bytes) behind it in whatever the engine reads from: a file, an object, memory. ``base`` is where
the first batch begins, ``end`` where the durable log ends; a tail and its position move together.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol, TypeAlias

from icecore.errors import InvalidRequestError, StorageError
from icecore.model import SegmentId
from icecore_node.storage.engine import LogTail, SegmentIdentity

Place: TypeAlias = tuple[LogTail, int]


class Readable(Protocol):
    """The source of bytes."""

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end."""
        ...


class Handle(Protocol):
    """The way to the bytes of one log."""

    def using(self) -> AbstractContextManager[Readable]:
        """Keep them at hand for the length of a block. Raises NotReplicaError when they go away."""
        ...


class BatchLog(Protocol):
    """A log in use."""

    @property
    def identity(self) -> SegmentIdentity:
        """Its base offset is -1 while it is only prepared."""
        ...

    @property
    def handle(self) -> Handle:
        """Return where its bytes are."""
        ...

    @property
    def base(self) -> Place:
        """Return where its first batch begins; ``NO_TAIL`` while it is only prepared."""
        ...

    @property
    def end(self) -> Place:
        """Return where it ends, durably."""
        ...

    @property
    def is_sealed(self) -> bool:
        """Return whether its bytes never change again."""
        ...


def damaged(segment_id: SegmentId, what: object) -> StorageError:
    """Something of a log is not what was written."""
    return StorageError(f"segment {segment_id} is damaged: {what}", segment_id=segment_id)


def check_writable(log: BatchLog) -> None:
    """Raise InvalidRequestError when a log is sealed, or its base is not known."""
    segment_id = log.identity.segment_id
    if log.is_sealed:
        raise InvalidRequestError(f"segment {segment_id} is sealed")
    if log.identity.base_offset < 0:
        raise InvalidRequestError(f"segment {segment_id} is not confirmed")


def with_high_watermark(tail: LogTail, high_watermark: int) -> LogTail:
    """The same tail of a log in which a high watermark was known, even if its batch is gone: the
    tripwire compares what was known with later decisions."""
    if high_watermark <= tail.max_known_high_watermark:
        return tail
    return replace(tail, max_known_high_watermark=high_watermark)
