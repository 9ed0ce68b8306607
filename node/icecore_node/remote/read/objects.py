"""The objects of one tiered copy as its readers see them: from the cache, else from the store.

Bytes with a hash in the manifest are proved before they are kept. Parts of an index have checksums
of their own, which their parser compares. An object that is gone, or shorter than it was, is
damage: it was there when it was published, and only what metadata have closed may be removed.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from icecore_node.ports import Executor
from icecore_node.remote.format.manifest import Manifest, TieredDamageError
from icecore_node.remote.read.cache import RemoteCache
from icecore_node.remote.read.tally import note_request
from icecore_node.remote.store.object_store import (
    ByteRange,
    ObjectInfo,
    ObjectMissingError,
    ObjectTooShortError,
    RangeReader,
)

_HASHED_HERE_BYTES: Final = 256 << 10


class CachedObjects:
    """A ``RangeReader`` of the objects of one copy that proves what it reads, and keeps it.

    Raises TieredDamageError for what is not what was published.

    Args:
        store: The object store that has the objects.
        cache: Keeps what was read.
        manifest: Says what they hash to.
        executor: Computes hashes of large ranges.
    """

    def __init__(
        self, store: RangeReader, cache: RemoteCache, manifest: Manifest, executor: Executor
    ) -> None:
        self._store = store
        self._cache = cache
        self._executor = executor
        parquet, side, index = manifest.parquet, manifest.side, manifest.index
        footer = (parquet.key, manifest.footer_start, parquet.size_bytes)
        self._hashes = {footer: manifest.footer_sha256}
        self._blocks: set[tuple[str, int, int]] = set()
        for group in manifest.row_groups:
            self._hashes[parquet.key, group.start, group.end] = group.sha256
            self._blocks.add((parquet.key, group.start, group.end))
        for batch in manifest.raw_batches if side is not None else ():
            assert side is not None
            self._hashes[side.key, batch.start, batch.end] = batch.sha256
            self._blocks.add((side.key, batch.start, batch.end))
        if index is not None:
            self._hashes[index.key, 0, index.size_bytes] = index.sha256

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``RangeReader.get_ranges``."""
        return list(await asyncio.gather(*(self._range(key, *each) for each in ranges)))

    async def head(self, key: str) -> ObjectInfo:
        """See ``RangeReader.head``; never from the cache."""
        return await self._store.head(key)

    async def drop(self, key: str, start: int, end: int) -> None:
        """Drop the cached bytes of this range: they do not parse."""
        await self._cache.drop_raw(_name(key, start, end))

    async def _range(self, key: str, start: int, end: int) -> bytes:
        is_pinned = (key, start, end) not in self._blocks
        return await self._cache.raw(
            _name(key, start, end), lambda: self._request(key, start, end), is_pinned=is_pinned
        )

    async def _request(self, key: str, start: int, end: int) -> bytes:
        try:
            [data] = await self._store.get_ranges(key, [(start, end)])
        except (ObjectMissingError, ObjectTooShortError) as error:
            raise TieredDamageError(error.message, key=key) from error
        note_request(len(data))
        expected = self._hashes.get((key, start, end))
        if expected is not None and await self._hash(data) != expected:
            raise TieredDamageError(f"{key} at {start} is not what was published", key=key)
        return data

    async def _hash(self, data: bytes) -> bytes:
        """Hash the bytes: large ones on a thread, small ones here, which takes less time."""
        if len(data) < _HASHED_HERE_BYTES:
            return hashlib.sha256(data).digest()
        return await self._executor.run(_hash_of, data)


def _hash_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _name(key: str, start: int, end: int) -> str:
    return f"{key}:{start}-{end}"
