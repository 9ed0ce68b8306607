"""The object store of a node; each request first checks whether it may be used.

Cold reads are put together when the node starts, before the store was checked. If it may not be
used (it is away, it belongs to another cluster), the request fails with that error.
"""

from collections.abc import AsyncIterator, Sequence

from icecore.codec.batch import Buffer
from icecore_node.tiering.access import TierAccess
from icecore_node.tiering.object_store import ByteRange, ObjectInfo


class GuardedStore:
    """See ``ObjectStore``; every method also raises what ``TierAccess.store`` does."""

    def __init__(self, access: TierAccess) -> None:
        self._access = access

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """See ``ObjectStore.put_if_absent``."""
        await self._access.store.put_if_absent(key, data)

    async def put_stream(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """See ``ObjectStore.put_stream``."""
        return await self._access.store.put_stream(key, pieces)

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``ObjectStore.get_ranges``."""
        return await self._access.store.get_ranges(key, ranges)

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """See ``ObjectStore.get_whole``."""
        return await self._access.store.get_whole(key, bytes_max)

    async def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore.head``."""
        return await self._access.store.head(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ``ObjectStore.list``."""
        return self._access.store.list(prefix)

    async def delete(self, key: str) -> None:
        """See ``ObjectStore.delete``."""
        await self._access.store.delete(key)
