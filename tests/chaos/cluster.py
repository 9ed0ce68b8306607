"""The cluster of a scenario: its processes on their network."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from icecore.dev import LocalCluster
from icecore.process import launch
from icecore.process.members import Member
from tests.chaos.links import COORDINATOR, COORDINATORS, ETCD, Links
from tests.support.etcd import EtcdMembers

LEASE_MS = 3000
SESSION_MS = 2000
"""The session of a coordinator in etcd: the shortest that its election allows."""
NODES = (1, 2, 3)
SPARE = 4
NAMES: Final = (COORDINATOR, *(f"node-{node_id}" for node_id in (*NODES, SPARE)))
NAMES_WITH_ETCD: Final = (*NAMES, *COORDINATORS[1:], *ETCD)


class ChaosCluster(LocalCluster):
    """Three nodes and one in reserve; three coordinators where the metadata are in etcd, else one.

    Args:
        folder: Where everything is kept.
        network: What its processes reach each other through.
        store: Settings of nodes for their object store, if they have one.
        etcd: Has the metadata and runs; None = a file has them.
    """

    def __init__(
        self, folder: Path, network: Links, store: Mapping[str, Any], etcd: EtcdMembers | None
    ) -> None:
        self.etcd = etcd
        in_etcd = {"endpoints": ",".join(etcd.endpoints), "session_ms": SESSION_MS} if etcd else {}
        super().__init__(
            folder,
            nodes=SPARE,
            node_settings={
                "preallocate_bytes": 256 << 10,
                "recycle_bytes_max": 8 << 20,
                **store,
            },
            coordinator_settings={"lease_ms": LEASE_MS, **({"etcd": in_etcd} if etcd else {})},
            insecure_bind=network.insecure_bind,
        )
        self.coordinators = [self.coordinator]
        for name in COORDINATORS[1:] if etcd else ():
            arguments = [*launch.command("icecore_coordinator"), "--data", str(self.folder / name)]
            log_path = self.folder / "logs" / f"{name}.log"
            self.coordinators.append(Member(name, arguments, "", log_path))
        for member in self._members():
            network.attach(member)
        self._spare: Member | None = self._nodes.pop(SPARE)

    def _members(self) -> Iterator[Member]:
        yield from self.coordinators
        yield from self._nodes.values()

    @property
    def bootstrap(self) -> str:
        """Addresses of all coordinators."""
        return ",".join(map(self._reached, self.coordinators))

    @property
    def clients_bootstrap(self) -> str:
        """For clients: where no coordinator acts, they begin at a node."""
        nodes = self.addresses.values() if self.etcd is not None else ()
        return ",".join([self.bootstrap, *nodes])

    def add_node(self) -> int:
        """Start the node in reserve; its id."""
        assert self._spare is not None, "there is one only"
        self._nodes[SPARE], self._spare = self._spare, None
        self.start_node(SPARE)
        return SPARE

    def data_folder(self, node_id: int) -> Path:
        """Return the folder where a node keeps its data."""
        return self.folder / f"node-{node_id}"

    # --- coordinators ---------------------------------------------------------------------------

    def kill_member(self, member: Member) -> None:
        """SIGKILL."""
        self._kill(member)

    def stop_member(self, member: Member) -> None:
        """SIGTERM, and wait for the clean end."""
        self._end([member])

    def start_member(self, member: Member) -> None:
        """Start a coordinator again, and wait until it acts or stands by."""
        self._spawn(member)
        self._wait_ready([member])

    def stop(self, *, kill: bool = False) -> list[str]:
        """As ``LocalCluster.stop``; standbys end before the first coordinator."""
        standbys = self.coordinators[1:]
        if kill:
            self._kill(*standbys)
            return super().stop(kill=True)
        warnings = self._end(list(self._nodes.values())) + self._end(standbys)
        return warnings + super().stop()
