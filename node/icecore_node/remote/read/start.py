"""Remote reads of one node, put together: its store, its threads, its caches."""

from icecore_node.context import NodeContext
from icecore_node.ports import RemotePorts
from icecore_node.remote.read.admission import Admission
from icecore_node.remote.read.cache import RemoteCache
from icecore_node.remote.read.descriptions import Ask, Descriptions
from icecore_node.remote.read.disk_cache import DiskCache
from icecore_node.remote.read.reading import RemoteParts, RemoteReading
from icecore_node.remote.store.object_store import ObjectStore


def make_remote_reading(
    context: NodeContext, store: ObjectStore, ports: RemotePorts, ask: Ask
) -> RemoteReading:
    """Assemble remote reads as the settings say.

    Args:
        context: Context of the node.
        store: The object store to read.
        ports: Ports for remote reads alone.
        ask: Asks the coordinator about a segment.
    """
    settings = context.settings
    disk = (
        DiskCache(ports.files, settings.remote_cache_bytes) if settings.remote_cache_bytes else None
    )
    return RemoteReading(
        RemoteParts(
            store=store,
            descriptions=Descriptions(ask, context.clock, settings.timing),
            cache=RemoteCache(disk, settings.remote_memory_bytes, ports.executor),
            admission=Admission(context.clock),
            executor=ports.executor,
            tasks=context.tasks,
            metrics=context.metrics,
        )
    )
