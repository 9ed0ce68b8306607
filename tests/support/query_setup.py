"""The handlers of queries and fetches over real segments, with an index that a test makes as bad as
it likes.

Segments are of one partition and lie in the segment engine on a simulated disk. What the index
knows is read from the records themselves, but for gaps and hashes that collide.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple, cast

import numpy as np

from icecore.codec import batch, record
from icecore.codec.batch import Codec, Compacted
from icecore.codec.columns import Headers, Record
from icecore.codec.hashes import header_hash, header_hashes, key_hash, tag_hash
from icecore.model import Segment, SegmentId, SegmentState
from icecore.rpc import framing
from icecore.rpc.ports import CallContext, join
from icecore.rpc.record_columns import from_proto
from icecore.topic_settings import SEGMENT_ENGINE, SegmentSettings
from icecore.v1 import data_pb2
from icecore_node.identity.readers import Readers
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.metrics import NodeMetrics
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica import life as lives
from icecore_node.replica.life import Life
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.serving.fetch.fetch import FetchHandler
from icecore_node.serving.fetch.plain_records import append_record
from icecore_node.serving.query.query import QueryHandler
from icecore_node.serving.remote_segments import RemoteSegments
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import (
    ACTIVE_INDEX,
    NO_INDEX,
    SEALED_INDEX,
    Candidates,
    IndexSummary,
    OffsetRange,
)
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_replication.producers import ProducerTable
from tests.conformance.log_builder import CLUSTER, TOPIC, LogBuilder
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.ports import memory_database
from tests.support.role_setup import context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CALL = CallContext("peer", "anonymous", None)


class DirectExecutor:
    """Runs what is blocking at once; counts."""

    runs = 0

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        self.runs += 1
        return function(*args)


class DirectWorker:
    """In the place of the worker of a log."""

    def worker_for(self, *_: object) -> "DirectWorker":
        return self

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return function(*args)


class RunningClock:
    """Milliseconds that a test moves."""

    ms = 0.0

    def monotonic_ms(self) -> float:
        return self.ms

    def now_ms(self) -> int:
        return int(self.ms)


class StubRole:
    """A leader of a log, as readers see it."""

    def __init__(self, high_watermark: int) -> None:
        self.high_watermark = self.durable_end_offset = high_watermark

    def stop(self, why: str) -> None: ...
    def give_up(self, why: str) -> None: ...
    def fence(self, epoch: int) -> None: ...


@dataclass(frozen=True)
class Stored:
    """One record as a test thinks of it."""

    value: bytes | None = b""
    key: bytes | None = None
    timestamp_ms: int = 0
    tags: tuple[str, ...] = ()
    headers: Headers = ()


INDEXED_HEADERS = ("h",)
"""The indexed headers of every segment here."""


def encoded(
    records: Sequence[Stored], codec: Codec = Codec.NONE, deltas: Sequence[int] | None = None
) -> bytes:
    """An unstamped batch."""
    headers = [each.headers for each in records]
    return record.encode_columns(
        values=[each.value for each in records],
        keys=[each.key for each in records],
        timestamps_ms=[each.timestamp_ms for each in records],
        tags=[each.tags for each in records],
        headers=headers,
        header_hashes=header_hashes(headers, INDEXED_HEADERS),
        codec=codec,
        offset_deltas=deltas,
    )


class HashIndex:
    """``LogIndex`` from the records themselves.

    Args:
        node: Whose segments these are.
    """

    def __init__(self, node: "QueryNode") -> None:
        self._node = node
        self.gaps: dict[int, list[OffsetRange]] = {}
        """Gaps of the index, by segment."""
        self.collide = False
        """Every second offset is named, too."""
        self.searched_max = 1 << 40
        """Offsets in one answer."""
        self.calls = 0
        self.asked: list[OffsetRange] = []

    def candidates(
        self,
        segment_id: SegmentId,
        hashes: Sequence[int],
        asked: OffsetRange,
        *,
        limit: int,
        newest_first: bool = False,
    ) -> Candidates:
        self.calls += 1
        self.asked.append(asked)
        low, high = asked
        if newest_first:
            low = max(low, high - self.searched_max)
        else:
            high = min(high, low + self.searched_max)
        gaps = self.gaps.get(segment_id, [])
        inside = [(max(a, low), min(b, high)) for a, b in gaps if max(a, low) < min(b, high)]
        known = [
            each
            for each in self._node.records[segment_id]
            if low <= each.offset < high and not any(a <= each.offset < b for a, b in inside)
        ]
        found = [
            sorted(
                {
                    each.offset
                    for each in known
                    if wanted in _hashes(each) or (self.collide and each.offset % 2)
                }
            )
            for wanted in hashes
        ]
        return Candidates(
            (low, high), tuple(np.array(each, np.int64) for each in found), tuple(inside), 100
        )

    def summary(self, segment_id: SegmentId) -> IndexSummary:
        times = [each.timestamp_ms for each in self._node.records[segment_id]]
        if self._node.replicas[segment_id].sealed and times:
            return IndexSummary(SEALED_INDEX, 1000, 10, 1, (min(times), max(times)))
        return IndexSummary(ACTIVE_INDEX, 1000, 10, 3)


def _hashes(each: Record) -> set[int]:
    hashes = {tag_hash(tag.encode()) for tag in each.tags}
    hashes |= {
        header_hash(name, value)
        for name, value in each.headers
        if value is not None and name in INDEXED_HEADERS
    }
    return hashes if each.key is None else hashes | {key_hash(each.key)}


class NothingKnown:
    """``LogIndex`` that is one gap."""

    def candidates(
        self, segment_id: int, hashes: Sequence[int], asked: OffsetRange, **_: Any
    ) -> Candidates:
        return Candidates(asked, tuple(np.empty(0, np.int64) for _ in hashes), (asked,), 0)

    def summary(self, segment_id: int) -> IndexSummary:
        return IndexSummary(NO_INDEX)


async def find_nothing(topic: str, partition: int, offset: int) -> None:
    """As a coordinator without segments in object storage."""


class QueryNode:
    """One partition on one node."""

    def __init__(self) -> None:
        self.records: dict[int, list[Record]] = {}
        self.replicas: dict[int, Replica] = {}
        self.logs: dict[int, LogBuilder] = {}
        self.end_offset = 0
        self.index: Any = HashIndex(self)
        self.disk = SimDisk()
        engine = SegmentEngine(
            SimFileSystem(self.disk, None), SimIndex(SimIndexDisk(), None), SMALL, lambda _: None
        )
        control = ControlStore(memory_database())
        self.store = ReplicaStore(control, {SEGMENT_ENGINE: engine}, CLUSTER, "")
        self.store.start_up()
        self.readers, self.clock, self.executor = Readers(), RunningClock(), DirectExecutor()
        self.table = ReplicaTable(self.readers)
        self.damaged: list[str] = []
        self.context = context(
            cast(Any, DirectWorker()),
            store=SimpleNamespace(reader=self.store.reader, index=self),
            executor=self.executor,
            metrics=NodeMetrics(),
            clock=self.clock,
            settings=SimpleNamespace(fetch_bytes_max=8 << 20),
        )
        reading = ReplicaReading(self.context, cast(Any, self))
        heavy = HeavyWork(cast(Any, self.executor))
        remote = RemoteSegments(None, self.table, self.clock, find_nothing)
        self.queries = QueryHandler(self.context, self.table, reading, heavy, remote)
        self.silent_ms = 0
        self.fetches = FetchHandler(
            self.context,
            self.table,
            self.readers,
            reading,
            heavy,
            remote,
            silent_ms=lambda: self.silent_ms,
        )

    # --- what the node has ----------------------------------------------------------------------

    def candidates(self, *args: Any, **named: Any) -> Candidates:
        """Whatever index the test has put here."""
        found: Candidates = self.index.candidates(*args, **named)
        return found

    def summary(self, segment_id: int) -> IndexSummary:
        found: IndexSummary = self.index.summary(segment_id)
        return found

    def condemn(self, replica: Replica, why: str) -> None:
        """As ``Damage.condemn``."""
        self.damaged.append(why)
        if replica.life.is_intact:
            replica.move(lives.Condemned(why))

    def begin(self, segment_id: int) -> None:
        """An active segment where the last one ended."""
        log = LogBuilder(segment_id, self.end_offset)
        (error,) = self.store.creation.create([log.identity], {SegmentId(segment_id): (b"", 0)})
        assert error is None
        replica = Replica(
            self.context.log_io, log.identity, log.tail, ProducerTable(), life=Life.IDLE
        )
        replica.move(lives.Led(StubRole(log.identity.base_offset)))
        replica.learn(
            Segment(
                segment_id=SegmentId(segment_id),
                topic_id=TOPIC,
                topic="topic",
                partition=0,
                state=SegmentState.ACTIVE,
                epoch=log.identity.epoch,
                settings=SegmentSettings(indexed_headers=INDEXED_HEADERS),
            )
        )
        self.logs[segment_id], self.replicas[segment_id] = log, replica
        self.records[segment_id] = []
        self.table.add(replica)

    def append(
        self,
        segment_id: int,
        records: Sequence[Stored],
        *,
        codec: Codec = Codec.NONE,
        deltas: Sequence[int] | None = None,
        raw: bytes | None = None,
    ) -> None:
        """A batch, visible at once. ``deltas`` make it one that compaction has rewritten."""
        log, role = self.logs[segment_id], self.replicas[segment_id].role
        compacted = None if deltas is None else Compacted(self.end_offset + deltas[-1] + 2)
        made = log.add(
            encoded(records, codec, deltas) if raw is None else raw,
            time_ms=1000 + self.end_offset,
            compacted=compacted,
        )
        stop = len(log.batches)
        request = log.request_of(stop - 1, stop)
        self.store.append_group([request])
        assert request.error is None and isinstance(role, StubRole)
        if raw is None:
            columns = record.decode(made, 0, batch.parse_header(made))
            self.records[segment_id] += columns.to_records()
        self.end_offset = log.tail.end_offset
        known = self.replicas[segment_id].log
        known.tail = known.durable_tail = log.tail
        role.high_watermark = role.durable_end_offset = self.end_offset
        self.readers.wake(self.replicas[segment_id].partition_key)

    def seal(self, segment_id: int) -> None:
        """The segment is final."""
        log, replica = self.logs[segment_id], self.replicas[segment_id]
        self.store.seal(SegmentId(segment_id), log.tail.end_offset, log.tail.digest)
        replica.move(lives.RoleEnded("sealed"))
        replica.move(lives.Sealed(log.tail))

    def lose(self, segment_id: int) -> None:
        """Another node has it, this one not."""
        self.table.remove(self.replicas.pop(segment_id))

    def all_records(self) -> list[Record]:
        return [each for number in sorted(self.records) for each in self.records[number]]

    # --- what clients ask -----------------------------------------------------------------------

    async def query(self, **fields: Any) -> data_pb2.QueryResponse:
        """One page."""
        fields.setdefault("partitions", [data_pb2.QueryPartition()])
        request = data_pb2.QueryRequest(topic_id=fields.pop("topic_id", TOPIC), **fields)
        body = await self.queries.query(request.SerializeToString(), CALL)
        return data_pb2.QueryResponse.FromString(body)

    async def pages(self, **fields: Any) -> list[data_pb2.QueryResponse]:
        """All of them."""
        found = [await self.query(**fields)]
        while found[-1].continuation:
            fields["continuation"] = found[-1].continuation
            found.append(await self.query(**fields))
            assert len(found) < 10_000
        return found

    async def fetch(
        self, offset: int, filter_: data_pb2.RecordFilter | None = None, **fields: Any
    ) -> tuple[data_pb2.FetchPartitionResult, bytes]:
        """The result of one partition and its batches."""
        entry = data_pb2.FetchPartition(topic_id=TOPIC, offset=offset, filter=filter_)
        return await self.fetch_entry(entry, **fields)

    async def fetch_entry(
        self, entry: data_pb2.FetchPartition, **fields: Any
    ) -> tuple[data_pb2.FetchPartitionResult, bytes]:
        """The same of any entry."""
        header, batches = await self.fetch_answer(entry, **fields)
        (result,) = header.partitions
        return result, batches

    async def fetch_answer(
        self, entry: data_pb2.FetchPartition, **fields: Any
    ) -> tuple[data_pb2.FetchResponseHeader, bytes]:
        """All of the answer."""
        fields.setdefault("max_bytes", 1 << 20)
        header = data_pb2.FetchHeader(partitions=[entry], **fields)
        request = data_pb2.FetchRequest(header=header).SerializeToString()
        head, batches = framing.split_bulk(
            join(await self.fetches.fetch(request, CALL)), data_pb2.FetchResponse
        )
        return data_pb2.FetchResponseHeader.FromString(head), bytes(batches)


def records_of(pages: Sequence[data_pb2.QueryResponse], *, newest_first: bool = False) -> list[Any]:
    """Return the records of all partitions and pages, in order, whether they came singly or as
    columns."""
    return [
        each
        for page in pages
        for result in page.partitions
        for each in _merged([*result.records], _out_of_columns(result), newest_first)
    ]


def _out_of_columns(result: data_pb2.QueryPartitionResult) -> list[Any]:
    part = data_pb2.QueryPartitionResult()
    for columns in result.columns:
        for each in from_proto(columns).to_records():
            append_record(part, each)
    return [*part.records]


def _merged(plain: list[Any], columns: list[Any], newest_first: bool) -> list[Any]:
    """Both are in the order of the answer."""
    if not columns:
        return plain
    for part in (plain, columns):
        assert part == sorted(part, key=lambda each: each.offset, reverse=newest_first)
    return sorted(plain + columns, key=lambda each: each.offset, reverse=newest_first)


def cut_gaps(rng: random.Random, low: int, high: int) -> list[OffsetRange]:
    """Some ranges, ascending and apart."""
    edges = sorted({rng.randint(low, high) for _ in range(rng.randint(0, 6))})
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]
