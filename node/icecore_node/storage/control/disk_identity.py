"""Cluster and id of a disk, and incarnation of its node; kept on the disk itself (R45, R58)."""

from icecore.errors import WrongClusterError
from icecore.model import Incarnation
from icecore_node.storage.control.control_database import ControlDatabase


class DiskIdentity:
    """The identity that one disk stores of itself."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    @property
    def cluster_id(self) -> bytes:
        """The cluster this disk belongs to; empty before the first registration."""
        return self._database.get("cluster_id") or b""

    @property
    def disk_id(self) -> bytes:
        """The cookie of this disk; empty until it was given one."""
        return self._database.get("disk_id") or b""

    @property
    def incarnation(self) -> Incarnation:
        """The last incarnation persisted, 0 when none."""
        return Incarnation(self._database.get_number("incarnation"))

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the disk to a cluster at the first registration, durably.

        Raises:
            WrongClusterError: It is bound to another one.
        """
        bound = self.cluster_id
        if bound and bound != cluster_id:
            raise WrongClusterError(
                f"this data belongs to cluster {bound.hex()}, not to {cluster_id.hex()}"
            )
        if not bound:
            self._database.put(cluster_id=cluster_id)

    @property
    def disk_counter(self) -> int:
        """The last one persisted, 0 when none."""
        return self._database.get_number("disk_counter")

    def keep_incarnation(self, incarnation: Incarnation, disk_counter: int) -> None:
        """Persist the incarnation and the counter that it begins with; before the first beat."""
        self._database.put(incarnation=incarnation, disk_counter=disk_counter)

    def raise_disk_counter(self) -> int:
        """Persist the next counter; a copy of this disk that was made before has a lower one."""
        counter = self.disk_counter + 1
        self._database.put(disk_counter=counter)
        return counter
