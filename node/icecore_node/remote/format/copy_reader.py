"""Reading a tiered segment: it reads only the row groups needed, and proves all of them.

The manifest says where each row group lies, which offsets it has and what it hashes to, so a fetch
at an offset is one ranged read of the footer, once, and one of the row group. Bytes are compared
with the manifest before anything parses them: a Parquet library must not parse untrusted bytes.

``verify`` is for the node that has just put the object, and for checks of a bucket. It reads
everything, every byte once, and computes the content digest from the stored bytes.
"""

import hashlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icecore.codec.batch import iter_batches
from icecore.errors import OffsetOutOfRangeError
from icecore_node.ports import Buffer, Runner
from icecore_node.remote.format.content_digest import ContentDigest
from icecore_node.remote.format.manifest import (
    PARQUET_MAGIC,
    Manifest,
    RawBatch,
    RowGroup,
    TieredDamageError,
)
from icecore_node.remote.format.row_group_file import row_group_file
from icecore_node.remote.format.rows import SCHEMA
from icecore_node.remote.store.object_store import ByteRange, RangeReader


@dataclass(frozen=True, slots=True)
class Proved:
    """Counts of what ``verify`` has read."""

    requests: int
    length_bytes: int
    records: int


class CopyReader:
    """One published segment in a store. Loop only; what decodes runs on a reader thread.

    Of its ``part_at``, a row group is read with ``rows``, and batches as they were stored with
    ``raw``.

    Everything that reads raises TieredDamageError when the objects are not those of the manifest,
    and what an ``ObjectStore`` raises.

    Args:
        store: The object store that has it.
        manifest: Manifest of the published copy.
        executor: Runs decoding and hashing.
        is_proved: Whether the store compares all bytes with the manifest itself.
    """

    def __init__(
        self, store: RangeReader, manifest: Manifest, executor: Runner, *, is_proved: bool = False
    ) -> None:
        self._store = store
        self._is_proved = is_proved
        self._manifest = manifest
        self._executor = executor
        self._metadata: Any = None
        parts: list[RowGroup | RawBatch] = [*manifest.row_groups, *manifest.raw_batches]
        self._parts = sorted(parts, key=lambda part: part.base_offset)
        self._bases = [each.base_offset for each in self._parts]
        self._numbers = {each.start: at for at, each in enumerate(manifest.row_groups)}

    @property
    def manifest(self) -> Manifest:
        """Manifest of the published copy."""
        return self._manifest

    def part_at(self, offset: int) -> RowGroup | RawBatch:
        """Return the part that holds an offset.

        Raises:
            OffsetOutOfRangeError: The offset is outside this segment.
        """
        facts = self._manifest.facts
        if not facts.base_offset <= offset < facts.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in {facts.base_offset}..{facts.end_offset}"
            )
        return self._parts[bisect_right(self._bases, offset) - 1]

    async def rows(self, group: RowGroup, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows of a row group: one ranged read, and one more for the first of a segment.
        ``columns`` None = all of them."""
        if self._metadata is None:
            await self._read_footer()
        [data] = await self._store.get_ranges(
            self._manifest.parquet.key, [(group.start, group.end)]
        )
        return await self._executor.run(self._decode, group, data, columns)

    async def file_of(self, group: RowGroup) -> list[Buffer]:
        """A row group as a Parquet file of its own, in parts; read as ``rows`` does."""
        if self._metadata is None:
            await self._read_footer()
        [data] = await self._store.get_ranges(
            self._manifest.parquet.key, [(group.start, group.end)]
        )
        return await self._executor.run(self._file_of, group, data)

    async def raw(self, batch: RawBatch) -> bytes:
        """Whole batches of the side object, as their leaders stamped them."""
        side = self._manifest.side
        assert side is not None, "a manifest with raw batches names a side object"
        [data] = await self._store.get_ranges(side.key, [(batch.start, batch.end)])
        if not (self._is_proved or await self._executor.run(self._is, data, batch.sha256)):
            raise TieredDamageError(f"{side.key} at {batch.start} is not what was put")
        return data

    def _is(self, data: bytes, sha256: bytes) -> bool:
        """Blocking."""
        return self._is_proved or hashlib.sha256(data).digest() == sha256

    async def verify(
        self, also: Callable[[pa.Table], None] | None = None, *, is_bare: bool = False
    ) -> Proved:
        """Read all of it back and compare: sizes, hashes, and the records themselves.

        Args:
            also: Is given the rows of each row group, on a reader thread.
            is_bare: Do without a Parquet object, where that has no rows.

        Raises:
            TieredDamageError: Something is not what the manifest says.
        """
        manifest, digest = self._manifest, ContentDigest()
        assert not (is_bare and manifest.row_groups)
        requests, length_bytes = (0, 0) if is_bare else await self._verify_rows(digest, also)
        if manifest.side is not None:
            await self._check_size(manifest.side.key, manifest.side.size_bytes)
            requests += 1
            async for data in self._side():
                requests, length_bytes = requests + 1, length_bytes + len(data)
                await self._executor.run(_digest_batches, digest, data)
        if digest.digest() != manifest.content_digest:
            raise TieredDamageError(f"{manifest.parquet.key} has other records than were sealed")
        return Proved(requests, length_bytes, manifest.records)

    async def _verify_rows(
        self, digest: ContentDigest, also: Callable[[pa.Table], None] | None
    ) -> tuple[int, int]:
        """Read the Parquet object: how many requests and bytes that took."""
        manifest, parquet, whole = self._manifest, self._manifest.parquet, hashlib.sha256()
        await self._check_size(parquet.key, parquet.size_bytes)
        await self._read_footer()
        requests, length_bytes = 2, parquet.size_bytes - manifest.footer_start
        for start, end in self._spans():
            [data] = await self._store.get_ranges(parquet.key, [(start, end)])
            requests, length_bytes = requests + 1, length_bytes + end - start
            await self._executor.run(whole.update, data)
            if start in self._numbers:
                group = manifest.row_groups[self._numbers[start]]
                table = await self._executor.run(self._decode, group, data)
                await self._executor.run(_digest_rows, digest, table)
                if also is not None:
                    await self._executor.run(also, table)
        if whole.digest() != parquet.sha256:
            raise TieredDamageError(f"{parquet.key} is not what was put")
        return requests, length_bytes

    async def _check_size(self, key: str, size_bytes: int) -> None:
        found = (await self._store.head(key)).size_bytes
        if found != size_bytes:
            raise TieredDamageError(f"{key} has {found} bytes, not {size_bytes}")

    def _spans(self) -> list[ByteRange]:
        """Return the spans of the whole object: before the rows, each row group, behind them. The
        footer is in the last one, and is read twice."""
        groups = self._manifest.row_groups
        rows_end = groups[-1].end if groups else len(PARQUET_MAGIC)
        rows = [(each.start, each.end) for each in groups]
        return [(0, len(PARQUET_MAGIC)), *rows, (rows_end, self._manifest.parquet.size_bytes)]

    async def _side(self) -> AsyncIterator[bytes]:
        """Each raw batch, proved to be a part of what was put."""
        side, whole = self._manifest.side, hashlib.sha256()
        assert side is not None, "only called with one"
        for each in self._manifest.raw_batches:
            data = await self.raw(each)
            whole.update(data)
            yield data
        if whole.digest() != side.sha256:
            raise TieredDamageError(f"{side.key} is not what was put")

    async def _read_footer(self) -> None:
        manifest = self._manifest
        span = (manifest.footer_start, manifest.parquet.size_bytes)
        [data] = await self._store.get_ranges(manifest.parquet.key, [span])
        self._metadata = await self._executor.run(self._parse_footer, data)

    def _parse_footer(self, data: bytes) -> Any:
        """Blocking."""
        manifest = self._manifest
        if not self._is(data, manifest.footer_sha256):
            raise TieredDamageError(f"the footer of {manifest.parquet.key} is not what was put")
        # The library would read more than the footer of the whole object, and needs none of it.
        metadata = pq.read_metadata(pa.BufferReader(PARQUET_MAGIC + data))
        if metadata.num_row_groups != len(manifest.row_groups):
            raise TieredDamageError(f"{metadata.num_row_groups} row groups, not as published")
        if not metadata.schema.to_arrow_schema().equals(SCHEMA):
            raise TieredDamageError("columns of another table")
        return metadata

    def _file_of(self, group: RowGroup, data: bytes) -> list[Buffer]:
        """Blocking."""
        manifest = self._manifest
        if not self._is(data, group.sha256):
            raise TieredDamageError(f"{manifest.parquet.key} at {group.start} is not what was put")
        described = self._metadata.row_group(self._numbers[group.start])
        return row_group_file(data, group.start, described)

    def _decode(
        self, group: RowGroup, data: bytes, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Blocking."""
        manifest, key = self._manifest, self._manifest.parquet.key
        if not self._is(data, group.sha256):
            raise TieredDamageError(f"{key} at {group.start} is not what was put")
        source = _Sparse(group.start, data, manifest.parquet.size_bytes)
        try:
            file = pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False)
            table = file.read_row_group(
                self._numbers[group.start],
                columns=None if columns is None else [*columns],
                use_threads=False,
            )
        except (pa.ArrowException, OSError) as error:
            raise TieredDamageError(f"{key} at {group.start}: {error}") from error
        offsets = table.column("offset")
        low, high = offsets[0].as_py(), offsets[-1].as_py()
        is_within = group.base_offset <= low <= high < group.end_offset
        if table.num_rows != group.records or not is_within:
            raise TieredDamageError(f"{key} at {group.start} has rows {low}..{high}")
        return table


def _digest_rows(digest: ContentDigest, table: pa.Table) -> None:
    for rows in table.replace_schema_metadata(None).to_batches():
        digest.update(rows)


def _digest_batches(digest: ContentDigest, data: bytes) -> None:
    for position, header in iter_batches(data):
        digest.update_undecodable(memoryview(data)[position : position + header.batch_length])


class _Sparse:
    """A file of which only one part is here, for a library that wants a file."""

    def __init__(self, start: int, data: bytes, size: int) -> None:
        self._start, self._data, self._size = start, data, size
        self._position = 0
        self.closed = False

    def read(self, length: int = -1) -> bytes:
        end = self._size if length < 0 else self._position + length
        first = self._position - self._start
        if first < 0 or end - self._start > len(self._data):
            raise OSError(f"bytes {self._position}..{end} were not read")
        self._position = end
        return self._data[first : end - self._start]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
