"""Fetch and ListOffsets: whole batches from the replica that holds the offset, up to its watermark.

The leader, an in-sync follower and every sealed replica answer alike. A fetch that finds nothing
waits, without polling, until a watermark of one of its partitions moves or its time is over. Bytes
come from the tail cache when the reader is at the end, else from the file on a reader thread. With
a filter, what was looked at once is not looked at again while it waits.
"""

import asyncio
from collections.abc import Awaitable, Callable

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotLeaderError,
    NotReplicaError,
)
from icecore.model import SegmentId
from icecore.rpc import convert, framing
from icecore.rpc.filters import selection_from_proto
from icecore.rpc.ports import Body, CallContext, Received
from icecore.rpc.turns import Turns
from icecore.topic_settings import UNCOMPRESSED_BYTES_CAP
from icecore.v1 import data_pb2
from icecore_node.context import NodeContext
from icecore_node.identity.readers import PartitionKey, Readers
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.ports import Buffer
from icecore_node.registry.table import Nowhere, PartitionReplicas, ReplicaTable
from icecore_node.replica.life import Life
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.serving.fetch.filtered_fetch import (
    FilterBudget,
    Filtered,
    FilterSink,
    read_filtered,
)
from icecore_node.serving.fetch.location import Local, Location, Locator, Remote
from icecore_node.serving.fetch.plain_records import (
    ANSWER_BYTES_MAX,
    ANSWER_RECORDS_MAX,
    plain_records,
)
from icecore_node.serving.fetch.producer_states import ProducerStates
from icecore_node.serving.fetch.remote_fetch import RemoteFetch
from icecore_node.serving.query.log_search import LogSearch
from icecore_node.serving.query.pieces import view_of
from icecore_node.serving.remote_segments import RemoteSegments

MAX_WAIT_MS = 30_000
SILENT_WAIT_MS = 5_000
"""Longest wait while no coordinator hears of this node: another node may lead by now."""
_AGAIN_MS, _AGAIN_MS_MAX = 5.0, 100.0
"""First and longest pause, in milliseconds, between two reads for a fetch that waits for more
bytes."""


class FetchHandler:
    """Handlers of ``DataService/Fetch`` and ``ListOffsets``.

    Args:
        context: Context of the node.
        table: Replicas on this node.
        readers: Wakes waiting fetches.
        reading: Reads replicas from disk.
        heavy_work: Inflates batches for readers.
        remote: Segments in object storage.
        silent_ms: Returns the milliseconds since the topics known here were the newest; 0 while the
            lease is valid.
    """

    def __init__(
        self,
        context: NodeContext,
        table: ReplicaTable,
        readers: Readers,
        reading: ReplicaReading,
        heavy_work: HeavyWork,
        remote: RemoteSegments,
        *,
        silent_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._silent_ms = silent_ms
        self._context = context
        self._table = table
        self._readers = readers
        self._reading = reading
        self._heavy_work = heavy_work
        self._locator = Locator(table, remote)
        self._remote = RemoteFetch(remote)

    async def fetch(self, body: Received, call: CallContext) -> Body:
        """``FetchRequest`` to ``FetchResponse``, both as bytes."""
        context, metrics = self._context, self._context.metrics
        started_ms = context.clock.monotonic_ms()
        request = framing.parse(data_pb2.FetchRequest, body).header
        context.identity.check_cluster(request.cluster_id)
        deadline_ms = started_ms + min(request.max_wait_ms, MAX_WAIT_MS)
        waiting = _Waiting(self._readers)
        enough = min(max(1, request.min_bytes), self._room(request))
        looked_again_ms = 0.0
        try:
            while True:
                waiting.woken.clear()
                header, buffers, length = await self._read_all(request, waiting, call)
                settled = (
                    length >= enough
                    or any(
                        each.HasField("error") or each.records or _at_sealed_end(each)
                        for each in header.partitions
                    )
                    or waiting.is_over
                )
                header.age_ms = self._silent_ms()
                if header.age_ms:
                    deadline_ms = min(deadline_ms, started_ms + SILENT_WAIT_MS)
                left_ms = deadline_ms - context.clock.monotonic_ms()
                if settled or left_ms <= 0:
                    break
                call.slot.park()
                is_woken = await waiting.wait(left_ms)
                if is_woken and length:  # what is there would be read again with every record
                    looked_again_ms = min(2 * looked_again_ms + _AGAIN_MS, _AGAIN_MS_MAX)
                    await asyncio.sleep(min(looked_again_ms, left_ms) / 1000)
                await call.slot.resume()
                if not is_woken:
                    break
        finally:
            waiting.close()
        metrics.fetch_requests.inc()
        metrics.fetch_bytes.inc(length)
        metrics.fetch_latency_seconds.observe((context.clock.monotonic_ms() - started_ms) / 1000)
        return framing.frame_bulk(header.SerializeToString(), buffers)

    def _room(self, request: data_pb2.FetchHeader) -> int:
        """Bytes of an answer; one batch or record may be more."""
        limit = int(self._context.settings.fetch_bytes_max)
        if request.as_records:
            limit = min(limit, ANSWER_BYTES_MAX)
        return min(request.max_bytes or ANSWER_BYTES_MAX, limit)

    async def _read_all(
        self, request: data_pb2.FetchHeader, waiting: "_Waiting", call: CallContext
    ) -> tuple[data_pb2.FetchResponseHeader, list[Buffer], int]:
        """Read all partitions once, in the order and within the limits of the request."""
        room = self._room(request)
        header = data_pb2.FetchResponseHeader()
        buffers: list[Buffer] = []
        length = records = 0
        budget, turns = FilterBudget(self._context.clock), Turns(call.slot)
        for number, entry in enumerate(request.partitions):
            await turns.give()
            result = header.partitions.add(next_offset=waiting.offsets.get(number, entry.offset))
            if length >= room or records >= ANSWER_RECORDS_MAX:
                continue
            try:
                allowed = min(room - length, entry.max_bytes or room)
                if entry.HasField("filter"):
                    left = ANSWER_RECORDS_MAX - records if request.as_records else 0
                    found = await self._filter(entry, result, (allowed, left), waiting, budget)
                    if isinstance(found, Nowhere):
                        self._refuse(result, found.reason)
                        continue
                    waiting.offsets[number] = result.next_offset
                    records += found.count
                    data, data_length = found.buffers, found.length_bytes
                else:
                    as_row_groups = request.takes_row_groups and not request.as_records
                    read = await self._read(
                        entry, result, allowed, waiting, as_row_groups=as_row_groups
                    )
                    if isinstance(read, Nowhere):
                        self._refuse(result, read.reason)
                        continue
                    data, data_length = read
                if request.as_records and data:
                    left = ANSWER_RECORDS_MAX - records
                    data_length = await self._add_records(entry, result, data, (allowed, left))
                    records += len(result.records)
            except IcecoreError as error:
                self._refuse(result, error)
                continue
            length += data_length
            if not request.as_records:
                result.batches_length = data_length
                buffers.extend(data)
        return header, buffers, length

    def _refuse(self, result: data_pb2.FetchPartitionResult, error: IcecoreError) -> None:
        """Tell a client why a partition is not answered."""
        result.error.CopyFrom(convert.error_to_proto(error))
        self._context.metrics.fetch_errors.labels(error.reason).inc()

    async def _add_records(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        data: list[Buffer],
        room: tuple[int, int],
    ) -> int:
        """Add what was read to the result as plain records. Return their size in bytes.

        Raises:
            CorruptBatchError: The batch at the asked offset can't be decoded.
        """
        clear = await self._heavy_work.run(
            UNCOMPRESSED_BYTES_CAP, plain_records, data, entry.offset, *room
        )
        if clear.next_offset != result.next_offset:
            result.next_offset = clear.next_offset
            del result.successor_node_ids[:]
        if clear.error is not None:
            raise clear.error
        result.MergeFromString(clear.encoded)
        return clear.size_bytes

    async def _read(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        max_bytes: int,
        waiting: "_Waiting",
        *,
        as_row_groups: bool,
    ) -> tuple[list[Buffer], int] | Nowhere:
        location: Location = await self._locator.locate(entry, result, waiting.watch)
        if isinstance(location, Local):
            found = await self._read_local(entry, result, max_bytes, location)
            if not isinstance(found, Nowhere):
                return found
            location = await self._locator.elsewhere(entry, result, found)
        if isinstance(location, Nowhere):
            return location
        return await self._remote.read(
            location.segment, result, max_bytes, as_row_groups=as_row_groups
        )

    async def _read_local(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        max_bytes: int,
        location: Local,
    ) -> tuple[list[Buffer], int] | Nowhere:
        """Read a replica; nowhere when it is damaged, as we then have just seen."""
        context, replica = self._context, location.replica
        end = replica.high_watermark
        if entry.offset >= end:
            return [], 0
        data, length, next_offset = context.cache.read(
            replica.segment_id, entry.offset, max_bytes, end
        )
        if not data:
            context.metrics.disk_reads.inc()
            try:
                body, next_offset = await self._reading.read(replica, entry.offset, max_bytes, end)
            except NotReplicaError as error:
                return Nowhere(error.again())  # without its frames, of which this is one
            data, length = [body], len(body)
        assert entry.offset < next_offset <= end, "a reader is given what is not visible"
        _move(result, next_offset, replica, location.held)
        return data, length

    async def _filter(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        room: tuple[int, int],
        waiting: "_Waiting",
        budget: FilterBudget,
    ) -> Filtered | Nowhere:
        """Find the matching records. They come as plain records in the result when the request
        wants those, else as batches."""
        selection = selection_from_proto(entry.filter)
        location = await self._locator.locate(entry, result, waiting.watch)
        if isinstance(location, Nowhere):
            return location
        if isinstance(location, Remote):
            found = await self._remote.filter(location.segment, result, selection, room, budget)
        else:
            replica = location.replica
            asked = result.next_offset, replica.high_watermark
            if asked[0] >= asked[1]:
                return Filtered(asked[0])
            search = LogSearch(view_of(self._context.store, replica), selection, asked)

            def step(make_sink: Callable[[], FilterSink]) -> Awaitable[FilterSink]:
                return self._reading.inflate(self._heavy_work, replica, search.step, make_sink)

            found = await read_filtered(search, step, room, budget)
            assert asked[0] <= found.next_offset <= asked[1], "a reader is given what is hidden"
            _move(result, found.next_offset, replica, location.held)
        if found.error is not None:
            raise found.error
        result.MergeFromString(found.encoded)
        waiting.is_over = waiting.is_over or found.length_bytes > 0 or budget.is_spent
        return found

    async def list_offsets(self, body: Received, call: CallContext) -> bytes:
        """``ListOffsetsRequest`` to ``ListOffsetsResponse``, both as bytes."""
        request = framing.parse(data_pb2.ListOffsetsRequest, body)
        self._context.identity.check_cluster(request.cluster_id)
        answer, turns = data_pb2.ListOffsetsResponse(), Turns(call.slot)
        states = ProducerStates()
        for entry in request.partitions:
            await turns.give()
            result = answer.partitions.add(append_timestamp_ms=-1)
            try:
                await self._list_offset(entry, result, states)
            except IcecoreError as error:
                result.error.CopyFrom(convert.error_to_proto(error))
        return answer.SerializeToString()

    async def _list_offset(
        self,
        entry: data_pb2.ListOffsetsPartition,
        result: data_pb2.ListOffsetsResult,
        states: ProducerStates,
    ) -> None:
        if entry.WhichOneof("target") == "timestamp_ms" and (
            await self._remote.find_time(entry, result)
        ):
            return
        held = self._table.partition(entry.topic_id, entry.topic, entry.partition)
        target = entry.WhichOneof("target")
        if target == "earliest":
            result.offset = held.log_start_offset
        elif target == "latest":
            leading = _leading(held, entry.partition)
            result.offset, result.segment_id = leading.high_watermark, leading.segment_id
        elif target == "timestamp_ms":
            await self._find_time(held, entry, result)
        elif target == "producers":
            states.take()
            leading = _leading(held, entry.partition)
            result.segment_id = leading.segment_id
            states.add(leading.log.producers, entry.producers, result)
        else:
            raise InvalidRequestError("ask for earliest, latest, a timestamp or producers")

    async def _find_time(
        self,
        held: PartitionReplicas,
        entry: data_pb2.ListOffsetsPartition,
        result: data_pb2.ListOffsetsResult,
    ) -> None:
        context = self._context
        end = max(held.log_start_offset, 0 if entry.segment_id else held.high_watermark)
        segment_id = SegmentId(entry.segment_id)
        for replica in held.only(segment_id) if segment_id else held.since(entry.timestamp_ms):
            if not replica.life.is_intact:
                continue
            if replica.sealed and replica.high_watermark <= held.log_start_offset:
                continue  # nobody may read it any more
            end = max(end, replica.high_watermark)
            started_ms = context.clock.monotonic_ms()
            found = await self._reading.offset_for_time(
                replica, entry.timestamp_ms, replica.high_watermark
            )
            elapsed_ms = context.clock.monotonic_ms() - started_ms
            context.metrics.index_lookup_seconds.observe(elapsed_ms / 1000)
            if found is not None:
                offset, result.append_timestamp_ms = found
                result.offset = max(offset, held.log_start_offset)
                result.segment_id, result.found = replica.segment_id, True
                return
        if not segment_id:
            _leading(held, entry.partition)
        result.offset = end


class _Waiting:
    """Wakes one fetch when any of its partitions moves."""

    def __init__(self, readers: Readers) -> None:
        self.woken = asyncio.Event()
        self.offsets: dict[int, int] = {}
        """Next offset to look at, by number of a partition with a filter; all before it was looked
        at."""
        self.is_over = False
        """True when a record matched, or the budget is spent and the client must learn how far the
        look went."""
        self._readers = readers
        self._watched: set[PartitionKey] = set()

    def watch(self, key: PartitionKey) -> None:
        """Watch one more partition."""
        if key not in self._watched:
            self._watched.add(key)
            self._readers.watch(key, self, self.woken.set)

    async def wait(self, timeout_ms: float) -> bool:
        """Wait until woken. Return False when the time is over."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.woken.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Watch no longer."""
        for key in self._watched:
            self._readers.leave(key, self)


def _leading(held: PartitionReplicas, partition: int) -> Replica:
    """Return the replica that knows where the partition ends: others, and a leader that started
    anew, may know fewer acknowledged records.

    Raises NotLeaderError.
    """
    for replica in reversed(held.replicas):
        if replica.life is Life.LED:
            return replica
    raise NotLeaderError(f"this node does not lead partition {partition}: ask its leader")


def _move(
    result: data_pb2.FetchPartitionResult,
    next_offset: int,
    replica: Replica,
    held: PartitionReplicas,
) -> None:
    result.next_offset = next_offset
    if replica.sealed and next_offset == replica.sealed_end_offset:
        result.successor_node_ids.extend(held.tail_replicas)


def _at_sealed_end(result: data_pb2.FetchPartitionResult) -> bool:
    return result.segment_sealed and result.next_offset >= result.sealed_end_offset
