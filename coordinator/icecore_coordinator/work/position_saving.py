"""Saves positions of many readers: those that come at about the same time share a transaction.

Every consumer saves every few seconds. One transaction each would sync the disk for each of them;
a wait of a few milliseconds, which nobody notices, makes it one sync for all.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.rpc.ports import Clock
from icecore_coordinator.decisions.position_changes import (
    Outcome,
    Save,
    check_name,
    delete_positions,
    save_positions,
    slot_of,
)
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PositionRecord

POSITIONS_PER_CALL: Final = 1_000
LINGER_S: Final = 0.005
CALLS_MAX: Final = 100
"""Most calls that share a transaction: other decisions wait for it."""


@dataclass(slots=True)
class _Slot:
    """Saves of one call that go into one record."""

    name: str
    instance: int
    topic_id: bytes
    now_ms: int
    saves: list[Save] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Index of each save in the call."""
    outcomes: list[Outcome] = field(default_factory=list)

    def decide(self, state: ClusterState) -> Change:
        """Its decision, which may be asked for twice."""
        change, self.outcomes = save_positions(
            state, self.name, self.instance, self.topic_id, self.saves, self.now_ms
        )
        return change


@dataclass(slots=True, eq=False)
class _Call:
    """One call, and whether it is decided."""

    slots: list[_Slot]
    results: list[Change | IcecoreError] | None = None


class PositionSaving:
    """Saves and deletes positions.

    Args:
        ledger: Where they are kept.
        clock: For when they were saved.
    """

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = asyncio.Lock()
        self._waiting: list[_Call] = []

    async def save(
        self, name: str, instance: int, asked: Sequence[tuple[bytes, Save]]
    ) -> list[Outcome]:
        """Store positions, each on its own.

        Args:
            name: Under which the reader saves.
            instance: Of the reader.
            asked: Topic id and save.

        Returns:
            What became of each, in the same order.

        Raises:
            InvalidRequestError: There are none or too many, a partition twice, or it is no name.
            NotCoordinatorError: Another coordinator took over.
            UnavailableError: This one has ended; some may be stored.
        """
        check_name(name)
        if not 1 <= len(asked) <= POSITIONS_PER_CALL:
            raise InvalidRequestError(f"1 to {POSITIONS_PER_CALL} positions at a time")
        if len({(topic_id, each.partition) for topic_id, each in asked}) < len(asked):
            raise InvalidRequestError("name each partition once")
        slots: dict[tuple[bytes, int], _Slot] = {}
        now_ms = self._clock.now_ms()
        for place, (topic_id, each) in enumerate(asked):
            key = (topic_id, slot_of(each.partition))
            slot = slots.setdefault(key, _Slot(name, instance, topic_id, now_ms))
            slot.saves.append(each)
            slot.places.append(place)
        call = _Call(list(slots.values()))
        self._waiting.append(call)
        results = await self._decided(call)
        outcomes: dict[int, Outcome] = {}
        for slot, result in zip(call.slots, results, strict=True):
            failed = isinstance(result, IcecoreError)
            found = [result] * len(slot.places) if failed else slot.outcomes
            outcomes.update(zip(slot.places, found, strict=True))  # type: ignore[arg-type]
        return [outcomes[place] for place in range(len(asked))]

    async def _decided(self, call: _Call) -> list[Change | IcecoreError]:
        """Whoever is first decides for all that came meanwhile."""
        async with self._lock:
            if call.results is None:
                try:
                    await asyncio.sleep(LINGER_S)
                    calls = [call, *(each for each in self._waiting if each is not call)]
                    calls = calls[:CALLS_MAX]
                    slots = [slot for each in calls for slot in each.slots]
                    results = iter(await self._ledger.decide_all([each.decide for each in slots]))
                finally:  # who fails or is cancelled leaves the others' to the next one
                    self._waiting.remove(call)
                for each in calls:
                    each.results = [next(results) for _ in each.slots]
                    if each is not call:
                        self._waiting.remove(each)
            assert call.results is not None
            return call.results

    async def delete(self, name: str, topic: str) -> int:
        """Delete what is saved under a name, of one topic or, if that is empty, of all.

        Returns:
            How many positions there were.

        Raises:
            InvalidRequestError: It is no name.
            UnknownTopicError: There is no such topic.
        """
        check_name(name)
        topic_id = self._ledger.state.topic(topic).topic_id if topic else b""
        deleted = 0
        while True:
            change = await self._ledger.decide(
                lambda state: delete_positions(state, name, topic_id)
            )
            if not change.deletes:
                return deleted
            records = (each for each in change.deletes if isinstance(each, PositionRecord))
            deleted += sum(len(each.positions) for each in records)
