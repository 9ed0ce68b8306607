"""Let a node in: it registers, and its first heartbeat makes the incarnation count.

A node that nobody knew gets its record only then (R107): anybody can register. In between others
may have come, so its disk is judged twice. What its inventory shows, copies it has lost and
deletions it carried out, is written down before it counts as up.
"""

import asyncio
import logging
from collections.abc import Iterable

from icecore.errors import IcecoreError, InvalidRequestError, SupersededError, WrongClusterError
from icecore.model import NO_NODE, NO_SEGMENT, Incarnation, NodeId, SegmentId
from icecore.process.log import event
from icecore_coordinator.decisions.disk_changes import check_disk, with_new_disk
from icecore_coordinator.decisions.node_changes import (
    HeldReplica,
    Registration,
    activate,
    check_number,
    check_registration,
    check_stream,
    confirm_deletion,
    deletions_confirmed,
    issued_by,
    lost_copies,
    note_holder,
    register,
    shrunk_logs,
    unknown_copies,
)
from icecore_coordinator.decisions.node_removal import room_for_node
from icecore_coordinator.decisions.segment_changes import remove_sealed_replica
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.node_sessions import NodeSessions, Registered, Session
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.limits import NODES_MAX
from icecore_coordinator.state.records import Change, NodeRecord
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

_NO_ROOM = (
    f"there are {NODES_MAX} nodes: to make room for new ones, those are forgotten that hold "
    "nothing and are down for longest. Look who registers so many nodes"
)

_POSED_AS_NEW = (
    "heartbeats in the name of nodes that are not in the cluster do not come from the disks that "
    "registered. They were refused, and the log has each (event=heartbeats_refused). Look who "
    "sends them to the coordinator"
)


class NodeAdmission:
    """Lets nodes in, one after the other."""

    def __init__(self, ports: WorkerPorts, sessions: NodeSessions) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._heard = ports.heard
        self._copies = ports.copies
        self._clock = ports.clock
        self._sessions = sessions
        self._alerts = ports.alerts
        self.refused = 0
        """Heartbeat streams that did not prove whose they are."""
        self._posed_as: set[NodeId] = set()
        """Nodes in whose name somebody else sent heartbeats: a person was told, once for each."""
        self._activating = asyncio.Lock()
        """Lets one node be activated at a time: the verdict on its disk depends on the disks judged
        before."""

    async def register(
        self, asked: Registration, inventory: Iterable[HeldReplica]
    ) -> tuple[Registered, list[SegmentId]]:
        """Hand out the next incarnation.

        Returns:
            The registration, and unsealed segments whose log was longer once (R59).

        Raises what ``check_registration``, ``register`` and ``check_disk`` raise.
        """
        node_id = asked.node_id
        is_unknown = False
        check_registration(asked)
        held = {each.segment_id: each for each in inventory}

        def decision(state: ClusterState) -> Change:
            nonlocal is_unknown
            room_for_node(state, self._live, node_id)  # else it would hear of it too late
            known_counter = self._heard.disk_counter(node_id)
            check_number("disk counter", asked.disk_counter, known_counter)
            change, is_unknown = register(state, self._live, asked, known_counter)
            if node_id not in state.nodes and not held:
                is_unknown = False  # there is nothing that could count
            if is_unknown:
                check_disk(state, self._live, node_id, self._copies.has_copy)
            return change

        try:
            change = await self._ledger.decide(decision)
        except IcecoreError as error:
            event(_log, logging.WARNING, "not_registered", node_id=node_id, error=error)
            raise
        self._sessions.note_told(node_id, held)
        ends = self._heard.ends_of_node(node_id)
        shrunk = shrunk_logs(self._ledger.state, node_id, held, ends)
        known = Registered(
            registration=asked,
            held=held,
            is_disk_unknown=is_unknown,
            incarnation=issued_by(change),
            next_segment_id=next_of(self._ledger.state, "segment_id").next_value,
        )
        self._sessions.note_registered(known)
        event(
            _log,
            logging.INFO,
            "registered",
            node_id=node_id,
            incarnation=known.incarnation,
            address=asked.address,
            native_address=asked.native_address,
            segments=len(held),
            disk_unknown=is_unknown,
            shrunk=shrunk,
        )
        return known, shrunk

    async def connect(self, node_id: NodeId, incarnation: Incarnation, disk_id: bytes) -> Session:
        """A heartbeat stream begins; the first of an incarnation activates it.

        Raises:
            SupersededError: This incarnation does not count: register again.
            InvalidRequestError: The stream does not prove that it is the node's.
        """
        known = None
        if self._ledger.state.incarnation(node_id) != incarnation or incarnation == 0:
            known = self._sessions.registered(node_id)
            if known is None or known.incarnation != incarnation:
                raise SupersededError(f"node {node_id}: register again, {incarnation} is not known")
        self._check_stream(node_id, disk_id, known)
        if known is not None:
            async with self._activating:
                change = await self._ledger.decide(lambda state: self._activation(state, known))
                self._tell_of_room(change, node_id)
                await self._judge_inventory(node_id, known)
                if self._ledger.state.incarnation(node_id) != incarnation:
                    raise SupersededError(f"node {node_id} was forgotten: register again")
        return self._sessions.connect(node_id, incarnation)

    def _tell_of_room(self, change: Change, node_id: NodeId) -> None:
        """One alert for all of them: many would push out those that tell of other things."""
        for gone in change.deletes:
            if isinstance(gone, NodeRecord):
                event(
                    _log,
                    logging.WARNING,
                    "node_made_room",
                    node_id=gone.node_id,
                    address=gone.address,
                    joined=node_id,
                )
                self._alerts.raise_alert(AlertKind.NODES, NO_SEGMENT, _NO_ROOM)

    def _check_stream(self, node_id: NodeId, disk_id: bytes, known: Registered | None) -> None:
        asked = known.registration if known is not None else None
        try:
            check_stream(self._ledger.state, node_id, disk_id, asked)
        except InvalidRequestError as error:
            event(_log, logging.WARNING, "heartbeats_refused", node_id=node_id, error=error)
            self.refused += 1
            self._tell_of_posing(node_id, error.message)
            raise

    def _tell_of_posing(self, node_id: NodeId, why: str) -> None:
        """Once for each node that has a record. Ids without one can be invented, and are many."""
        if node_id not in self._ledger.state.nodes:
            node_id, why = NO_NODE, _POSED_AS_NEW
        if node_id not in self._posed_as:
            self._posed_as.add(node_id)
            self._alerts.raise_alert(AlertKind.POSED, NO_SEGMENT, why)

    def _activation(self, state: ClusterState, known: Registered) -> Change:
        """Its disk is judged again: others may have come with new ones since it registered."""
        node_id = known.registration.node_id
        if self._sessions.registered(node_id) is not known:
            raise SupersededError(f"node {node_id} has registered again since")
        change = activate(state, known.registration, known.incarnation)
        try:
            if known.is_disk_unknown and change.puts:
                check_disk(state, self._live, node_id, self._copies.has_copy)
                change = with_new_disk(state, change)
            return room_for_node(state, self._live, node_id) + change
        except WrongClusterError as error:
            event(_log, logging.WARNING, "disk_refused", node_id=node_id)
            raise SupersededError(error.message) from error  # register again, and hear why
        except InvalidRequestError as error:
            raise SupersededError(error.message) from error

    async def _judge_inventory(self, node_id: NodeId, known: Registered) -> None:
        """Stop counting copies the node has lost, and remember the deletions it carried out, and
        what it has that nobody knows of."""
        state = self._ledger.state
        lost = lost_copies(state, node_id, known.held, is_disk_unknown=known.is_disk_unknown)
        gone = deletions_confirmed(state, node_id, known.held)
        now_ms = self._clock.now_ms()
        for segment_id in lost:
            event(_log, logging.WARNING, "copy_lost", node_id=node_id, segment_id=segment_id)
        await self._ledger.decide_each(
            lost, lambda state, each: remove_sealed_replica(state, each, node_id, now_ms)
        )
        await self._ledger.decide_each(
            gone, lambda state, each: confirm_deletion(state, each, [node_id])
        )
        await self._ledger.decide_each(
            unknown_copies(state, node_id, known.held),
            lambda state, each: note_holder(state, each, node_id),
        )
