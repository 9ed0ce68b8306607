"""One attempt to upload a segment: its objects under keys of their own, read back and proved.

Batches are read from the replica in runs, encoded on a reader thread, and sent piece by piece, so
memory does not grow with the segment. What is encoded must hash to the full digest that replicas
have agreed on: else the last piece is never sent. Then everything is read back as it is stored, and
only after that there is a manifest. An attempt that fails leaves its objects where they are: they
are swept, and never overwritten.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

from icecore.errors import SHORTAGES, StorageError, UnavailableError
from icecore.process.log import event
from icecore.tier_records import ROWS
from icecore.topic_settings import PARQUET_FORMAT
from icecore_node.context import NodeContext
from icecore_node.remote.format.manifest import INDEX, SIDE, Manifest, SegmentFacts, StoredObject
from icecore_node.remote.format.parquet_object import EncodedObject, ParquetEncoder, raw_batches
from icecore_node.remote.write.copy_writer import PART_BYTES, CopyWriter, WrittenCopy
from icecore_node.storage.engine import LogReader
from icecore_replication.digest import FullDigest

_log = logging.getLogger(__name__)

RUN_BYTES: Final = 1 << 20


class SourceDamagedError(StorageError):
    """The replica on this disk is not what was sealed, or not what replicas have agreed on."""


class SealedRuns:
    """The batches of a sealed replica in runs, each proved by its CRCs, all together by their
    digest. Blocking."""

    def __init__(self, reader: LogReader, facts: SegmentFacts) -> None:
        self._reader = reader
        self._facts = facts
        self._read_bytes = 0

    def taken_bytes(self) -> int:
        """Return the bytes read since the last call."""
        taken, self._read_bytes = self._read_bytes, 0
        return taken

    def __iter__(self) -> Iterator[bytes]:
        """Yield the runs. Raises SourceDamagedError after the last one, or earlier."""
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


class UploadAttempt:
    """One attempt to upload a segment. Loop only.

    Args:
        context: The node.
        writer: Puts what is made.
        indexed_headers: Names of those that the segment's settings index.
    """

    def __init__(
        self, context: NodeContext, writer: CopyWriter, indexed_headers: Collection[str]
    ) -> None:
        self._context = context
        self._writer = writer
        self._indexed_headers = indexed_headers

    async def run(self, facts: SegmentFacts, attempt: int, format_: str) -> WrittenCopy:
        """Put the segment and prove it.

        Raises:
            SourceDamagedError: This replica is not to be copied.
            TieredDamageError: What is stored is not what was put.
            ObjectExistsError: The attempt was made before: another number is needed.
        """
        runs = SealedRuns(self._context.store.reader, facts)
        encoder = ParquetEncoder(facts, as_rows=format_ == PARQUET_FORMAT)
        rows = encoder.pieces(runs)
        await self._writer.store.put_stream(facts.key(attempt, ROWS), self._pieces(rows, runs))
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
            indexed_headers=(*self._indexed_headers,),
        )
        return await self._writer.finish(manifest)

    async def _pieces(self, pieces: Iterator[bytes], runs: SealedRuns) -> AsyncIterator[bytes]:
        """Yield the pieces: one step on a reader thread after the other, no faster than allowed."""
        metrics = self._context.metrics
        while True:
            piece = await self._writer.step(next, pieces, None)
            read_bytes = runs.taken_bytes()
            metrics.tier_read_bytes.inc(read_bytes)
            await self._writer.throttle.spend(read_bytes)
            if piece is None:
                return
            if piece:
                yield piece

    async def _put_side(
        self, facts: SegmentFacts, key: str, made: EncodedObject
    ) -> StoredObject | None:
        """Put the batches without rows as the side object; the replica is read once more."""
        if not made.raw_batches:
            return None
        runs = SealedRuns(self._context.store.reader, facts)
        pieces = raw_batches(runs, made.raw_batches)
        return await self._writer.put(key, self._pieces(pieces, runs))

    async def _put_index(self, facts: SegmentFacts, key: str) -> StoredObject | None:
        """Put the segment's index file as it is.

        A sealed segment gets one in the background, usually within seconds. If there is still none
        after the wait, the segment is copied without it, and searches read all of the copy.
        """
        timing = self._context.settings.timing
        looks = max(1, timing.upload_index_wait_ms // timing.index_look_ms)
        index, run = self._context.store.index, self._context.executor.run
        for _ in range(looks):
            # What is damaged is dropped by that, and made again.
            length = await run(index.verify, facts.segment_id)
            if length:
                return await self._writer.put(key, self._index_pieces(facts, length))
            self._writer.check()
            await asyncio.sleep(timing.index_look_ms / 1000)
        event(_log, logging.WARNING, "uploaded_without_index", segment_id=facts.segment_id)
        return None

    async def _index_pieces(self, facts: SegmentFacts, length: int) -> AsyncIterator[bytes]:
        index, run = self._context.store.index, self._context.executor.run
        for at in range(0, length, PART_BYTES):
            self._writer.check()
            wanted = min(PART_BYTES, length - at)
            part = await run(index.sealed_part, facts.segment_id, wanted, at)
            if len(part) != wanted:
                raise UnavailableError(
                    f"the index of segment {facts.segment_id} went away while it was copied"
                )
            await self._writer.throttle.spend(wanted)
            yield part
