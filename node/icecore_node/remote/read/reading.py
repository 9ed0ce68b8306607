"""Reads of segments that lie in object storage: fetches, searches and look-ups by time.

A node that has an object store can answer for any published segment. It asks metadata for the copy,
proves the manifest by them and everything else by the manifest, and reads only the row groups that
it needs. Objects that are missing or altered behind our back give no wrong byte: metadata are asked
again, since there may be another copy by now, and if that does not help either the error names the
object. A reader that goes on finds the next row group under way.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple

from icecore.errors import IcecoreError, InvalidRequestError, StorageError
from icecore.model import Segment, SegmentId
from icecore.process.log import event
from icecore.topic_settings import UNCOMPRESSED_BYTES_CAP
from icecore_node.context import NodeContext, Tasks
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import Buffer, Executor, RemotePorts
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    RawBatch,
    RowGroup,
    TieredDamageError,
    facts_of,
    parse_manifest,
)
from icecore_node.remote.format.row_batches import ROW_COLUMNS, RowBatches
from icecore_node.remote.read.admission import Admission
from icecore_node.remote.read.cache import RemoteCache, ValueLease
from icecore_node.remote.read.descriptions import Ask, DescribedCopy, Descriptions
from icecore_node.remote.read.disk_cache import DiskCache
from icecore_node.remote.read.objects import CachedObjects
from icecore_node.remote.read.remote_log import Held, RawPart, RemoteLog, gathered
from icecore_node.remote.read.row_frames import RowFrame, framed_bytes, is_framed, row_frame
from icecore_node.remote.read.tally import note_request
from icecore_node.remote.read.unread import Part, Unread
from icecore_node.remote.store.object_store import (
    ByteRange,
    ObjectMissingError,
    ObjectReader,
    ObjectTooShortError,
)

MANIFEST_MEMORY_PART: Final = 4
"""Factor: a parsed manifest takes this many times the bytes of its JSON."""
AHEAD_PARTS: Final = 3
"""Number of parts (row groups, or batches as they were stored) to read ahead of a scan."""

_log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class RemoteCopy:
    """A published copy, opened."""

    description: DescribedCopy
    manifest: Manifest
    tiered: CopyReader
    objects: CachedObjects
    last_end_offset: int = -1
    """End offset of the part that was read last. A read that begins there looks like a scan."""
    ahead_end_offset: int = -1
    """End offset of the last part read ahead; -1 = none."""

    @property
    def segment(self) -> Segment:
        """Its record."""
        return self.description.segment


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParts:
    """The parts of a ``RemoteReading``."""

    store: ObjectReader
    descriptions: Descriptions
    cache: RemoteCache
    admission: Admission
    executor: Executor
    """Threads of remote reads alone."""
    tasks: Tasks
    metrics: NodeMetrics


_Read: TypeAlias = Callable[[RemoteCopy, Part], Awaitable[object]]
"""Function that reads a part of a copy into the cache."""
_MakePart: TypeAlias = Callable[[], Coroutine[Any, Any, tuple[Held, int]]]


class RemoteReading:
    """Loop only. Everything raises NotReplicaError for a segment that is not in object storage,
    TieredDamageError for one whose objects are not what was published, ThrottledError when too much
    is under way, and what an ``ObjectStore`` raises."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self._heavy_work = HeavyWork(parts.executor)
        self._resting: dict[RemoteLog, None] = {}
        """Logs between two steps; the longest at rest first."""

    @property
    def is_idle_enough(self) -> bool:
        """Return whether reading ahead is allowed: no read waits, and at least half the places are
        free."""
        return self._parts.admission.is_idle_enough

    async def describe(self, segment_id: SegmentId) -> Segment:
        """The record of a published segment."""
        return (await self._parts.descriptions.of(segment_id)).segment

    async def read(
        self,
        segment_id: SegmentId,
        offset: int,
        max_bytes: int,
        *,
        as_row_groups: bool = False,
    ) -> tuple[list[Buffer], int]:
        """Batches from the one that holds ``offset``, one at least and about ``max_bytes``; and the
        offset after them. As row groups where the caller takes them and where they are not too
        large; then the first one comes whatever there is room for."""

        async def work(copy: RemoteCopy) -> tuple[list[Buffer], int]:
            found: list[Buffer] = []
            at, length = offset, 0
            while length < max_bytes and at < copy.manifest.facts.end_offset:
                part = copy.tiered.part_at(at)
                if as_row_groups and is_framed(part):
                    if found and length + framed_bytes(part) > max_bytes:
                        break
                    frame = await self._frame(copy, part)
                    found += frame.buffers
                    self._parts.metrics.remote_row_groups.inc()
                    length, at = length + frame.length_bytes, part.end_offset
                    continue
                held = await self._held(copy, part)
                end = copy.manifest.facts.end_offset
                data, at = await self._run(gathered, held, at, max_bytes - length, end)
                found.append(data)
                length += len(data)
            return found, at

        return await self._tried(segment_id, work)

    async def offset_for_time(
        self, segment_id: SegmentId, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """(base offset, append time) of the first batch from that time on; None without one."""

        async def work(copy: RemoteCopy) -> tuple[int, int] | None:
            manifest = copy.manifest
            parts: list[Part] = [*manifest.row_groups, *manifest.raw_batches]
            late = [each for each in parts if each.max_append_timestamp_ms >= timestamp_ms]
            if not late:
                return None
            held = await self._held(copy, min(late, key=lambda part: part.base_offset))
            for at in range(len(held)):
                if held.appended_ms(at) >= timestamp_ms:
                    return held.edges[at], held.appended_ms(at)
            raise TieredDamageError("append times are not those of the manifest")

        return await self._tried(segment_id, work)

    async def open_log(self, segment_id: SegmentId) -> RemoteLog:
        """Open a published segment for a search; ``step`` runs the steps of that search. Whoever
        has opened it closes it with ``close_log``."""
        return await self._tried(segment_id, self._opened_log)

    def close_log(self, log: RemoteLog) -> None:
        """Let go of all that was read for a search; may be called again."""
        self._resting.pop(log, None)
        log.release()

    async def _opened_log(self, copy: RemoteCopy) -> RemoteLog:
        log = RemoteLog(copy.manifest)
        # The first bytes are needed by every search: with them a step less is made in vain.
        if (span := log.index_start) is not None:
            data = self._parts.cache.lease_here(_index_key(copy, span))
            if data is not None:
                log.take(span, data)
        return log

    async def step(self, log: RemoteLog, step: Callable[[*Ts], T | Unread], *args: *Ts) -> T:
        """Make a step of a search on a thread, and read what it needs until it has all of that."""

        async def work(copy: RemoteCopy) -> T:
            self._resting.pop(log, None)
            if copy.manifest != log.manifest:
                log.reopen(copy.manifest)
            while True:
                done = await self._run(step, *args)
                if not isinstance(done, Unread):
                    await self._drop_refused(copy, log)
                    return done
                await self._bring(copy, log, done.wanted)

        found = await self._tried(log.manifest.facts.segment_id, work)
        self._rest(log)
        return found

    def _rest(self, log: RemoteLog) -> None:
        """A search waits for its next step. It keeps what it holds while there is room: else those
        that wait the longest have it read again."""
        self._resting[log] = None
        while self._parts.cache.is_over and self._resting:
            oldest = next(iter(self._resting))
            del self._resting[oldest]
            oldest.release()

    async def close(self) -> None:
        """End what is under way, and the threads."""
        await self._parts.cache.close()
        self._parts.executor.close()

    # --- one read -------------------------------------------------------------------------------

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._heavy_work.run(UNCOMPRESSED_BYTES_CAP, function, *args)

    async def _tried(self, segment_id: SegmentId, work: Callable[[RemoteCopy], Awaitable[T]]) -> T:
        """Do the work within one place of the admission. On damage, ask the coordinator for a newer
        description and try once more."""
        parts = self._parts
        async with parts.admission.place():
            parts.metrics.remote_reads.inc()
            description = await parts.descriptions.of(segment_id)
            try:
                return await work(await self._open(description))
            except TieredDamageError as error:
                self._damaged(description, error)
            description = await parts.descriptions.of(segment_id, newer_than=description)
            try:
                return await work(await self._open(description))
            except TieredDamageError as error:
                self._damaged(description, error)
                raise TieredDamageError(
                    f"segment {segment_id} can't be read in object storage: {error.message}",
                    segment_id=segment_id,
                ) from error

    def _damaged(self, description: DescribedCopy, error: StorageError) -> None:
        segment_id = description.segment.segment_id
        event(
            _log,
            logging.ERROR,
            "tiered_copy_damaged",
            segment_id=segment_id,
            attempt=description.attempt,
            error=error,
        )
        self._parts.metrics.remote_damage.inc()
        self._parts.cache.forget(lambda key: isinstance(key, tuple) and key[:1] == (segment_id,))

    async def _open(self, description: DescribedCopy) -> RemoteCopy:
        key = (description.segment.segment_id, description.attempt, description.manifest_sha256)
        opened = await self._parts.cache.parsed(
            (*key, "copy"), lambda: self._opened(description), is_pinned=True
        )
        opened.description = description  # the newest: where the log starts moves on
        return opened

    async def _opened(self, description: DescribedCopy) -> tuple[RemoteCopy, int]:
        parts, segment = self._parts, description.segment
        facts = facts_of(segment)
        key = facts.key(description.attempt, ".manifest.json")
        sha256 = description.manifest_sha256

        async def read() -> bytes:
            try:
                data = await parts.store.get_whole(key, MANIFEST_BYTES_MAX)
            except (ObjectMissingError, ObjectTooShortError, InvalidRequestError) as error:
                raise TieredDamageError(error.message, key=key) from error
            note_request(len(data))
            if hashlib.sha256(data).digest() != sha256:  # nothing is kept that is not proved
                raise TieredDamageError(f"{key} is not what was published", key=key)
            return data

        name = f"{key}:{sha256.hex()}"
        data = await parts.cache.raw(name, read, is_pinned=True)
        manifest = await parts.executor.run(parse_manifest, data, sha256)
        _check(manifest, segment)
        objects = CachedObjects(parts.store, parts.cache, manifest, parts.executor)
        tiered = CopyReader(objects, manifest, parts.executor, is_proved=True)
        copy = RemoteCopy(description, manifest, tiered, objects)
        return copy, MANIFEST_MEMORY_PART * len(data)

    async def _held(self, copy: RemoteCopy, part: Part) -> Held:
        """A part, read, as batches that can be made of it."""
        held = await self._part(copy, part)
        self._look_ahead(copy, part, self._part)
        return held

    async def _frame(self, copy: RemoteCopy, group: RowGroup) -> RowFrame:
        """A row group, read, as it lies."""
        frame = await self._framed(copy, group)
        self._look_ahead(copy, group, self._framed_or_part)
        return frame

    def _look_ahead(self, copy: RemoteCopy, part: Part, read: _Read) -> None:
        """Read the next parts ahead when this part continues a scan."""
        is_scan = part.base_offset in (copy.last_end_offset, copy.segment.base_offset)
        if not is_scan and part.end_offset != copy.last_end_offset:
            copy.ahead_end_offset = -1  # somewhere else
        copy.last_end_offset = part.end_offset
        if is_scan:
            self._read_ahead(copy, part.end_offset, read)

    def _read_ahead(self, copy: RemoteCopy, start: int, read: _Read) -> None:
        """Start reads of the next parts from an offset on, except parts that were read ahead
        already."""
        end = copy.manifest.facts.end_offset
        for _ in range(AHEAD_PARTS):
            if start >= end or not self._parts.admission.is_idle_enough:
                return
            part = copy.tiered.part_at(start)
            start = part.end_offset
            if start > copy.ahead_end_offset:
                copy.ahead_end_offset = start
                self._parts.tasks.start(self._ahead(copy, part, read))

    async def _ahead(self, copy: RemoteCopy, part: Part, read: _Read) -> None:
        """Read a part ahead. Errors are only logged: a reader of this part meets them itself."""
        try:
            async with self._parts.admission.place():
                await read(copy, part)
        except IcecoreError as error:
            event(_log, logging.DEBUG, "not_read_ahead", offset=part.base_offset, error=error)

    async def _part(self, copy: RemoteCopy, part: Part) -> Held:
        key, make = self._part_to_make(copy, part)
        return await self._parts.cache.parsed(key, make, is_pinned=False)

    async def _lease_part(self, copy: RemoteCopy, part: Part) -> ValueLease[Held]:
        """A part for a search, as ``_held`` reads it."""
        key, make = self._part_to_make(copy, part)
        lease = await self._parts.cache.leased(key, make, is_pinned=False)
        self._look_ahead(copy, part, self._part)
        return lease

    def _part_to_make(self, copy: RemoteCopy, part: Part) -> tuple[Hashable, _MakePart]:
        """The key of a part in the cache, and how it is made."""
        manifest = copy.manifest

        async def make() -> tuple[Held, int]:
            held = await self._made(copy, part)
            return held, held.size_bytes

        return (manifest.facts.segment_id, manifest.attempt, part.base_offset), make

    async def _framed(self, copy: RemoteCopy, group: RowGroup) -> RowFrame:
        manifest = copy.manifest
        key = (manifest.facts.segment_id, manifest.attempt, group.base_offset, "frame")

        async def make() -> tuple[RowFrame, int]:
            file = await copy.tiered.file_of(group)
            frame = await self._parts.executor.run(row_frame, file, group, manifest.facts)
            return frame, frame.length_bytes

        return await self._parts.cache.parsed(key, make, is_pinned=False)

    async def _framed_or_part(self, copy: RemoteCopy, part: Part) -> object:
        if is_framed(part):
            return await self._framed(copy, part)
        return await self._part(copy, part)

    async def _made(self, copy: RemoteCopy, part: Part) -> Held:
        if isinstance(part, RawBatch):
            return await self._parts.executor.run(RawPart, await copy.tiered.raw(part))
        table = await copy.tiered.rows(part, ROW_COLUMNS)
        headers = copy.segment.settings.indexed_headers
        covered = (part.base_offset, part.end_offset)

        def cut() -> RowBatches:
            return RowBatches(table, copy.manifest.facts, covered, indexed_headers=headers)

        return await self._parts.executor.run(cut)

    async def _drop_refused(self, copy: RemoteCopy, log: RemoteLog) -> None:
        """Drop the cached ranges of the index that do not parse, so that they are read again. They
        may have been altered on their way here."""
        index = copy.manifest.index
        for start, end in log.take_refused():
            assert index is not None, "only read with an index"
            event(_log, logging.WARNING, "remote_index_damaged", key=index.key)
            self._parts.cache.forget_key(_index_key(copy, (start, end)))
            await copy.objects.drop(index.key, start, end)

    async def _bring(self, copy: RemoteCopy, log: RemoteLog, wanted: "Part | ByteRange") -> None:
        if not isinstance(wanted, tuple):
            log.take(wanted, await self._lease_part(copy, wanted))
            return
        index = copy.manifest.index
        assert index is not None, "only asked with an index"

        async def make() -> tuple[bytes, int]:
            [data] = await copy.objects.get_ranges(index.key, [wanted])
            return data, len(data)

        try:
            data = await self._parts.cache.leased(_index_key(copy, wanted), make, is_pinned=True)
        except TieredDamageError as error:
            # Without it the answer is the same, and comes later.
            event(_log, logging.WARNING, "remote_index_damaged", key=index.key, error=error)
            log.refuse_index(error.message)
        else:
            log.take(wanted, data)


def _index_key(copy: RemoteCopy, span: ByteRange) -> tuple[int, int, str, ByteRange]:
    return copy.manifest.facts.segment_id, copy.manifest.attempt, "index", span


def _check(manifest: Manifest, segment: Segment) -> None:
    """Raises TieredDamageError for the manifest of something else."""
    facts, wanted = manifest.facts, facts_of(segment)
    same: tuple[Any, ...] = (facts.topic_id, facts.partition, facts.segment_id, facts.generation)
    if same != (wanted.topic_id, wanted.partition, wanted.segment_id, wanted.generation) or (
        facts.base_offset,
        facts.end_offset,
    ) != (wanted.base_offset, wanted.end_offset):
        raise TieredDamageError(f"the manifest is that of segment {facts.segment_id}")


# --- put together ---------------------------------------------------------------------------------


def make_remote_reading(
    context: NodeContext, store: ObjectReader, ports: RemotePorts, ask: Ask
) -> RemoteReading:
    """Assemble remote reads as the settings say.

    Args:
        context: Context of the node.
        store: The object store to read.
        ports: Ports for remote reads alone.
        ask: Asks the coordinator about a segment.
    """
    settings = context.settings
    disk = (
        DiskCache(ports.files, settings.remote_cache_bytes) if settings.remote_cache_bytes else None
    )
    return RemoteReading(
        RemoteParts(
            store=store,
            descriptions=Descriptions(ask, context.clock, settings.timing),
            cache=RemoteCache(disk, settings.remote_memory_bytes, ports.executor),
            admission=Admission(context.clock),
            executor=ports.executor,
            tasks=context.tasks,
            metrics=context.metrics,
        )
    )
