"""Seeded mistakes in what it takes to empty, forget and become a node; see ``mistakes``. Worlds:
``directed_forgotten``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from icecore.model import NodeId
from icecore_coordinator.decisions import node_changes, node_removal, placement, sealed_copies
from icecore_coordinator.decisions.node_changes import Registration, activate, register
from icecore_coordinator.decisions.node_removal import NamedIn
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, CounterRecord, NodeRecord
from icecore_coordinator.work import admission
from icecore_coordinator.work.copies.repairing import Repairer
from tests.simulation.mistakes import Mistake, patch


@contextmanager
def nobody_asks_what_a_node_holds() -> Iterator[None]:
    """R106: a node is forgotten whatever names it."""
    nothing = NamedIn(unsealed=0, sealed=0, held=0, uploads=0)
    with (
        patch(node_removal, "named_in", lambda *_: nothing),
        patch(node_removal, "last_copies", lambda *_: []),
    ):
        yield


def incarnations_begin_anew() -> Mistake:
    """R106: an id without a record gets the first incarnation, whatever it had before."""

    def issued_by(change: Change) -> Any:
        [record] = change.puts
        return 1 if isinstance(record, CounterRecord) else node_changes.issued_by(change)

    return patch(admission, "issued_by", issued_by)


@contextmanager
def who_registers_has_a_record() -> Iterator[None]:
    """R107: the record is stored before anything is proved."""

    def recorded(state: ClusterState, live: Liveness, asked: Registration, counter: int = 0) -> Any:
        change, is_unknown = register(state, live, asked, counter)
        [record] = change.puts
        if not isinstance(record, CounterRecord):
            return change, is_unknown
        incarnation = node_changes.issued_by(change)
        [node] = activate(state, asked, incarnation).puts
        return Change((record, node)), is_unknown

    def issued_by(change: Change) -> Any:
        first = change.puts[0]
        return node_changes.issued_by(Change((first,)))

    with patch(admission, "register", recorded), patch(admission, "issued_by", issued_by):
        yield


def drained_nodes_get_new_segments() -> Mistake:
    """R115: a node that is to be empty is eligible like any other."""
    return patch(placement, "eligible_nodes", _with_drained)


def drained_copies_count() -> Mistake:
    """R115: nobody makes others of the copies on a node that is to be empty."""

    def counts(self: Repairer, node_id: NodeId) -> bool:
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return down_ms is None or down_ms < self._timing.lost_replica_grace_ms

    return patch(Repairer, "_counts", counts)


def another_copy_goes_first() -> Mistake:
    """R115: of the copies that are too many, that of the drained node stays."""

    def gain(state: ClusterState, sound: Sequence[NodeId], node_id: NodeId) -> Any:
        return (not state.nodes[node_id].is_drained, node_id)

    return patch(sealed_copies, "_gain", gain)


def _with_drained(state: ClusterState, live: Liveness) -> list[NodeRecord]:
    return [state.nodes[each] for each in sorted(state.nodes) if live.is_eligible(each)]
