"""Identity of this node, by its registration, and its lease."""

from icecore.errors import FencedError, UnavailableError, WrongClusterError
from icecore.model import (
    NO_COORDINATOR_EPOCH,
    NO_INCARNATION,
    CoordinatorEpoch,
    Incarnation,
    NodeId,
)
from icecore.rpc.ports import Clock
from icecore_node.ports import Folder


class Identity:
    """Identity of this process, from its registration, and the highest coordinator epoch seen."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.cluster_id = b""
        """Empty before the first registration."""
        self.disk_id = b""
        """Identity of the data folder. The coordinator knows it, clients don't."""
        self.incarnation = NO_INCARNATION
        """0 until registered."""
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        """Highest coordinator epoch seen; commands with a lower one are refused."""
        self.metadata_revision = 0
        """Highest revision of the metadata store that any coordinator told."""
        self._earlier_revision = 0
        """The highest one that coordinators before the newest told."""
        self.store_id = b""
        """Identity of the cluster's object store; empty while the coordinator knows none."""
        self.forgotten_store_id = b""
        """Identity of the last one that a person gave up."""
        self.address = ""
        self.native_address = ""

    def begin(self, folder: Folder, address: str, native_address: str) -> None:
        """The node listens, natively only if it has such an address. Its data folder says which
        cluster it belongs to, if to any, and which revision it has heard of."""
        self.cluster_id, self.disk_id = folder.cluster_id, folder.disk_id
        self.metadata_revision = folder.metadata_revision
        self.address, self.native_address = address, native_address

    def lose(self) -> None:
        """Drop the incarnation: no caller is served before the next one."""
        self.incarnation = NO_INCARNATION

    def register(
        self,
        cluster_id: bytes,
        incarnation: Incarnation,
        coordinator_epoch: CoordinatorEpoch,
        metadata_revision: int = 0,
    ) -> None:
        """The coordinator gave this process an incarnation."""
        self.cluster_id = cluster_id
        self.hear(coordinator_epoch, metadata_revision)
        self.incarnation = incarnation

    def hear(self, coordinator_epoch: CoordinatorEpoch, metadata_revision: int = 0) -> None:
        """A coordinator with this epoch spoke to us, on metadata of this revision."""
        if coordinator_epoch > self.coordinator_epoch:
            self.coordinator_epoch = coordinator_epoch
            self._earlier_revision = self.metadata_revision
        self.metadata_revision = max(self.metadata_revision, metadata_revision)

    def hear_store(self, store_id: bytes, forgotten_store_id: bytes) -> None:
        """This node's own coordinator said which object store the cluster uses (R95)."""
        self.store_id, self.forgotten_store_id = store_id, forgotten_store_id

    def check_revision(self, coordinator_epoch: CoordinatorEpoch, metadata_revision: int) -> None:
        """Compare the metadata of a coordinator with those of the coordinators before it (R94). Its
        own messages may cross, so it is not compared with itself; 0 = it does not say.

        Raises:
            FencedError: Its metadata store is an older copy.
        """
        is_new = coordinator_epoch > self.coordinator_epoch
        earlier = self.metadata_revision if is_new else self._earlier_revision
        if 0 < metadata_revision < earlier:
            raise FencedError(
                f"the metadata store of this coordinator is an older copy: it has revision "
                f"{metadata_revision}, node {self.node_id} heard of {earlier}. Stop the "
                "coordinator, put its newest data folder back, and start it"
            )

    def check_cluster(self, cluster_id: bytes, *, is_needed: bool = False) -> None:
        """Raises WrongClusterError when a request names another cluster (empty = any, unless one
        ``is_needed``), and UnavailableError while this node, new or with a new disk, belongs to
        none."""
        if is_needed and not cluster_id:
            raise WrongClusterError("the request names no cluster")
        if cluster_id and not self.cluster_id:
            raise UnavailableError("this node has not joined its cluster yet")
        if cluster_id and cluster_id != self.cluster_id:
            raise WrongClusterError(
                f"this node belongs to cluster {self.cluster_id.hex()}, "
                f"the request is for {cluster_id.hex()}"
            )


class Lease:
    """The lease of a node: whether the coordinator heard of it recently. Loop only.

    It counts from when a heartbeat was *sent*, on our monotonic clock, and only gates
    ``acks=leader``.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = 0.0
        self._sequence = 0
        self._sent_at_ms: dict[int, float] = {}
        self.length_ms = 6000
        """Length of the lease, as the coordinator sets it."""

    def heartbeat(self) -> int:
        """A heartbeat is sent now; the number that it carries."""
        self._sequence += 1
        self._sent_at_ms[self._sequence] = self._clock.monotonic_ms()
        return self._sequence

    def renew(self, sequence: int) -> None:
        """The coordinator answered the heartbeat with this number."""
        sent_at_ms = self._sent_at_ms.pop(sequence, None)
        if sent_at_ms is None:
            return
        for older in [each for each in self._sent_at_ms if each < sequence]:
            del self._sent_at_ms[older]
        self._end_ms = max(self._end_ms, sent_at_ms + self.length_ms)

    @property
    def is_valid(self) -> bool:
        """Return whether the coordinator heard of us recently enough to ack on the leader alone."""
        return self._clock.monotonic_ms() < self._end_ms
