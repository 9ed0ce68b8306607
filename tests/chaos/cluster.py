"""The cluster of a scenario: its processes on their network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icecore.dev import LocalCluster
from icecore.process.members import Member
from tests.chaos.links import Links

LEASE_MS = 3000
COORDINATOR = "coordinator"
NODES = (1, 2, 3)
SPARE = 4
NAMES = (COORDINATOR, *(f"node-{node_id}" for node_id in (*NODES, SPARE)))


class ChaosCluster(LocalCluster):
    """Three nodes and one in reserve.

    Args:
        folder: Where everything is kept.
        network: What its processes reach each other through.
        store: Settings of nodes for their object store, if they have one.
    """

    def __init__(self, folder: Path, network: Links, store: Mapping[str, Any]) -> None:
        super().__init__(
            folder,
            nodes=SPARE,
            node_settings={
                "preallocate_bytes": 256 << 10,
                "recycle_bytes_max": 8 << 20,
                **store,
            },
            coordinator_settings={"lease_ms": LEASE_MS},
            insecure_bind=network.insecure_bind,
        )
        for member in self._members():
            network.attach(member)
        self._spare: Member | None = self._nodes.pop(SPARE)

    def add_node(self) -> int:
        """Start the node in reserve; its id."""
        assert self._spare is not None, "there is one only"
        self._nodes[SPARE], self._spare = self._spare, None
        self.start_node(SPARE)
        return SPARE

    def data_folder(self, node_id: int) -> Path:
        """Return the folder where a node keeps its data."""
        return self.folder / f"node-{node_id}"
