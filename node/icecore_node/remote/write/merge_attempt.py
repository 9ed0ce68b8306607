"""One attempt to make one tiered segment of several: nothing but the object store is read.

Rows come from the copies that are published, each row group proved by its manifest, and become row
groups of the size that others have. What is stored then has to give the content digest of each
source, computed from what is read back: the coordinator compares them with those it knows.
"""

from collections.abc import AsyncIterator, Collection, Sequence

from icecore.tier_records import ROWS
from icecore.topic_settings import PARQUET_FORMAT
from icecore_node.context import NodeContext
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import (
    INDEX,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    Manifest,
    PublishedCopy,
    SegmentFacts,
    parse_published,
)
from icecore_node.remote.format.merged_segment import MergedEntries, SourceDigests, check_sources
from icecore_node.remote.format.parquet_object import ParquetEncoder
from icecore_node.remote.write.copy_writer import PART_BYTES, CopyWriter, WrittenCopy

MERGED_FORMAT = PARQUET_FORMAT


class MergeAttempt:
    """One attempt to merge segments. Loop only.

    Args:
        context: The node.
        writer: Puts what is made.
        indexed_headers: Names of those that the topic's settings index.
    """

    def __init__(
        self, context: NodeContext, writer: CopyWriter, indexed_headers: Collection[str]
    ) -> None:
        self._context = context
        self._writer = writer
        self._indexed_headers = indexed_headers

    async def run(
        self, facts: SegmentFacts, attempt: int, copies: Sequence[PublishedCopy]
    ) -> WrittenCopy:
        """Put the merged segment and prove it.

        Raises:
            InvalidRequestError: The copies can't become this segment.
            TieredDamageError: A source is not what was published, or what is stored is not what was
                put.
            ObjectExistsError: The attempt was made before: another number is needed.
        """
        store, step = self._writer.store, self._writer.step
        sources = [await self._manifest(each) for each in copies]
        check_sources(facts, sources)
        encoder = ParquetEncoder(facts)
        entries = MergedEntries(facts, self._indexed_headers)
        try:
            key = facts.key(attempt, ROWS)
            await store.put_stream(key, self._rows(encoder, entries, sources))
        finally:
            encoder.close()
        made = encoder.encoded()
        index = await step(entries.file)
        manifest = Manifest(
            facts=facts,
            attempt=attempt,
            content_digest=made.content_digest,
            records=made.records,
            parquet=made.stored(facts.key(attempt, ROWS)),
            footer_start=made.footer_start,
            footer_sha256=made.footer_sha256,
            row_groups=made.row_groups,
            index=await self._writer.put(facts.key(attempt, INDEX), self._parts(index)),
            indexed_headers=(*self._indexed_headers,),
        )
        digests = SourceDigests(sources)
        uploaded = await self._writer.finish(manifest, digests.add)
        return WrittenCopy(
            manifest, uploaded.manifest_sha256, uploaded.length_bytes, tuple(digests.digests())
        )

    async def _manifest(self, copy: PublishedCopy) -> Manifest:
        key = copy.name.key(MANIFEST)
        data = await self._writer.store.get_whole(key, MANIFEST_BYTES_MAX)
        return await self._writer.step(parse_published, data, copy)

    async def _rows(
        self, encoder: ParquetEncoder, entries: MergedEntries, sources: Sequence[Manifest]
    ) -> AsyncIterator[bytes]:
        """Row group by row group of one source after the other."""
        step, metrics = self._writer.step, self._context.metrics
        yield await step(encoder.begin)
        for manifest in sources:
            source = CopyReader(self._writer.store, manifest, self._context.executor)
            for group in manifest.row_groups:
                rows = await source.rows(group)
                await step(entries.add, rows, group)
                if piece := await step(encoder.add_rows, rows, group):
                    yield piece
                metrics.tier_read_bytes.inc(group.end - group.start)
                await self._writer.throttle.spend(group.end - group.start)
        yield await step(encoder.finish)

    async def _parts(self, index: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(index), PART_BYTES):
            part = index[at : at + PART_BYTES]
            await self._writer.throttle.spend(len(part))
            yield part
