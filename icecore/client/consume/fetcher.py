"""Fetches ahead for a consumer: one long poll per node over its partitions, wherever they live.

A partition is read from the leader of its tail. Where that node lacks an older segment, or does
not answer, another one is looked for (``whereabouts.py``); at a sealed segment's end the answer
names who has the next. Reads never go back in time: a replica that knows a lower high watermark
than we have seen must catch up first.

All partitions are looked at together, once in a turn of the loop, and only when something changed
that lets one of them be fetched: who looked at a thousand of them per batch did little else. Those
that lie behind and those at the end are asked for apart (``fetch_slots.py``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

from icecore.client.cluster.connection import Connection, moved
from icecore.client.cluster.metadata import Metadata, topic_recreated
from icecore.client.consume.fetch_slots import READ, FetchSlot, FetchSlots
from icecore.client.consume.reader import Chunk, Reader
from icecore.client.consume.waiting_polls import Asked, WaitingPolls
from icecore.client.consume.whereabouts import SUSPICIOUS, Whereabouts, tell_moved
from icecore.codec.batch import LeaderFlag, iter_batches, verify_producer_crc
from icecore.codec.columns import has_pyarrow
from icecore.codec.runs import RUN_BATCHES_MAX, RUN_BYTES_MAX, may_follow, size_of
from icecore.codec.selection import Selection
from icecore.errors import (
    CorruptBatchError,
    IcecoreError,
    InternalError,
    NotLeaderError,
    NotReplicaError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnknownTopicError,
)
from icecore.rpc import convert, framing
from icecore.rpc.filters import selection_to_proto
from icecore.rpc.methods import DATA
from icecore.topic_settings import BATCH_BYTES_CAP
from icecore.v1 import data_pb2

_log = logging.getLogger(__name__)

OutOfRangePolicy: TypeAlias = Literal["error", "earliest", "latest"]

_ANSWER_BYTES_MAX = 4 << 20
"""Maximum size of one answer: the next one is under way while this one is delivered."""
_ROOM_BYTES = 1 << 20
"""Smallest ``fetch_bytes`` with which the consumer asks for row groups; below, it gets batches."""
_ANSWER_GRACE_S = 5.0
_SUSPICIOUS_ATTEMPTS_MAX = 8


class Fetcher:
    """Fills ``chunks`` from all readers, within bounds.

    Args:
        connection: The way to the cluster.
        metadata: Who leads what.
        selection: Which of its records nodes are to send.
        fetch_bytes: Per partition, of one answer and of what was fetched and not delivered.
        buffer_bytes: Of all that was fetched and not delivered.
        max_wait_ms: How long a node waits for data, at most.
        on_out_of_range: What to do when an offset is not in the log (any more).
        is_endless: There may be topics and partitions that no reader is for yet.
    """

    def __init__(
        self,
        connection: Connection,
        metadata: Metadata,
        selection: Selection,
        *,
        fetch_bytes: int,
        buffer_bytes: int,
        max_wait_ms: int,
        on_out_of_range: OutOfRangePolicy,
        is_endless: bool,
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._filter = None if selection.is_empty else selection_to_proto(selection)
        self._fetch_bytes = fetch_bytes
        has_room = fetch_bytes >= _ROOM_BYTES and buffer_bytes >= 2 * BATCH_BYTES_CAP
        self._takes_row_groups = has_room and self._filter is None and has_pyarrow()
        self._buffer_bytes = buffer_bytes
        self._on_out_of_range = on_out_of_range
        self._buffered_bytes = 0
        self._slots = FetchSlots(max_wait_ms)
        self._looking: asyncio.Handle | None = None
        self.is_turn_due = False
        """A look or a request waits for the loop."""
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered: the same run each time
        self._waiting = WaitingPolls()
        self._whereabouts = Whereabouts(connection, metadata)
        self.is_closed = False
        self._is_endless = is_endless
        self._recreated: dict[str, TopicRecreatedError] = {}
        self.topic_ids: dict[str, bytes] = {}
        """Ids of the topics being read, by name: a topic made again under the name has another
        id."""
        self._started = 0
        """Fetches so far."""
        self.readers: dict[tuple[str, int], Reader] = {}
        """Readers by topic and partition."""
        self.chunks: deque[Chunk] = deque()
        self.news = asyncio.Event()
        """Set when there is a chunk, a failure, or an end."""

    def begin(self, topic: str, topic_id: bytes, readers: list[Reader]) -> None:
        """Read this topic, too, from now on. Requests for another one of its name are void; batches
        that were fetched of that stay."""
        self.leave(topic)
        self.topic_ids[topic] = topic_id
        self.add(readers)

    def add(self, readers: list[Reader]) -> None:
        """Read more partitions of topics that are read."""
        added = {(reader.topic, reader.partition): reader for reader in readers}
        self.readers = self.readers | added  # a thread may be going over the old ones
        self.look()

    def leave(self, topic: str) -> None:
        """Fetch no more of a topic. What was fetched stays."""
        self._recreated.pop(topic, None)
        self.topic_ids.pop(topic, None)
        left = {key: reader for key, reader in self.readers.items() if key[0] == topic}
        for reader in left.values():
            reader.is_left = True
        self.readers = {key: each for key, each in self.readers.items() if key not in left}

    async def close(self) -> None:
        """Stop all fetches."""
        self.is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        self.news.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def failure(self) -> IcecoreError | None:
        """Return why some reader cannot go on, None while all can."""
        return None if (failed := self.failed) is None else failed[1]

    @property
    def failed(self) -> tuple[str, IcecoreError] | None:
        """The topic that can't be read on, and why; None while all can."""
        for topic, recreated in self._recreated.items():
            return topic, recreated
        for reader in self.readers.values():
            if reader.failure is not None:
                return reader.topic, reader.failure
        return None

    @property
    def is_exhausted(self) -> bool:
        """Everything fetched is delivered, and every reader has reached its end."""
        return self.is_closed or (
            not (self.chunks or self._is_endless)
            and all(reader.is_at_end for reader in self.readers.values())
        )

    def take(self) -> Chunk | None:
        """The next fetched chunk that no seek has made void; makes room for more."""
        while self.chunks:
            chunk = self.chunks.popleft()
            reader, length = chunk.reader, chunk.header.batch_length
            if chunk.generation == reader.generation:
                self._make_room(length, reader)
                return chunk
            self._make_room(length, None)
        return None

    def _make_room(self, length: int, reader: Reader | None) -> None:
        """So many bytes were taken, of a reader unless they were void."""
        was_full, has_more_room = self._buffered_bytes >= self._buffer_bytes, False
        self._buffered_bytes -= length
        if reader is not None:
            has_more_room = 0 <= reader.buffered_bytes - self._fetch_bytes < length
            reader.buffered_bytes -= length
        if self._buffered_bytes < self._buffer_bytes and (was_full or has_more_room):
            self.look()  # nothing else that is taken lets a partition be fetched that was not

    def run(self, chunk: Chunk) -> list[Chunk]:
        """A chunk that was taken, and the next ones, which stay here, as far as they came with it
        and can be joined to it; it is alone where the loop must have a turn before."""
        run, length = [chunk], size_of(chunk.header)
        if self.is_turn_due or length > RUN_BYTES_MAX:
            return run
        for found in islice(self.chunks, RUN_BATCHES_MAX - 1):
            is_next = found.data is chunk.data and found.generation == chunk.generation
            if not (is_next and may_follow(run[-1].header, found.header)):
                break
            length += size_of(found.header)
            if length > RUN_BYTES_MAX:
                break
            run.append(found)
        return run

    def take_run(self, following: Sequence[Chunk]) -> None:
        """Take the next ones, too, which ``run`` has found: all of them, or the first ones."""
        for _ in following:
            self.chunks.popleft()
        if following:
            length = sum(each.header.batch_length for each in following)
            self._make_room(length, following[0].reader)

    async def give_turn(self) -> None:
        """Let the loop look and send what is due: who takes fetched batches only never waits."""
        if self.is_turn_due:
            self.is_turn_due = False
            await asyncio.sleep(0)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def look(self) -> None:
        """Fetch for all partitions that want data, in the loop's next turn."""
        if self._looking is None and not self.is_closed:
            self._looking = asyncio.get_running_loop().call_soon(self._dispatch)
            self.is_turn_due = True

    def _dispatch(self) -> None:
        """Send fetches to all nodes that have data to ask for and a free slot."""
        self._looking = None
        if self.is_closed:
            return
        self._note_recreated()
        self._waiting.free_moved(self._metadata.view)
        if self._buffered_bytes >= self._buffer_bytes:
            return
        for (node_id, is_behind), readers in self._wanting().items():
            empty_polls = None if is_behind else min(reader.empty_polls for reader in readers)
            slot = self._slots.take(node_id, empty_polls)
            if slot is not None:  # else the end of another one makes us look again
                self.is_turn_due = True
                self._started += 1
                readers.sort(key=lambda reader: reader.served)
                for reader in readers:
                    reader.is_busy = True
                    reader.asked += 1
                self._start(self._fetch(slot, readers))

    def _wanting(self) -> dict[tuple[int, bool], list[Reader]]:
        """Return the readers that need data, by node to ask and whether data are there to be
        read."""
        found: dict[tuple[int, bool], list[Reader]] = {}
        view = self._metadata.view
        reachable = {node_id for node_id in view.nodes if view.address(node_id)}
        for reader in self.readers.values():
            if reader.is_busy or reader.is_at_end or reader.buffered_bytes >= self._fetch_bytes:
                continue
            if reader.topic in self._recreated:
                continue
            node_id = reader.node_id
            if not node_id and (known := view.partition(reader.topic, reader.partition)):
                node_id = known.leader
            if node_id in reachable:
                found.setdefault((node_id, reader.is_behind), []).append(reader)
            else:
                self._failed(reader, NotLeaderError("there is no leader at the moment"))
        return found

    def _note_recreated(self) -> None:
        for topic, topic_id in self.topic_ids.items():
            known = self._metadata.known(topic)
            if topic not in self._recreated and known is not None and known.topic_id != topic_id:
                self._recreated[topic] = topic_recreated(topic, topic_id, known.topic_id)
                self.news.set()

    # --- one fetch ------------------------------------------------------------------------------

    async def _fetch(self, slot: FetchSlot, readers: list[Reader]) -> None:
        asked = Asked(slot, readers)
        self._waiting.add(asked)
        try:
            results, data = await self._call(slot, readers)
        except IcecoreError as error:
            error = moved(error, f"the address of node {slot.node_id}")
            for reader, is_awaited in zip(readers, asked.awaited(), strict=True):
                if is_awaited:
                    self._failed(reader, error, slot.node_id)
        else:
            at = 0
            for reader, is_awaited, result in zip(readers, asked.awaited(), results, strict=True):
                piece = data[at : at + result.batches_length]
                at += result.batches_length
                if is_awaited:
                    reader.is_busy = False
                    if not data:
                        reader.empty_polls += 1
                    self._accept(slot.node_id, reader, result, piece)
        finally:
            self._waiting.remove(asked)
        self._slots.leave(slot)
        self.news.set()
        self.look()

    async def _call(self, slot: FetchSlot, readers: list[Reader]) -> tuple[list[Any], memoryview]:
        node_id, wait_ms = slot.node_id, slot.wait_ms
        address = self._metadata.view.address(node_id)
        if address is None:
            raise NotLeaderError(f"the address of node {node_id} is unknown")
        header = data_pb2.FetchHeader(
            cluster_id=self._metadata.view.cluster_id,
            max_bytes=min(self._buffer_bytes, _ANSWER_BYTES_MAX),
            max_wait_ms=wait_ms,
            takes_row_groups=self._takes_row_groups,
        )
        if self._filter is not None and slot.kind == READ and not any(r.is_stuck for r in readers):
            header.max_wait_ms = 0  # what is there is looked at, and nobody waits for a match
        for reader in readers:
            header.partitions.add(
                topic_id=reader.topic_id,
                partition=reader.partition,
                offset=reader.offset,
                max_bytes=self._fetch_bytes,
                # A sealed segment is complete wherever it is; its node may know of no later one.
                min_high_watermark=0 if reader.segment_id else reader.known_end_offset,
                segment_id=reader.segment_id,
                filter=self._filter,
            )
        body = await self._connection.net.call(
            address,
            DATA["Fetch"],
            data_pb2.FetchRequest(header=header).SerializeToString(),
            timeout_s=wait_ms / 1000 + _ANSWER_GRACE_S,
        )
        raw, data = framing.split_bulk(body, data_pb2.FetchResponse)
        answer = framing.parse(data_pb2.FetchResponseHeader, raw)
        if len(answer.partitions) != len(readers):
            raise InternalError(f"node {node_id} answered {len(answer.partitions)} partitions")
        if answer.age_ms:
            self._start(self._hear_others())
        if answer.throttle_ms:
            await asyncio.sleep(answer.throttle_ms / 1000)
        return list(answer.partitions), data

    def _accept(self, node_id: int, reader: Reader, result: Any, data: memoryview) -> None:
        error = convert.error_from_proto(result.error)
        if error is None:
            try:
                self._store(reader, data)
            except CorruptBatchError as corrupt:
                error = corrupt
        if error is not None:
            self._failed(reader, error, node_id)
            return
        reader.is_stuck = not len(data) and result.next_offset <= reader.offset
        reader.offset = max(reader.offset, result.next_offset)
        reader.high_watermark = max(reader.high_watermark, result.high_watermark)
        reader.is_known = True
        reader.attempts = 0
        if result.segment_sealed and reader.offset >= result.sealed_end_offset:
            is_followed_here = reader.segment_id == 0 or bool(result.successor_node_ids)
            reader.use_leader()
            following = [n for n in result.successor_node_ids if self._metadata.view.is_up(n)]
            if following:
                reader.node_id = following[0]
            elif not is_followed_here and not reader.is_at_end:
                # Who reads object storage holds nothing of the partition: ask where it goes on.
                self._failed(reader, NotReplicaError("the next segment is elsewhere"))
            elif not reader.is_at_end:
                self._failed(reader, NotLeaderError("the next segment is not known here yet"))

    def _store(self, reader: Reader, data: memoryview) -> None:
        """Check batches and keep them; a corrupt one and all after it are left out."""
        for position, header in iter_batches(data):
            verify_producer_crc(data, position, header)
            if header.leader_flags & LeaderFlag.ROW_GROUP and not self._takes_row_groups:
                raise CorruptBatchError("a row group, which was not asked for", position=position)
            if header.end_offset <= reader.offset:
                continue
            self.chunks.append(
                Chunk(reader, reader.generation, data, position, header, reader.offset)
            )
            reader.offset = header.end_offset
            reader.buffered_bytes += header.batch_length
            reader.served = self._started
            reader.is_from_start = False
            reader.empty_polls = 0
            self._buffered_bytes += header.batch_length

    async def _hear_others(self) -> None:
        await self._whereabouts.hear_others()
        self.look()

    # --- failures -------------------------------------------------------------------------------

    def _failed(self, reader: Reader, error: IcecoreError, node_id: int = 0) -> None:
        """Deal with the failure, then fetch again; or end everything when nothing can help."""
        reader.is_busy = True
        reader.attempts += 1
        reader.empty_polls = 0
        if isinstance(error, OffsetOutOfRangeError):
            self._start(self._leave_range(reader, error, reader.generation))
            return
        suspicious = isinstance(error, SUSPICIOUS)
        if node_id and isinstance(error, UnknownTopicError):
            suspicious = False  # it may have lost its disk: whether topics are is the coordinator's
        if not (error.retriable or suspicious) or (
            suspicious and reader.attempts >= _SUSPICIOUS_ATTEMPTS_MAX
        ):
            reader.failure = error
            self.news.set()
            return
        if node_id:
            reader.avoided.add(node_id)
        if reader.attempts == 1:
            reader.failing_ms = self._connection.clock.monotonic_ms()
        self._connection.retries.note(
            error, topic=reader.topic, partition=reader.partition, since_ms=reader.failing_ms
        )
        self._start(self._recover(reader, error, reader.generation))

    async def _leave_range(
        self, reader: Reader, error: OffsetOutOfRangeError, generation: int
    ) -> None:
        """Believe the bounds only when the topic is still the one that we read.

        A log that is being deleted, or one made again under the name, has bounds as well: who took
        these for its own would end with the wrong error, or go on in the other topic.
        """
        failure: IcecoreError | None = None
        try:
            await self._metadata.refresh(is_newer=True)
            failure = self._metadata.error(reader.topic)
        except IcecoreError as caught:
            failure = caught
        known = self._metadata.known(reader.topic)
        is_same = known is not None and known.topic_id == reader.topic_id
        if generation == reader.generation and not reader.is_left:
            if failure is not None:
                self._failed(reader, failure)
            elif is_same:
                self._apply_policy(reader, error)
        self.look()  # which also notices that the topic is another one

    def _apply_policy(self, reader: Reader, error: OffsetOutOfRangeError) -> None:
        """Move to an end of the log, and say so; or give up."""
        policy = "earliest" if reader.is_from_start else self._on_out_of_range
        if policy != "error":
            name = "log_start_offset" if policy == "earliest" else "high_watermark"
            found = error.metadata.get(name, "")
            if found.isdecimal() and int(found) != reader.offset:
                tell_moved(reader, int(found), "out_of_range")
                reader.skip_to(int(found))
                end = error.metadata.get("high_watermark", "")
                if reader.end_offset is not None and end.isdecimal():
                    reader.end_offset = min(reader.end_offset, int(end))
                    self.news.set()  # that may have been the end
                return
        reader.failure = error
        self.news.set()

    async def _recover(self, reader: Reader, error: IcecoreError, generation: int) -> None:
        failure: IcecoreError | None = None
        try:
            await self._whereabouts.find(reader, error)
        except IcecoreError as caught:
            failure = caught
        if generation == reader.generation and not reader.is_left:
            reader.is_busy = False
            if failure is not None:
                self._failed(reader, failure)
            elif reader.is_at_end:  # what was left of it is lost
                self.news.set()
        self.look()
