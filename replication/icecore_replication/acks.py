"""Produce requests that wait for their acknowledgement, oldest first per acks level.

A part of ``LeaderCore``. A request waits until its batch is durable where its own acks level wants
it; a resent duplicate waits the same way for the batch that is in the log already. Rules R2, R3 and
R22 of docs/design/protocol.md.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from icecore.errors import LeaderLostError, NotEnoughReplicasAfterAppendError
from icecore.model import Acks, NodeId
from icecore_replication.effects import CompleteProduce, FailProduce, LeaderEffect

_LEVELS: Final = tuple(Acks)
"""Walking over the enumeration itself takes three times as long, for each new leader."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """One unanswered request for the batch at ``[base_offset, end_offset)``."""

    request_id: int
    base_offset: int
    end_offset: int
    duplicate: bool = False


class PendingAcks:
    """All unanswered requests of one segment.

    Args:
        base_offset: Of the segment.
        node_id: The leader, whose own disk is what ``acks=leader`` waits for.
    """

    def __init__(self, base_offset: int, node_id: NodeId) -> None:
        self._node_id = node_id
        self._queues: dict[Acks, deque[Waiter]] = {acks: deque() for acks in _LEVELS}
        self._duplicates: dict[Acks, list[Waiter]] = {acks: [] for acks in _LEVELS}
        self._unanswered: set[int] = set()
        self._ends = dict.fromkeys(_LEVELS, base_offset)
        self._due = True
        self._lease_valid = True
        self.acked_end = base_offset
        """End of everything acked at ``all`` or ``quorum``. Invariant: never goes back."""

    def __len__(self) -> int:
        return len(self._unanswered)

    @property
    def lease_valid(self) -> bool:
        """Without it nothing more is acked at ``leader``."""
        return self._lease_valid

    def change_lease(self, valid: bool) -> None:
        """The coordinator renewed the lease, or it ran out."""
        self._lease_valid = valid
        self._due = True

    def take_due(self) -> bool:
        """Return whether a duplicate or a lease may have made a request answerable since the last
        call, although no end moved.
        """
        due, self._due = self._due, False
        return due

    def add(self, acks: Acks, waiter: Waiter) -> None:
        """Wait for a batch that was just given the highest offsets so far."""
        self._queues[acks].append(waiter)
        self._unanswered.add(waiter.request_id)

    def attach(self, acks: Acks, waiter: Waiter) -> None:
        """Wait for a batch that is in the log already, at any offsets."""
        self._due = True
        self._duplicates[acks].append(waiter)
        self._unanswered.add(waiter.request_id)

    def abandon(self, request_id: int) -> None:
        """Nobody waits for this answer any more; the append stays."""
        self._unanswered.discard(request_id)

    def complete(
        self,
        isr_end: int,
        quorum_end: int,
        enough_in_sync: bool,
        durable: Mapping[NodeId, int],
        effects: list[LeaderEffect],
    ) -> None:
        """Answer every request whose batch ends at or below its level's end.

        Args:
            isr_end: For ``all``.
            quorum_end: For ``quorum``.
            enough_in_sync: The committed set has ``min_insync_replicas`` members; ``all`` fails
                without.
            durable: Ends by replica: the leader's own for ``leader``, all for ``durable_copies``.
            effects: Answers are appended here.
        """
        ends = self._ends
        ends[Acks.ALL], ends[Acks.QUORUM] = isr_end, quorum_end
        if self._lease_valid:
            ends[Acks.LEADER] = durable[self._node_id]
        for acks, queue in self._queues.items():
            end = ends[acks]
            while queue and queue[0].end_offset <= end:
                self._answer(acks, queue.popleft(), enough_in_sync, durable, effects)
            if self._duplicates[acks]:
                self._complete_duplicates(acks, end, enough_in_sync, durable, effects)

    def fail_all(self, why: str, effects: list[LeaderEffect]) -> None:
        """Answer everybody LEADER_LOST: their batches may or may not become visible."""
        effects.extend(
            FailProduce(waiter.request_id, LeaderLostError(why)) for waiter in self._drain()
        )

    def complete_all(self, durable: Mapping[NodeId, int], effects: list[LeaderEffect]) -> None:
        """The segment was sealed with everything in it: nobody's batch can be lost any more."""
        effects.extend(_completion(waiter, durable) for waiter in self._drain())

    def _drain(self) -> list[Waiter]:
        everyone = [
            waiter
            for waiters in (*self._queues.values(), *self._duplicates.values())
            for waiter in waiters
            if waiter.request_id in self._unanswered
        ]
        for queue in self._queues.values():
            queue.clear()
        for late in self._duplicates.values():
            late.clear()
        self._unanswered.clear()
        return sorted(everyone, key=lambda waiter: (waiter.end_offset, waiter.request_id))

    def _complete_duplicates(
        self,
        acks: Acks,
        end: int,
        enough_in_sync: bool,
        durable: Mapping[NodeId, int],
        effects: list[LeaderEffect],
    ) -> None:
        waiting = self._duplicates[acks]
        self._duplicates[acks] = [waiter for waiter in waiting if waiter.end_offset > end]
        for waiter in waiting:
            if waiter.end_offset <= end:
                self._answer(acks, waiter, enough_in_sync, durable, effects)

    def _answer(
        self,
        acks: Acks,
        waiter: Waiter,
        enough_in_sync: bool,
        durable: Mapping[NodeId, int],
        effects: list[LeaderEffect],
    ) -> None:
        if waiter.request_id not in self._unanswered:
            return
        self._unanswered.discard(waiter.request_id)
        if acks is Acks.ALL and not enough_in_sync:
            error = NotEnoughReplicasAfterAppendError(
                "the in-sync set shrank below min_insync_replicas after the append"
            )
            effects.append(FailProduce(waiter.request_id, error))
            return
        if acks is not Acks.LEADER and waiter.end_offset > self.acked_end:
            self.acked_end = waiter.end_offset
        effects.append(_completion(waiter, durable))


def _completion(waiter: Waiter, durable: Mapping[NodeId, int]) -> CompleteProduce:
    end = waiter.end_offset
    copies = sum([node_end >= end for node_end in durable.values()])
    return CompleteProduce(waiter.request_id, waiter.base_offset, copies, waiter.duplicate)
