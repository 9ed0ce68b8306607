"""Salvage of UNKNOWN logs: find the part that can be proved, and use it on a person's order.

A log may be condemned although most of its bytes are right: a sync failed, the folder was an old
copy, one sector is bad. Batches that chain from the segment's seed under right CRCs are what the
leader wrote; only what may have followed is not known. The rule is the same for all engines. Of all
copies, the longest provable part counts. It is put in the log's place, then the control store
records it, then it is used.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from icecore.errors import NotReplicaError
from icecore.model import SegmentId
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.engine import FoundLog, KnownLog, LogTail


class Proven(Protocol):
    """The part of one copy of a log that is right from the first byte on."""

    @property
    def end(self) -> Place:
        """Return where it ends."""
        ...


ProvenT = TypeVar("ProvenT", bound=Proven)


class Remains(Protocol[ProvenT]):
    """The remaining bytes of an engine's logs."""

    def strays(self) -> list[SegmentId]:
        """See ``LogSalvage.strays``."""
        ...

    def provable(self, log: KnownLog) -> Iterable[ProvenT]:
        """Return the provable parts of its copies, in its place and set aside. Changes nothing."""
        ...

    def put_back(self, log: KnownLog, found: ProvenT) -> None:
        """Make it the log in its place, durably."""
        ...

    def use(self, log: KnownLog, found: ProvenT) -> FoundLog:
        """Judge what is in its place now, as a start would, and use it."""
        ...


class ProvenLogs(Generic[ProvenT]):
    """``LogSalvage`` over what an engine has left. All methods block; only ``restore`` changes
    anything."""

    def __init__(self, remains: Remains[ProvenT]) -> None:
        self._remains = remains

    def strays(self) -> list[SegmentId]:
        """See ``LogSalvage.strays``."""
        return self._remains.strays()

    def tail(self, log: KnownLog) -> LogTail | None:
        """See ``LogSalvage.tail``. None when no copy has any record that can be proved: that is no
        empty log."""
        found = self._longest(log)
        return None if found is None else found.end[0]

    def restore(self, log: KnownLog, remember: Callable[[], object]) -> FoundLog:
        """See ``LogSalvage.restore``."""
        found = self._longest(log)
        if found is None:
            segment_id = log.identity.segment_id
            raise NotReplicaError(f"nothing of segment {segment_id} can be salvaged here")
        self._remains.put_back(log, found)
        remember()
        return self._remains.use(log, found)

    def _longest(self, log: KnownLog) -> ProvenT | None:
        best: ProvenT | None = None
        for found in self._remains.provable(log):
            end_offset = log.identity.base_offset if best is None else best.end[0].end_offset
            if found.end[0].end_offset > end_offset:
                best = found
        return best
