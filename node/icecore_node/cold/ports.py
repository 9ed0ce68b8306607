"""Ports that a node needs for reads of object storage. Light to import: most nodes have none."""

from dataclasses import dataclass

from icecore_node.ports import Executor, FileSystem


@dataclass(frozen=True, slots=True)
class ColdPorts:
    """Ports of one node's cold reads."""

    executor: Executor
    """Threads for these alone: no read of a local disk waits behind them."""
    files: FileSystem
    """File system in which the disk cache keeps its folder."""
