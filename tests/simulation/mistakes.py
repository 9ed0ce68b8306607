"""Seeded mistakes in the protocol: each puts one into production's code while its block is open.

Functions are replaced where they are used. What a mistake breaks is named by its rule in
docs/design/protocol.md; ``mutants`` says which world shows it.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from icecore.errors import IcecoreError, OutOfOrderSequenceError
from icecore.model import Segment, SegmentState
from icecore.v1 import coordinator_pb2
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.stores.sqlite_store import SqliteStore
from icecore_coordinator.work.recovery.decided_case import DecidedCase
from icecore_coordinator.work.recovery.recovery import Recovery
from icecore_node.identity.identity import Lease
from icecore_node.maintenance.copying import SegmentCopier
from icecore_node.registry.assignments import Assignments
from icecore_node.registry.set_aside import SettingAside
from icecore_node.replica.life import CopyWhole, Led
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.replication.leader import Leader
from icecore_node.serving.orders import fencing
from icecore_node.serving.orders.node_service import NodeService
from icecore_node.storage.control.control_promises import Promises
from icecore_replication import isr, recovery, sealing, watermark
from icecore_replication.effects import CompleteProduce
from icecore_replication.follower import FollowerCore
from icecore_replication.in_sync import InSync
from icecore_replication.inputs import ProduceReceived
from icecore_replication.leader import LeaderCore
from icecore_replication.producers import Accepted, Duplicate, ProducerTable
from icecore_replication.recovery import Decision, FenceReply

Mistake = AbstractContextManager[object]


def patch(owner: object, name: str, wrong: object) -> Mistake:
    """Put a mistake in the place of a function, a class or a value.

    Raises:
        TypeError: It can't be called as that function is. Production has moved on, and any world
            would notice that instead of the mistake.
    """
    right = getattr(owner, name)
    if inspect.isfunction(right) and inspect.isfunction(wrong):
        given = inspect.signature(right).parameters.values()
        by_place = [each for each in given if each.kind <= each.POSITIONAL_OR_KEYWORD]
        by_name = [each.name for each in given if each.kind is each.KEYWORD_ONLY]
        inspect.signature(wrong).bind(*by_place, **dict.fromkeys(by_name))
    return mock.patch.object(owner, name, wrong)


# --- acknowledgements -----------------------------------------------------------------------------


def ack_all_on_leader_alone() -> Mistake:
    """R4: ``acks=all`` does not wait for the in-sync set."""

    def all_end(durable: Mapping[int, int], maximal_isr: Sequence[int]) -> int:
        return max(durable.values())

    return mock.patch("icecore_replication.in_sync.all_end", all_end)


def quorum_of_one() -> Mistake:
    """R5: ``acks=quorum`` counts the leader only."""

    def quorum_end(
        durable: Mapping[int, int], replicas: Sequence[int], quorum: int, own: int
    ) -> int:
        return own

    return mock.patch("icecore_replication.in_sync.quorum_end", quorum_end)


def quorum_over_isr() -> Mistake:
    """R5: a majority of the in-sync set, however small it is, instead of one of all replicas."""
    ends = InSync.ends

    def wrong(self: InSync, *arguments: Any) -> tuple[int, int]:
        def quorum_end(durable: Mapping[int, int], _: object, __: int, own: int) -> int:
            members = self.state.isr
            return watermark.quorum_end(durable, members, len(members) // 2 + 1, own)

        with mock.patch("icecore_replication.in_sync.quorum_end", quorum_end):
            return ends(self, *arguments)

    return patch(InSync, "ends", wrong)


def follower_reports_log_end() -> Mistake:
    """R12: a follower reports what it has received, not what is durable."""
    receive = FollowerCore._receive

    def eager(self: FollowerCore, *arguments: Any) -> None:
        receive(self, *arguments)
        self.durable_end_offset = self.log_end_offset

    return patch(FollowerCore, "_receive", eager)


def lease_from_answer() -> Mistake:
    """R1, R2: the lease is counted from when the answer to a heartbeat came, not from the
    heartbeat."""
    renew = Lease.renew

    def late(self: Lease, sequence: int) -> None:
        if sequence in self._sent_at_ms:
            self._sent_at_ms[sequence] = self._clock.monotonic_ms()
        renew(self, sequence)

    return patch(Lease, "renew", late)


# --- idempotent producers -------------------------------------------------------------------------


def no_duplicates_known() -> Mistake:
    """R21: a resent batch is appended again."""
    accept = Accepted()
    return patch(ProducerTable, "check", lambda self, *numbers: accept)


def gaps_are_appended() -> Mistake:
    """R21: what was sent behind a refused batch is appended without it."""
    check = ProducerTable.check

    def lenient(self: ProducerTable, *numbers: int) -> Accepted | Duplicate:
        try:
            return check(self, *numbers)
        except OutOfOrderSequenceError as error:
            if numbers[2] > int(error.metadata["expected"]):
                return Accepted()
            raise

    return patch(ProducerTable, "check", lenient)


def dedupe_answers_before_commit() -> Mistake:
    """R22: a duplicate is acknowledged although the batch it repeats is not."""

    def attach(self: LeaderCore, item: ProduceReceived, found: Duplicate) -> None:
        answer = CompleteProduce(item.request_id, found.base_offset, 1, duplicate=True)
        self._effects.append(answer)

    return patch(LeaderCore, "_attach_duplicate", attach)


def successor_skips_snapshot() -> Mistake:
    """R20: a new segment starts without the producers of the ones before."""
    return mock.patch(
        "icecore_node.serving.orders.opening.ProducerTable", lambda *snapshot: ProducerTable()
    )


# --- in-sync set ----------------------------------------------------------------------------------


def shrink_before_answer() -> Mistake:
    """R14: a member proposed for removal no longer counts."""

    def maximal(state: isr.IsrState) -> tuple[int, ...]:
        if isinstance(state, isr.PendingShrink):
            return state.proposal.isr
        return state.maximal if isinstance(state, isr.PendingExpand) else state.isr

    return patch(isr, "maximal_isr", maximal)


def expand_only_after_answer() -> Mistake:
    """R14: a new member counts once the coordinator has answered."""
    return patch(isr, "maximal_isr", lambda state: state.isr)


def expand_at_quorum_end() -> Mistake:
    """R16: a follower joins at the quorum's end, although a smaller set has acked more."""

    def early(self: LeaderCore) -> int:
        quorum, own = self.segment.settings.quorum, self.durable_end_offset
        return watermark.quorum_end(self.durable_by_node, self.segment.replicas, quorum, own)

    return patch(LeaderCore, "_expand_floor", early)


# --- live seal ------------------------------------------------------------------------------------


def append_while_sealing() -> Mistake:
    """R29: the seal is on its way, and the leader goes on."""
    right = sealing.gives_out_offsets
    return patch(
        sealing,
        "gives_out_offsets",
        lambda roll: right(roll) or isinstance(roll, sealing.Sealing),
    )


@contextmanager
def seal_without_catch_up() -> Iterator[None]:
    """R27 and, which alone would be enough, R28: who seals neither waits for followers nor compares
    their digests."""
    with (
        patch(sealing, "members_at_end", lambda members, *_: set(members)),
        patch(sealing, "agreeing_nodes", lambda leader, nodes, digests: tuple(sorted(nodes))),
    ):
        yield


# --- recovery -------------------------------------------------------------------------------------


def report_before_fence() -> Mistake:
    """R30: a replica says where its log ends, and stops appending a little later."""
    fence = NodeService.fence

    async def stop_later(self: NodeService, body: bytes, context: Any) -> None:
        await asyncio.sleep(0.1)
        with contextlib.suppress(IcecoreError):
            await fence(self, body, context)

    async def report(self: NodeService, body: bytes, context: Any) -> bytes:
        answer = coordinator_pb2.FenceResponse(incarnation=self._context.identity.incarnation)
        for ref in coordinator_pb2.FenceRequest.FromString(body).segments:
            replica, reply = self._fencing._table.get(ref.segment_id), answer.replicas.add()
            if replica is not None and replica.life.is_intact and replica.base_offset >= 0:
                fencing.describe(replica, reply)
        asyncio.get_running_loop().create_task(stop_later(self, body, context))
        return answer.SerializeToString()

    return patch(NodeService, "fence", report)


def fence_lost_on_crash() -> Mistake:
    """R30: promises are kept in memory only."""

    def forget(self: Promises, promises: Sequence[tuple[int, int]], coordinator_epoch: int) -> None:
        self.check_coordinator_epoch(coordinator_epoch)
        self.note(promises)

    return patch(Promises, "persist", forget)


@contextmanager
def leader_resumes() -> Iterator[None]:
    """Principle "a restarted process never resumes leadership": it belongs to a node."""

    def lead(self: Assignments, replica: Replica, record: Segment) -> None:
        leader = Leader(self._leading, replica, record, self.apply)
        end = leader.core._log.end_offset = replica.log.tail.end_offset
        leader.core._in_sync.followers.durable[self._identity.node_id] = end
        replica.move(Led(leader))
        self._leaders.put(leader)
        self._on_leader(leader)

    with (
        mock.patch(
            "icecore_replication.leading.may_lead", lambda segment, node, _: segment.leader == node
        ),
        patch(Assignments, "_lead", lead),
        patch(ClusterState, "leader_is_live", lambda self, each, live: live.is_live(each.leader)),
    ):
        yield


def missing_is_empty() -> Mistake:
    """Principle "missing is not empty": a node says of a replica it does not have that it ends at
    its base."""
    fence = NodeService.fence

    async def wrong(self: NodeService, body: bytes, context: Any) -> bytes:
        answer = coordinator_pb2.FenceResponse.FromString(await fence(self, body, context))
        asked = coordinator_pb2.FenceRequest.FromString(body).segments
        for ref, reply in zip(asked, answer.replicas, strict=True):
            if self._fencing._table.get(ref.segment_id) is None:
                reply.intact = True
        return answer.SerializeToString()

    return patch(NodeService, "fence", wrong)


def rebuilt_without_certificate() -> Mistake:
    """R44: a node that has lost its replica of an active segment begins it anew, and counts."""
    apply = Assignments.apply

    def begin_anew(self: Assignments, segment: Segment) -> None:
        is_ours = self._identity.node_id in segment.replicas
        is_lost = is_ours and self._table.get(segment.segment_id) is None
        if segment.state is SegmentState.ACTIVE and is_lost:
            asyncio.get_running_loop().create_task(_rebuild(self, segment))
        else:
            apply(self, segment)

    return patch(Assignments, "apply", begin_anew)


async def _rebuild(node: Assignments, segment: Segment) -> None:
    context, table, damage, seals = node._leading.context, node._table, node._damage, node._seals
    copier = SegmentCopier(
        context=context,
        table=table,
        orders=seals._orders,
        damage=damage,
        reading=ReplicaReading(context, damage),
        seals=seals,
        aside=SettingAside(context.store, table, damage),
    )
    with contextlib.suppress(IcecoreError):
        async with seals._orders.carry_out(
            segment.segment_id, context.identity.coordinator_epoch
        ) as order:
            donor = context.peers.address(segment.leader)
            replica = await copier._create(order, segment, None, donor)
        replica.move(CopyWhole())
        node._give_role(replica, segment)


def one_member_decides() -> Mistake:
    """R31: any member of the in-sync set knows the end, also of what a quorum has acked."""

    def may_decide(replies: Mapping[int, FenceReply], segment: Segment) -> Decision | None:
        members = tuple(node for node, reply in replies.items() if reply.intact)
        return Decision("S3", members) if set(members) & set(segment.isr) else None

    return mock.patch("icecore_coordinator.work.recovery.recovery_case.may_decide", may_decide)


def s3_without_isr_clause() -> Mistake:
    """R31: so many replicas decide that every quorum meets them; what a smaller in-sync set has
    acked is forgotten."""

    def may_decide(replies: Mapping[int, FenceReply], segment: Segment) -> Decision | None:
        settings = replace(segment.settings, min_insync_replicas=segment.settings.quorum)
        return recovery.may_decide(replies, segment.changed(settings=settings))

    return mock.patch("icecore_coordinator.work.recovery.recovery_case.may_decide", may_decide)


def seal_without_write_back() -> Mistake:
    """R33: a recovery seals what one replica holds, and lists the others too."""

    async def list_all(self: Recovery, cases: Sequence[DecidedCase]) -> list[DecidedCase]:
        state = self._ledger.state
        for case in cases:
            for node_id in case.targets(state, self._live):
                case.verified[node_id] = state.incarnation(node_id)
        return list(cases)

    return patch(Recovery, "_write_back_others", list_all)


def coordinator_epoch_not_compared() -> Mistake:
    """R36: whoever was coordinator once may still write."""
    return patch(SqliteStore, "_check_coordinator_epoch", lambda self: None)
