"""Cold reads of one node, put together: its store, its threads, its caches."""

from icecore_node.cold.admission import Admission
from icecore_node.cold.cache import ColdCache
from icecore_node.cold.descriptions import Ask, Descriptions
from icecore_node.cold.disk_cache import DiskCache
from icecore_node.cold.reading import ColdParts, ColdReading
from icecore_node.context import NodeContext
from icecore_node.ports import ColdPorts
from icecore_node.tiering.object_store import ObjectStore


def make_cold_reading(
    context: NodeContext, store: ObjectStore, ports: ColdPorts, ask: Ask
) -> ColdReading:
    """Assemble cold reads as the settings say.

    Args:
        context: Context of the node.
        store: The object store to read.
        ports: Ports for cold reads alone.
        ask: Asks the coordinator about a segment.
    """
    settings = context.settings
    disk = DiskCache(ports.files, settings.cold_cache_bytes) if settings.cold_cache_bytes else None
    return ColdReading(
        ColdParts(
            store=store,
            descriptions=Descriptions(ask, context.clock, settings.timing),
            cache=ColdCache(disk, settings.cold_memory_bytes, ports.executor),
            admission=Admission(context.clock),
            executor=ports.executor,
            tasks=context.tasks,
            metrics=context.metrics,
        )
    )
