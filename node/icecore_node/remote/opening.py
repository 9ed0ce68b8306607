"""The object store that settings name, with all libraries that it needs."""

from dataclasses import replace
from urllib.parse import urlsplit

from icecore.errors import ConfigurationError
from icecore_node.ports import Executor
from icecore_node.remote.format.topic_table import TopicTable
from icecore_node.remote.ports import BucketMemory, Table, TierPorts
from icecore_node.remote.store.object_store import ObjectStore
from icecore_node.remote.store.obstore_store import ObstoreStore, StoreSettings


def open_tier(settings: StoreSettings, executor: Executor, memory: BucketMemory) -> TierPorts:
    """Open the object store of the settings, without a request to it yet. A local folder is made at
    its first use only.

    Raises:
        ConfigurationError: The URL or a setting is wrong.
        StorageError: The memory can't be read.
    """
    settings = replace(settings, makes_folder=memory.recall() is None)

    def table_of(cluster_id: bytes, topic_id: bytes, topic: str) -> Table:
        return TopicTable(settings, cluster_id, topic_id, topic)

    return TierPorts(open_store(settings, executor), table_of, memory)


def open_store(settings: StoreSettings, executor: Executor) -> ObjectStore:
    """Only the store; see ``open_tier``."""
    if urlsplit(settings.url).scheme != "webhdfs":
        return ObstoreStore(settings, executor)
    try:
        from icecore_node.remote.store.webhdfs_store import WebHdfsStore
    except ImportError as error:
        raise ConfigurationError(
            f"webhdfs:// needs more libraries ({error}): pip install 'icecore[hdfs]'"
        ) from error
    return WebHdfsStore(settings)
