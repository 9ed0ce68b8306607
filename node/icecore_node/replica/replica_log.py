"""The log of one replica as the loop knows it: its two tails and its producers.

``tail`` is where the next batch goes, ``durable_tail`` how far all of it is fsynced; between them
are the appends under way. Nobody else changes either: appends come in by ``extend``, their results
by ``became_durable``, and whoever has the segment for itself may ``settle`` or ``cut`` it.
"""

from dataclasses import dataclass
from typing import Final

from icecore.codec import batch
from icecore.codec.batch import HEADER_LENGTH, BatchHeader
from icecore.codec.chain import digest_step
from icecore.model import SegmentId
from icecore_node.io.io_pool import LogIo
from icecore_node.io.tail_cache import CachedBatch
from icecore_node.ports import Buffer
from icecore_node.storage.engine import AppendRequest, BatchMark, LogTail, SegmentIdentity
from icecore_node.storage.port import Store
from icecore_replication.producers import ProducerTable, snapshot_digest

_REQUEST_BYTES_MAX: Final = 4 << 20
"""Maximum size of a request of several batches. A request succeeds or fails as a whole."""


@dataclass(slots=True, kw_only=True)
class StampedBatch:
    """A batch with its place in the log; the bytes are shared, never copied. Not
    frozen, which would cost a microsecond more for each batch."""

    header_bytes: bytes
    """As they are in the log; ``header`` may be from before they were stamped."""
    header: BatchHeader
    body: Buffer
    """Everything after the header."""
    base_offset: int
    end_offset: int
    append_timestamp_ms: int
    header_crc32c: int

    @classmethod
    def received(cls, data: memoryview, position: int, header: BatchHeader) -> "StampedBatch":
        """One that another node stamped, at ``position`` of ``data``."""
        start = position + HEADER_LENGTH
        return cls(
            header_bytes=bytes(data[position:start]),
            header=header,
            body=data[start : position + header.batch_length],
            base_offset=header.base_offset,
            end_offset=header.end_offset,
            append_timestamp_ms=header.append_timestamp_ms,
            header_crc32c=header.header_crc32c,
        )


class ReplicaLog:
    """Loop only."""

    def __init__(
        self,
        io: LogIo,
        identity: SegmentIdentity,
        tail: LogTail,
        producers: ProducerTable | None,
    ) -> None:
        self._io = io
        self._segment_id = identity.segment_id
        self._producers = producers
        self._may_lag = identity.flush is not None
        """Whether what counts as durable may be written only."""
        self.worker = io.pool.worker_for(identity.topic_id, identity.partition)
        self.tail = tail
        self.durable_tail = tail
        """The tail as far as it is fsynced; behind ``tail`` while appends are under way."""
        self._request_start_bytes = 0
        """Where the last request to the worker begins."""
        self._changed = io.changed

    def note_change(self) -> None:
        """Where the log ends durably, or what it counts for, may be another from now on."""
        self._changed[self._segment_id] = None

    @property
    def producers(self) -> ProducerTable:
        """The table through the end of the log. Sealed logs keep none: ``producer_state``."""
        assert self._producers is not None, f"segment {self._segment_id} keeps no producers"
        return self._producers

    def begin(self, tail: LogTail, producers: ProducerTable) -> None:
        """The log exists from now on."""
        assert self.tail.end_offset < 0, f"segment {self._segment_id} has a log already"
        self.tail = self.durable_tail = tail
        self._producers = producers

    def freeze(self, tail: LogTail) -> None:
        """The log ends here for ever: producers are neither checked nor applied any more."""
        self.tail = tail
        self._producers = None
        self._check()

    def extend(self, stamped: StampedBatch, requests: list[AppendRequest]) -> None:
        """Move the tail over one batch, which the I/O worker is to write.

        Args:
            stamped: The batch.
            requests: What the worker will get of this log, in order; the batch travels with those
                of the last request, or in one of its own.
        """
        tail, header = self.tail, stamped.header
        assert tail.end_offset >= 0, "a prepared replica has no base and no bytes"
        assert self._producers is not None, "the bytes of a sealed replica are final"
        is_next = tail.end_offset == stamped.base_offset < stamped.end_offset
        assert is_next, "an append continues the log"
        self.tail = LogTail(
            end_offset=stamped.end_offset,
            last_header_crc32c=stamped.header_crc32c,
            digest=digest_step(tail.digest, stamped.header_bytes),
            max_append_timestamp_ms=max(tail.max_append_timestamp_ms, stamped.append_timestamp_ms),
            max_known_high_watermark=tail.max_known_high_watermark,
            length_bytes=tail.length_bytes + header.batch_length,
        )
        cached = CachedBatch(
            (stamped.header_bytes, stamped.body),
            header.batch_length,
            stamped.end_offset,
            stamped.header_crc32c,
        )
        self._io.cache.put(self._segment_id, stamped.base_offset, cached)
        mark = BatchMark(stamped.base_offset, stamped.append_timestamp_ms, header.batch_length)
        length_bytes = self.tail.length_bytes
        if requests and length_bytes - self._request_start_bytes <= _REQUEST_BYTES_MAX:
            request = requests[-1]
            request.buffers += (stamped.header_bytes, stamped.body)
            request.marks.append(mark)
            request.tail = self.tail
        else:
            self._request_start_bytes = tail.length_bytes
            buffers: list[Buffer] = [stamped.header_bytes, stamped.body]
            requests.append(AppendRequest(self._segment_id, buffers, [mark], self.tail))

    def became_durable(self, tail: LogTail) -> None:
        """A group of appends is on disk, through this tail."""
        self.durable_tail = tail
        self._changed[self._segment_id] = None  # as ``note_change``, once per group of appends
        self._check()

    def note_watermark(self, high_watermark: int) -> None:
        """Remember the largest watermark ever heard of; it outlives roles and restarts."""
        tail = self.tail
        if high_watermark > tail.max_known_high_watermark:
            self.tail = LogTail(  # ``replace`` takes three times as long, and each batch needs it
                end_offset=tail.end_offset,
                last_header_crc32c=tail.last_header_crc32c,
                digest=tail.digest,
                max_append_timestamp_ms=tail.max_append_timestamp_ms,
                max_known_high_watermark=high_watermark,
                length_bytes=tail.length_bytes,
            )

    async def settle(self) -> None:
        """Let appends under way end; what never became durable is cut off, and never reported.

        The role has ended. Raises what truncating raises.
        """
        if self.tail.end_offset == self.durable_tail.end_offset:
            return  # nothing is under way
        await self.worker.run(_nothing)
        if self.tail.end_offset != self.durable_tail.end_offset:
            await self.cut(self.durable_tail.end_offset)

    async def stay_synced(self) -> None:
        """All of it is durable, and so is each append from now on; also to the next start (R81).

        Before anybody relies on this copy alone: where the log ends is about to be decided.
        """
        if self._may_lag:
            await self.worker.run(_sync_from_now_on, self._io.store, self._segment_id)
            self._may_lag = False

    async def cut(self, end_offset: int) -> None:
        """Truncate the log, durably, and bring what was derived from it back to that point.

        The caller works on the segment alone and has ended the role. Where the producers can't be
        read the log stays unsettled, so that whoever settles it next does all of this again: with
        those of the longer log a leader would take for a duplicate what is nowhere.
        """
        store, run = self._io.store, self.worker.run
        tail = self.durable_tail = await run(store.truncate, self._segment_id, end_offset)
        self.note_change()
        self._producers = await run(producers_at, store, self._segment_id, end_offset)
        known = self.tail.max_known_high_watermark
        self.tail = tail
        self.note_watermark(known)

    def _check(self) -> None:
        assert self.durable_tail.end_offset <= self.tail.end_offset, (
            f"segment {self._segment_id}: durable to {self.durable_tail.end_offset}, "
            f"the log ends at {self.tail.end_offset}"
        )


def _sync_from_now_on(store: Store, segment_id: SegmentId) -> None:
    store.sync([segment_id], from_now_on=True)


def _nothing() -> None:
    """An operation that only passes through the queue, behind all appends of the log."""


# --- producers of what is on disk -----------------------------------------------------------------

# The table is a function of the log (R20), so whoever does not keep it makes it again: after a
# cut, and of sealed replicas, which keep none in memory. I/O workers and readers call these.


def producers_at(store: Store, segment_id: SegmentId, end_offset: int) -> ProducerTable:
    """The table as it was when the log ended at ``end_offset``.

    Raises NotReplicaError, StorageError.
    """
    snapshot, _ = store.reader.starting_state(segment_id)
    table = ProducerTable(snapshot)
    for raw in store.reader.headers(segment_id, end_offset):
        table.apply_header(batch.parse_header(raw))
    return table


def state_at(store: Store, segment_id: SegmentId, end_offset: int) -> tuple[bytes, bytes]:
    """Snapshot and digest of ``producers_at``. Raises NotReplicaError, StorageError."""
    return with_digest(producers_at(store, segment_id, end_offset))


def with_digest(table: ProducerTable) -> tuple[bytes, bytes]:
    """Snapshot and digest of a table."""
    snapshot = table.snapshot()
    return snapshot, snapshot_digest(snapshot)
