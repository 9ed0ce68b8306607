"""Seeded mistakes about who may answer and from which disk; see ``mistakes``."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from icecore.errors import NotCoordinatorError, UnavailableError
from icecore.rpc.ports import UnaryHandler
from icecore.v1 import coordinator_pb2
from icecore_coordinator.decisions.adoption import adopt, partition_chain
from icecore_coordinator.decisions.node_changes import Registration, register
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.services import coordinator_service
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, CounterRecord
from icecore_coordinator.work import admission
from icecore_node.identity.identity import Identity
from icecore_node.membership.registration import Gate
from icecore_node.membership.updates import Updates
from tests.simulation.mistakes import Mistake, patch
from tests.simulation.mistakes_belief import any_coordinator_epoch_is_believed
from tests.simulation.mistakes_repeats import orders_for_any_incarnation


@contextmanager
def any_incarnation_answers() -> Iterator[None]:
    """R56 and, each of which alone would be enough, R57, R60 and R110: a node serves before it is
    registered, carries out what is meant for another incarnation, under a coordinator epoch that
    it has not heard of, and the coordinator takes what any says."""

    async def call(
        self: NodeCalls, node_id: int, request: Any, decode: Any, _: int, timeout_s: float
    ) -> Any:
        address = self._state.nodes[node_id].address
        method = "/icecore.v1.NodeService/" + type(request).__name__.removesuffix("Request")
        body = request.SerializeToString()
        return decode(await self._net.call(address, method, body, timeout_s=timeout_s))

    def guarded(self: Gate, handler: UnaryHandler, *_: object) -> UnaryHandler:
        return handler

    with (
        patch(NodeCalls, "_call", call),
        patch(Gate, "_guarded", guarded),
        orders_for_any_incarnation(),
        any_coordinator_epoch_is_believed(),
    ):
        yield


@contextmanager
def disk_may_go_back() -> Iterator[None]:
    """R58: the disk counter is not compared; and R59, which alone would be enough here."""

    def blind(state: ClusterState, live: Liveness, asked: Registration, _: int) -> Any:
        return register(state, live, asked)

    with patch(admission, "register", blind), log_may_go_back():
        yield


def lost_answer_is_refusal() -> Mistake:
    """R18: a coordinator whose store broke in a transaction says that nothing was stored."""
    write = Ledger._write

    async def wrong(self: Ledger, change: Change) -> None:
        try:
            await write(self, change)
        except UnavailableError as error:
            raise NotCoordinatorError(error.message) from error

    return patch(Ledger, "_write", wrong)


def log_may_go_back() -> Mistake:
    """R59: a log that is shorter than its node once said counts as intact."""
    return patch(admission, "shrunk_logs", lambda *_: [])


def watermarks_forgotten() -> Mistake:
    """R32: the watermarks that leaders told are gone with the coordinator."""
    load = ReportedState.load

    def forget(self: ReportedState) -> None:
        load(self)
        for slot in self._slots.values():
            slot.high_watermarks.clear()

    return patch(ReportedState, "load", forget)


@contextmanager
def metadata_may_go_back() -> Iterator[None]:
    """R94: neither nodes nor the coordinator compare revisions of the metadata store."""
    with (
        patch(Identity, "check_revision", lambda *_: None),
        patch(coordinator_service, "check_heard_revision", lambda *_: None),
    ):
        yield


@contextmanager
def adopted_ids_are_given_out_again() -> Iterator[None]:
    """R109: ids go on where the old store left off, whatever nodes hold."""

    count = adopt._counters

    def as_stored(state: ClusterState, *told: Any) -> dict[str, CounterRecord]:
        counters = {name: next_of(state, name) for name in adopt._COUNTED}
        stored = {name: replace(each, version=each.version + 1) for name, each in counters.items()}
        return {**count(state, *told), **stored}

    with patch(adopt, "_counters", as_stored):
        yield


@contextmanager
def only_seals_come_back() -> Iterator[None]:
    """R109: what is not sealed counts for nothing when metadata are adopted."""
    with patch(partition_chain._Log, "_tail", lambda *_: None):
        yield


def changes_of_nodes_are_lost() -> Mistake:
    """R113: a message has changes of nodes, and its node takes none of them."""
    take = Updates._take_nodes

    def wrong(self: Updates, update: coordinator_pb2.HeartbeatResponse) -> None:
        if update.nodes:
            take(self, update)
        self._nodes_version = update.nodes_version

    return patch(Updates, "_take_nodes", wrong)


def lost_changes_of_nodes_are_passed_over() -> Mistake:
    """R113: a node goes on without a change of nodes that was lost."""
    return patch(Updates, "_check_nodes_version", lambda *_: None)
