"""What a node is given for reads of object storage. Light to import: most nodes have none."""

from dataclasses import dataclass

from icecore_node.ports import Executor, FileSystem


@dataclass(frozen=True, slots=True)
class ColdPorts:
    """Of one node."""

    executor: Executor
    """Threads for these alone: no read of a local disk waits behind them."""
    files: FileSystem
    """Where the cache may have a folder."""
