"""The object store that settings name, with all libraries that it needs."""

from icecore_node.ports import Executor
from icecore_node.tiering.obstore_store import ObstoreStore, StoreSettings
from icecore_node.tiering.ports import Table, TierPorts
from icecore_node.tiering.topic_table import TopicTable


def open_tier(settings: StoreSettings, executor: Executor) -> TierPorts:
    """Nothing is asked of the store yet.

    Raises:
        ConfigurationError: The URL or a setting is wrong.
    """

    def table_of(cluster_id: bytes, topic_id: bytes, topic: str) -> Table:
        return TopicTable(settings, cluster_id, topic_id, topic)

    return TierPorts(ObstoreStore(settings, executor), table_of)
