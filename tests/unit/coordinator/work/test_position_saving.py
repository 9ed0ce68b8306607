"""Saving positions: through the store, shared transactions, another coordinator in between."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from icecore.errors import (
    InvalidRequestError,
    NotCoordinatorError,
    PositionConflictError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.model import NodeState
from icecore.process.system import SystemClock, SystemRng
from icecore_coordinator.decisions.position_changes import Save
from icecore_coordinator.decisions.topic_changes import create_topic
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.work import position_saving
from icecore_coordinator.work.position_saving import POSITIONS_PER_CALL, PositionSaving
from tests.support.cluster_states import ALL, SETTINGS, TOPIC, registered


class CountingStore:
    """A store that counts what it commits."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._store = SqliteStore(database)
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, *given: Any) -> bool:
        self.commits += 1
        return await self._store.txn(*given)


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(":memory:")
    yield database
    database.close()


async def opened(database: SqliteDatabase) -> tuple[PositionSaving, Ledger, CountingStore]:
    """With a topic of 1,000 partitions, made by whoever is first."""
    store: Any = CountingStore(database)
    ledger = Ledger(store, SystemRng())
    await ledger.open()
    if not ledger.state.topics:
        live = Liveness()
        for node_id, incarnation in ALL.items():
            node = registered(node_id, incarnation)
            await ledger.decide(lambda _, each=node: Change((each,)))  # type: ignore[misc]
            live.note(node_id, state=NodeState.UP, is_connected=True)
        await ledger.decide(lambda state: create_topic(state, live, "t", TOPIC, 1_000, SETTINGS))
    return PositionSaving(ledger, SystemClock()), ledger, store


def all_at(offset: int, version: int, count: int = 1) -> list[tuple[bytes, Save]]:
    return [(TOPIC, Save(number, offset, version)) for number in range(count)]


async def test_whose_save_shared_a_change_in_doubt_hears_nothing_definite(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, _, store = await opened(database)
    txn = store.txn

    async def lost(*what: Any) -> bool:
        await txn(*what)
        raise UnavailableError("the answer of the transaction was lost")

    monkeypatch.setattr(store, "txn", lost)
    saves = [saving.save(name, 7, all_at(5, 0)) for name in ("first", "second")]
    ends = await asyncio.gather(*saves, return_exceptions=True)
    assert all(isinstance(each, UnavailableError) for each in ends), ends
    _, newer, _ = await opened(database)
    assert newer.state.positions.count == 2, "both are stored"


async def test_positions_are_there_for_the_next_coordinator(database: SqliteDatabase) -> None:
    saving, ledger, _ = await opened(database)
    assert await saving.save("job", 7, all_at(5, 0, 1_000)) == [1] * 1_000
    assert await saving.save("job", 7, all_at(6, 1)) == [2]
    following, newer, _ = await opened(database)
    assert newer.state.positions.records == ledger.state.positions.records
    assert newer.state.positions.count == 1_000
    assert await following.save("job", 8, all_at(7, 2)) == [3]
    with pytest.raises(NotCoordinatorError):
        await saving.save("job", 7, all_at(8, 2))
    third, last, _ = await opened(database)
    [first, *_] = last.state.positions.page("job", "", 1)
    assert (first.positions[0].offset, first.positions[0].version) == (7, 3)
    [error] = await third.save("job", 7, all_at(8, 2))
    assert isinstance(error, PositionConflictError)


async def test_saves_at_one_time_share_transactions(database: SqliteDatabase) -> None:
    saving, ledger, store = await opened(database)
    store.commits = 0
    calls = (saving.save(f"job{number}", number, all_at(5, 0)) for number in range(200))
    assert await asyncio.gather(*calls) == [[1]] * 200
    assert store.commits <= 6
    assert ledger.state.positions.count == 200


async def test_two_of_a_name_at_one_time(database: SqliteDatabase) -> None:
    saving, ledger, _ = await opened(database)
    outcomes = await asyncio.gather(*(saving.save("job", n, all_at(n, 0)) for n in range(5)))
    won = [each for [each] in outcomes if each == 1]
    lost = [each for [each] in outcomes if isinstance(each, PositionConflictError)]
    assert (len(won), len(lost)) == (1, 4)
    assert ledger.state.positions.count == 1


async def test_who_is_cancelled_leaves_the_others_alone(database: SqliteDatabase) -> None:
    saving, _, _ = await opened(database)
    tasks = [asyncio.ensure_future(saving.save(f"job{n}", n, all_at(5, 0))) for n in range(10)]
    await asyncio.sleep(position_saving.LINGER_S / 5)
    tasks[0].cancel()
    tasks[3].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each for each in found if isinstance(each, list)] == [[1]] * 8
    assert not saving._waiting or len(saving._waiting) == 1, "taken along by the next one"
    await saving.save("late", 1, all_at(1, 0))
    assert not saving._waiting


async def test_one_topic_that_is_gone_spares_the_others(database: SqliteDatabase) -> None:
    saving, _, _ = await opened(database)
    gone, kept = await saving.save("job", 7, [(b"x" * 16, Save(0, 1, 0)), *all_at(5, 0)])
    assert isinstance(gone, UnknownTopicError) and kept == 1


@pytest.mark.parametrize(
    "asked", [[], all_at(1, 0) * 2, [(TOPIC, Save(n, 1, 0)) for n in range(POSITIONS_PER_CALL + 1)]]
)
async def test_what_is_no_call_is_refused(
    database: SqliteDatabase, asked: list[tuple[bytes, Save]]
) -> None:
    saving, ledger, _ = await opened(database)
    with pytest.raises(InvalidRequestError):
        await saving.save("job", 7, asked)
    with pytest.raises(InvalidRequestError):
        await saving.save("a/b", 7, all_at(1, 0))
    assert not ledger.state.positions.records


async def test_deletion(database: SqliteDatabase) -> None:
    saving, ledger, _ = await opened(database)
    await saving.save("job", 7, all_at(5, 0, 1_000))
    await saving.save("other", 7, all_at(5, 0))
    assert await saving.delete("job", "t") == 1_000
    assert await saving.delete("job", "") == 0
    assert ledger.state.positions.count == 1
    with pytest.raises(UnknownTopicError):
        await saving.delete("job", "missing")
    assert await saving.save("job", 7, all_at(5, 0)) == [2], "versions go on above"
