"""One attempt to upload a segment: its objects under keys of their own, read back and proved.

Batches are read from the replica in runs, encoded on a reader thread, and sent piece by piece, so
memory does not grow with the segment. What is encoded must hash to the full digest that replicas
have agreed on: else the last piece is never sent. Then everything is read back as it is stored,
and only after that there is a manifest. An attempt that fails leaves its objects where they are:
they are swept, and nobody overwrites them.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar, TypeVarTuple

from icecore.errors import SHORTAGES, InvalidRequestError, StorageError, UnavailableError
from icecore.model import PARQUET_FORMAT
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore.tier_records import ROWS
from icecore_node.context import NodeContext
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.storage.engine import LogReader
from icecore_node.tiering.manifest import (
    INDEX,
    MANIFEST_BYTES_MAX,
    SIDE,
    Manifest,
    SegmentFacts,
    StoredObject,
    TieredDamageError,
)
from icecore_node.tiering.object_store import ObjectExistsError, ObjectStore, read_whole
from icecore_node.tiering.parquet_object import EncodedObject, ParquetEncoder, raw_batches
from icecore_node.tiering.tiered_segment import open_tiered
from icecore_replication.digest import FullDigest

_log = logging.getLogger(__name__)

RUN_BYTES: Final = 1 << 20
STEP_BYTES: Final = 32 << 20
"""What one step of encoding or decoding may hold."""
PART_BYTES: Final = 4 << 20
"""Of the index file, read at a time."""
INDEX_LOOKS: Final = 40
INDEX_LOOK_S: Final = 0.5
"""A sealed segment gets its index file in the background, usually within seconds. One that has none
after all these looks is copied without: whoever searches the copy reads all of it."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SourceDamagedError(StorageError):
    """What lies on this disk is not what was sealed, or not what replicas have agreed on."""


class Throttle:
    """So many bytes per second, of all uploads of a node together. Loop only."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_s > 0

    async def spend(self, length_bytes: int) -> None:
        """Wait until these were allowed; what was left unused before is not made up for."""
        if not self.is_on or not length_bytes:
            return
        now_ms = self._clock.monotonic_ms()
        self._free_ms = max(self._free_ms, now_ms) + 1000 * length_bytes / self._bytes_per_s
        await asyncio.sleep((self._free_ms - now_ms) / 1000)


class SealedRuns:
    """The batches of a sealed replica in runs, each proved by its CRCs, all together by their
    digest. Blocking."""

    def __init__(self, reader: LogReader, facts: SegmentFacts) -> None:
        self._reader = reader
        self._facts = facts
        self._read_bytes = 0

    def taken_bytes(self) -> int:
        """Read since this was asked before."""
        taken, self._read_bytes = self._read_bytes, 0
        return taken

    def __iter__(self) -> Iterator[bytes]:
        """Raises SourceDamagedError behind the last run, or earlier."""
        facts, digest = self._facts, FullDigest()
        offset = facts.base_offset
        while offset < facts.end_offset:
            run, after = self._read(offset)
            if not run:
                raise SourceDamagedError(f"segment {facts.segment_id} has nothing at {offset}")
            digest.update(run)
            self._read_bytes += len(run)
            yield run
            offset = after
        if digest.digest() != facts.full_digest:
            raise SourceDamagedError(
                f"segment {facts.segment_id} has another full digest here than was agreed"
            )

    def _read(self, offset: int) -> tuple[bytes, int]:
        facts = self._facts
        try:
            return self._reader.read(facts.segment_id, offset, RUN_BYTES, facts.end_offset)
        except SHORTAGES:
            raise
        except StorageError as error:
            raise SourceDamagedError(error.message) from error


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A copy that is stored and proved."""

    manifest: Manifest
    manifest_sha256: bytes
    length_bytes: int
    """Of all its objects."""


class UploadAttempt:
    """One of them. Loop only.

    Args:
        context: The node.
        store: Where to.
        work: A queue of heavy work of its own.
        throttle: Of all uploads.
        check: Raises what ends it: whoever ordered it does not count any more.
    """

    def __init__(
        self,
        context: NodeContext,
        store: ObjectStore,
        work: HeavyWork,
        throttle: Throttle,
        check: Callable[[], None],
    ) -> None:
        self._context = context
        self._store = store
        self._work = work
        self._throttle = throttle
        self._check = check

    async def run(self, facts: SegmentFacts, attempt: int, format_: str) -> Uploaded:
        """Put and prove it.

        Raises:
            SourceDamagedError: This replica is not to be copied.
            TieredDamageError: What is stored is not what was put.
            ObjectExistsError: The attempt was made before: another number is needed.
        """
        runs = SealedRuns(self._context.store.reader, facts)
        encoder = ParquetEncoder(facts, as_rows=format_ == PARQUET_FORMAT)
        rows = encoder.pieces(runs)
        await self._store.put_stream(facts.key(attempt, ROWS), self._pieces(rows, runs))
        made = encoder.encoded()
        manifest = Manifest(
            facts=facts,
            attempt=attempt,
            content_digest=made.content_digest,
            records=made.records,
            parquet=made.stored(facts.key(attempt, ROWS)),
            footer_start=made.footer_start,
            footer_sha256=made.footer_sha256,
            row_groups=made.row_groups,
            index=await self._put_index(facts, facts.key(attempt, INDEX)),
            side=await self._put_side(facts, facts.key(attempt, SIDE), made),
            raw_batches=made.raw_batches,
        )
        data = manifest.encode()
        if len(data) > MANIFEST_BYTES_MAX:
            raise InvalidRequestError(f"{manifest.key} would have {len(data)} bytes: too many")
        await self._prove(manifest)
        await self._put_manifest(manifest.key, data)
        objects = [each for each in (manifest.parquet, manifest.index, manifest.side) if each]
        length_bytes = len(data) + sum(each.size_bytes for each in objects)
        return Uploaded(manifest, hashlib.sha256(data).digest(), length_bytes)

    async def _pieces(self, pieces: Iterator[bytes], runs: SealedRuns) -> AsyncIterator[bytes]:
        """On the way: one step on a reader thread after the other, no faster than is allowed."""
        metrics = self._context.metrics
        while True:
            self._check()
            piece = await self._work.run(STEP_BYTES, next, pieces, None)
            read_bytes = runs.taken_bytes()
            metrics.tier_read_bytes.inc(read_bytes)
            await self._throttle.spend(read_bytes)
            if piece is None:
                return
            if piece:
                yield piece

    async def _put_side(
        self, facts: SegmentFacts, key: str, made: EncodedObject
    ) -> StoredObject | None:
        """Batches without rows, read once more."""
        if not made.raw_batches:
            return None
        runs = SealedRuns(self._context.store.reader, facts)
        pieces = raw_batches(runs, made.raw_batches)
        return await self._put(key, self._pieces(pieces, runs))

    async def _put_index(self, facts: SegmentFacts, key: str) -> StoredObject | None:
        """The index file as it lies beside the segment."""
        index, run = self._context.store.index, self._context.executor.run
        for _ in range(INDEX_LOOKS):
            # What is damaged is dropped by that, and made again.
            length = await run(index.verify, facts.segment_id)
            if length:
                return await self._put(key, self._index_pieces(facts, length))
            self._check()
            await asyncio.sleep(INDEX_LOOK_S)
        event(_log, logging.WARNING, "uploaded_without_index", segment_id=facts.segment_id)
        return None

    async def _index_pieces(self, facts: SegmentFacts, length: int) -> AsyncIterator[bytes]:
        index, run = self._context.store.index, self._context.executor.run
        for at in range(0, length, PART_BYTES):
            self._check()
            wanted = min(PART_BYTES, length - at)
            part = await run(index.sealed_part, facts.segment_id, wanted, at)
            if len(part) != wanted:
                raise UnavailableError(
                    f"the index of segment {facts.segment_id} went away while it was copied"
                )
            await self._throttle.spend(wanted)
            yield part

    async def _put(self, key: str, pieces: AsyncIterator[bytes]) -> StoredObject:
        whole = hashlib.sha256()

        async def hashed() -> AsyncIterator[bytes]:
            async for piece in pieces:
                whole.update(piece)
                yield piece

        size_bytes = await self._store.put_stream(key, hashed())
        return StoredObject(key=key, size_bytes=size_bytes, sha256=whole.digest())

    async def _prove(self, manifest: Manifest) -> None:
        """Everything as it is stored, and no byte from memory."""
        steps = _Steps(self._work, self._throttle, self._context.clock, self._check)
        await open_tiered(self._store, manifest, steps).verify()
        index = manifest.index
        if index is None:
            return
        found = hashlib.sha256()
        for at in range(0, index.size_bytes, PART_BYTES):
            span = (at, min(at + PART_BYTES, index.size_bytes))
            [part] = await self._store.get_ranges(index.key, [span])
            await steps.run(found.update, part)
        size_bytes = (await self._store.head(index.key)).size_bytes
        if (size_bytes, found.digest()) != (index.size_bytes, index.sha256):
            raise TieredDamageError(f"{index.key} is not what was put")

    async def _put_manifest(self, key: str, data: bytes) -> None:
        self._check()
        # If it exists, a request of ours put it whose answer was lost; else that is found now.
        with contextlib.suppress(ObjectExistsError):
            await self._store.put_if_absent(key, data)
        if await read_whole(self._store, key, MANIFEST_BYTES_MAX) != data:
            raise TieredDamageError(f"{key} is not what was put")


class _Steps:
    """A ``Runner`` for the proof: it works at most half of the time where uploads have a limit."""

    def __init__(
        self, work: HeavyWork, throttle: Throttle, clock: Clock, check: Callable[[], None]
    ) -> None:
        self._work = work
        self._throttle = throttle
        self._clock = clock
        self._check = check

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """See ``Runner.run``."""
        self._check()
        began_ms = self._clock.monotonic_ms()
        found = await self._work.run(STEP_BYTES, function, *args)
        if self._throttle.is_on:
            await asyncio.sleep((self._clock.monotonic_ms() - began_ms) / 1000)
        return found
