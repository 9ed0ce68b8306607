"""Rolls segments so that nodes lead about as many, and hold about as many, as each other.

A node that was away leads nothing when it comes back, and a new node has nothing at all. Segments
roll by themselves where there is traffic; the rest is evened out here, a few at a time and only
while nothing else is wrong. A person may ask for it at once. ``decisions/balance.py`` decides.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from icecore.model import NodeId, SegmentId
from icecore_coordinator.decisions.balance import MOVES_MAX, Move, is_calm, moves
from icecore_coordinator.nodes.fan_out import by_node
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.segments.rolls import ROLLS_MIN, RollPace, ask_to_roll
from icecore_coordinator.work.worker_ports import WorkerPorts

ASKED_MS: Final = 600_000.0
"""How long a person's request holds: by then whatever does not roll has been tried often."""


class Balancer:
    """Level-triggered; keeps only what was asked for, and until when a person's request holds."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._live = ports.live
        self._heard = ports.heard
        self._copies = ports.copies
        self._clock = ports.clock
        self._timing = ports.timing
        retry_ms = ports.timing.roll_retry_ms
        self._pace = RollPace(ports.clock, retry_ms)
        self._asking: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, retry_ms, max(retry_ms, ports.timing.balance_ms)
        )
        self._asked_until_ms = 0.0
        self.wake = asyncio.Event()
        """Begins a look before its time."""

    def plan(self) -> list[Move]:
        """Choose the moves of this moment, at most ``MOVES_MAX``."""
        return moves(self._ledger.state, self._live, self._has_records, MOVES_MAX)

    def begin(self) -> list[Move]:
        """Begin at once, also while a node is away, and go on until all is even. Return the plan.

        A coordinator that ends meanwhile forgets that it was asked; the next one looks by itself.
        """
        planned = self.plan()
        if planned:
            self._asked_until_ms = self._clock.monotonic_ms() + ASKED_MS
            self.wake.set()
        return planned

    def balance(self, is_dry_run: bool) -> list[Move]:
        """Carry out what a person asks for; return the moves."""
        return self.plan() if is_dry_run else self.begin()

    def wait_ms(self) -> float:
        """Return how long to wait before the next look."""
        return self._timing.audit_ms if self._is_asked() else self._timing.balance_ms

    async def look(self) -> None:
        """Ask leaders for a few rolls, if they help and nothing else goes on."""
        state = self._ledger.state
        self._asking.forget(lambda segment_id: segment_id not in state.unsealed)
        room = self._pace.room(state.unsealed.__contains__)
        is_quiet = not state.short and self._copies.is_all_well and is_calm(state, self._live)
        if not self._is_asked() and not (is_quiet and all(map(self._is_ripe, state.nodes))):
            return
        planned = self.plan()
        if not planned:
            self._asked_until_ms = 0.0
        due = [each for each in planned if self._asking.is_due(each.segment.segment_id)]
        await self._ask(due[: min(room, ROLLS_MIN)])

    def _is_asked(self) -> bool:
        return self._clock.monotonic_ms() < self._asked_until_ms

    async def _ask(self, chosen: Sequence[Move]) -> None:
        taken = self._asking.take(each.segment.segment_id for each in chosen)
        limit_s = self._timing.node_call_ms / 1000
        try:
            for segment_id in taken:
                self._pace.ask(segment_id)
            for leader, mine in by_node(
                (each.segment.leader, each.segment) for each in chosen
            ).items():
                await ask_to_roll(self._calls, leader, mine, "balance", limit_s)
        finally:
            for segment_id in taken:
                self._asking.release(segment_id, is_done=False)

    def _has_records(self, segment_id: SegmentId) -> bool:
        """As far as its leader has told: leaders tell of high watermarks that moved."""
        known = self._heard.high_watermark(segment_id)
        return (
            known is not None
            and known > self._ledger.state.segments[segment_id].segment.base_offset
        )

    def _is_ripe(self, node_id: NodeId) -> bool:
        since = self._live.of(node_id).up_since_ms
        now = self._clock.monotonic_ms()
        return since is not None and now - since >= self._timing.roll_up_wait_ms
