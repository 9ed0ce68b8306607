"""The logs that an engine has in use, and the rules that hold for them in every engine.

A log gets in when it was judged at start, or when the control store has its record. So what is not
in the table is no replica of this engine, whatever its medium holds. The rules are those of a log's
life: it takes appends while it is confirmed, not sealed and not failed, and it is sealed once, at
an end and a digest that are its own. What an engine does beside that with its medium it adds.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from icecore.errors import IcecoreError, NotReplicaError
from icecore.model import SegmentId
from icecore_node.storage.batches.batch_log import BatchLog, check_writable
from icecore_node.storage.engine import LogEnd, NotAsSealed


class EngineLog(BatchLog, Protocol):
    """A log in use, as its engine changes it."""

    is_sealed: bool
    failed: IcecoreError | None
    """Error of a failed append; the log refuses appends until it is cut or dropped."""


L = TypeVar("L", bound=EngineLog)


def _nothing(_: object) -> None:
    """Return at once: all of the log is durable, and it has no space of its own."""


class LogTable(dict[SegmentId, L]):
    """Logs by segment id. Others look at it; only its engine changes it, one thread at a time."""

    def find(self, segment_id: SegmentId) -> L:
        """A log in use. Raises NotReplicaError when there is none."""
        log = self.get(segment_id)
        if log is None:
            raise NotReplicaError(f"no replica of segment {segment_id}", segment_id=segment_id)
        return log

    def appendable(self, segment_id: SegmentId) -> L:
        """A log that takes appends.

        Raises:
            NotReplicaError: There is none.
            InvalidRequestError: It is sealed, or its base is not known.
            IcecoreError: An append to it failed, and it was not cut since.
        """
        log = self.find(segment_id)
        if log.failed is not None:
            raise log.failed
        check_writable(log)
        return log

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[LogEnd], None],
        finish: Callable[[L], None] = _nothing,
    ) -> bool:
        """See ``Engine.seal``. ``finish`` makes durable what is not yet. Return False when the log
        was sealed before."""
        log = self.find(segment_id)
        _check_end(log, end_offset, seal_digest)
        if log.is_sealed:
            return False
        finish(log)
        remember(LogEnd(*log.end))
        log.is_sealed = True
        return True


def _check_end(log: BatchLog, end_offset: int, seal_digest: bytes) -> None:
    """Raise NotAsSealed unless a log ends there with this digest."""
    tail = log.end[0]
    is_confirmed = log.identity.base_offset >= 0
    if not is_confirmed or (tail.end_offset, tail.digest) != (end_offset, seal_digest):
        raise NotAsSealed(
            f"segment {log.identity.segment_id} ends at {tail.end_offset} with digest "
            f"{tail.digest.hex()}, to be sealed at {end_offset} with {seal_digest.hex()}"
        )
