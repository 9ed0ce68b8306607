"""The object store that settings name, with all libraries that it needs."""

from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

from icecore.codec.batch import Buffer
from icecore.errors import ConfigurationError
from icecore_node.ports import Executor
from icecore_node.tiering.access import TierAccess
from icecore_node.tiering.object_store import ByteRange, ObjectInfo, ObjectStore
from icecore_node.tiering.obstore_store import ObstoreStore, StoreSettings
from icecore_node.tiering.ports import Table, TierPorts
from icecore_node.tiering.topic_table import TopicTable


def open_tier(settings: StoreSettings, executor: Executor) -> TierPorts:
    """Open the object store of the settings, without a request to it yet.

    Raises:
        ConfigurationError: The URL or a setting is wrong.
    """

    def table_of(cluster_id: bytes, topic_id: bytes, topic: str) -> Table:
        return TopicTable(settings, cluster_id, topic_id, topic)

    return TierPorts(open_store(settings, executor), table_of)


def open_store(settings: StoreSettings, executor: Executor) -> ObjectStore:
    """Only the store; see ``open_tier``."""
    if urlsplit(settings.url).scheme != "webhdfs":
        return ObstoreStore(settings, executor)
    try:
        from icecore_node.tiering.webhdfs_store import WebHdfsStore
    except ImportError as error:
        raise ConfigurationError(
            f"webhdfs:// needs more libraries ({error}): pip install 'icecore[hdfs]'"
        ) from error
    return WebHdfsStore(settings)


# --- a store that asks before each request --------------------------------------------------------

# The object store of a node; each request first checks whether it may be used.
#
# Cold reads are put together when the node starts, before the store was checked. If it may not be
# used (it is away, it belongs to another cluster), the request fails with that error.


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
