"""Filtered fetch: what matches of one log, as plain records or as batches that hold nothing else.

A batch of which some records match is encoded again with those alone, in the form of one that
compaction has rewritten: offsets and header are those of the stored one, and its range stays what
it was. One of which all match is passed on as it is stored.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from icecore.codec import batch, record
from icecore.codec.batch import BatchHeader, Compacted
from icecore.codec.picking import Picks
from icecore.errors import BatchTooLargeError, CorruptBatchError
from icecore.rpc.ports import Clock
from icecore.v1 import data_pb2
from icecore_node.ports import Buffer
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query.log_search import LogSearch
from icecore_node.serving.query.search_ports import StoredBatch

LOOK_BYTES_MAX: Final = 16 << 20
LOOK_MS_MAX: Final = 500


class FilterBudget:
    """Limit of bytes and time that one fetch may look at before it answers, with or without a
    match. The next fetch goes on there, after other requests had a turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_ms = clock.monotonic_ms() + LOOK_MS_MAX
        self._left_bytes = LOOK_BYTES_MAX

    def spend(self, length_bytes: int) -> None:
        """Count bytes that were read."""
        self._left_bytes -= length_bytes

    @property
    def is_spent(self) -> bool:
        """Return whether the fetch must answer now."""
        return self._left_bytes <= 0 or self._clock.monotonic_ms() >= self._ends_ms


@dataclass(slots=True)
class Filtered:
    """Result of one look."""

    next_offset: int
    """Everything before it was looked at."""
    buffers: list[Buffer] = field(default_factory=list)
    """Batches of matching records; empty when ``encoded`` is used."""
    encoded: bytes = b""
    """The same as a ``FetchPartitionResult`` with plain records only."""
    count: int = 0
    """Number of plain records."""
    length_bytes: int = 0
    error: CorruptBatchError | None = None
    """The batch in front of ``next_offset`` can't be decoded, and nothing was found before it."""


@dataclass(slots=True)
class BatchSink:
    """Batches with the matching records alone. See ``Sink``."""

    max_bytes: int
    is_first: bool
    """The first batch of an answer comes whatever its size."""
    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    is_full: bool = False

    def take(self, found: StoredBatch, picks: Picks, places: Sequence[int]) -> int:
        """See ``Sink.take``: all of a batch, or nothing."""
        is_whole = len(places) == found.header.record_count
        made = found.stored() if is_whole else only(found.header, picks, places)
        return len(places) if self._add(made) else 0

    def refuse(self, found: StoredBatch, _: CorruptBatchError | BatchTooLargeError) -> bool:
        """See ``Sink.refuse``: the stored batch is sent, and the client meets the error itself
        (R71)."""
        return self._add(found.stored())

    def _add(self, made: Buffer) -> bool:
        is_empty = self.is_first and not self.buffers
        if self.size_bytes + len(made) > self.max_bytes and not is_empty:
            self.is_full = True
            return False
        self.buffers.append(made)
        self.size_bytes += len(made)
        return True


def only(header: BatchHeader, picks: Picks, places: Sequence[int]) -> bytes:
    """A stamped batch with some records of another one, at the same offsets."""
    chosen = picks.records_at(places)
    raw = record.encode_columns(
        values=[each.value for each in chosen],
        timestamps_ms=[each.timestamp_ms for each in chosen],
        keys=[each.key for each in chosen],
        tags=[each.tags for each in chosen],
        headers=[each.headers for each in chosen],
        header_hashes=[picks.header_hashes_at(at) for at in places],
        codec=header.codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        schema_id=header.schema_id,
        offset_deltas=[each.offset - header.base_offset for each in chosen],
    )
    stamped, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=header.segment_id,
        epoch=header.epoch,
        base_offset=header.base_offset,
        append_timestamp_ms=header.append_timestamp_ms,
        high_watermark=header.high_watermark,
        prev_header_crc32c=header.prev_header_crc32c,
        compacted=Compacted(header.end_offset, header.delete_horizon_ms),
    )
    return stamped + raw[batch.HEADER_LENGTH :]


FilterSink: TypeAlias = BatchSink | PlainSink
MakeStep: TypeAlias = Callable[[Callable[[], FilterSink]], Awaitable[FilterSink]]
"""Function that makes a step of the search on a thread."""


async def read_filtered(
    search: LogSearch, step: MakeStep, room: tuple[int, int], budget: FilterBudget
) -> Filtered:
    """Find matching records from the search's position on, until there is no room or the budget is
    spent.

    Args:
        search: A search in ascending order.
        step: Makes one of its steps.
        room: Maximum bytes, and maximum number of plain records; with 0 records the answer is
            batches.
        budget: Budget of the whole request.

    Raises:
        NotReplicaError: The replica is damaged, or gone.
    """
    max_bytes, max_records = room
    found, parts = Filtered(search.left[0]), list[bytes]()

    def batches() -> BatchSink:
        return BatchSink(max_bytes - found.length_bytes, not found.length_bytes)

    def clear() -> PlainSink:
        return PlainSink(
            data_pb2.FetchPartitionResult(),
            max_records - found.count,
            max_bytes - found.length_bytes,
            is_first=not found.count,
            ends_at_undecodable=True,
        )

    make_sink: Callable[[], FilterSink] = clear if max_records else batches
    is_full = False
    while not (search.is_done or is_full or budget.is_spent):
        before = search.work.data_bytes + search.work.index_bytes
        sink = await step(make_sink)
        budget.spend(search.work.data_bytes + search.work.index_bytes - before)
        found.length_bytes += sink.size_bytes
        found.next_offset = search.left[0]
        is_full = sink.is_full
        if isinstance(sink, BatchSink):
            found.buffers += sink.buffers
        else:
            parts.append(sink.encoded())
            found.count += sink.count
            found.error = sink.undecodable
    if found.error is not None:
        found.next_offset = int(found.error.metadata["next_offset"])
    found.encoded = b"".join(parts)
    return found
