"""A coordinator without network and workers, for tests of how nodes come and go."""

from typing import Any, cast

from icecore.model import Incarnation, NodeId, NodeState, SegmentId
from icecore.process.system import SystemRng
from icecore.rpc.ports import Clock
from icecore_coordinator.coordinator import Coordinator
from icecore_coordinator.decisions.node_changes import HeldReplica, Registration
from icecore_coordinator.nodes.node_sessions import NodeSessions, Registered, Session
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.work.admission import NodeAdmission


class ControlPlane:
    """Its store is the database: another one of the same is the next coordinator."""

    def __init__(self, database: SqliteDatabase, clock: Clock) -> None:
        nothing = cast(Any, None)
        self.clock = clock
        self.coordinator = Coordinator(nothing, SqliteStore(database), clock, SystemRng())

    async def start(self) -> None:
        await self.coordinator.ledger.open()
        self.coordinator.ledger.subscribe(self.coordinator._on_change)
        self.sessions.start()

    @property
    def state(self) -> ClusterState:
        return self.coordinator.ledger.state

    @property
    def sessions(self) -> NodeSessions:
        return self.coordinator._sessions

    @property
    def admission(self) -> NodeAdmission:
        return self.coordinator._admission

    @property
    def alerts(self) -> list[str]:
        return [each.why for each in self.coordinator.alerts]

    async def register(
        self, node_id: int, *, disk_id: bytes = b"", incarnation: int = 0, held: int = 0
    ) -> Registered:
        """As a process with so many segments in its folder."""
        asked = Registration(
            b"",
            NodeId(node_id),
            disk_id or b"disk of %d" % node_id,
            Incarnation(incarnation),
            f"127.0.0.1:{node_id}",
            "",
            protocol_version=4,
        )
        inventory = [HeldReplica(SegmentId(each), 1, True, True) for each in range(held)]
        known, _ = await self.admission.register(asked, inventory)
        return known

    async def beat(self, known: Registered) -> Session:
        """The first heartbeat of a stream of that process."""
        asked = known.registration
        return await self.admission.connect(asked.node_id, known.incarnation, asked.disk_id)

    async def join(self, node_id: int, **changes: Any) -> tuple[Registered, Session]:
        known = await self.register(node_id, **changes)
        return known, await self.beat(known)

    def leave(self, session: Session) -> None:
        """The stream ends, and nobody listens at the node's address."""
        self.sessions.disconnected(session)
        self.sessions.note_gone(session.node_id)
        assert self.coordinator.live.state_of(session.node_id) is NodeState.DOWN
