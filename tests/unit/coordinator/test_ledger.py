"""The ledger: decisions, who waits for them, and a coordinator that another one has replaced."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from icecore.errors import ConflictError, NotCoordinatorError, OutOfSpaceError, UnavailableError
from icecore.process.system import SystemRng
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import Change, CounterRecord, updated
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(":memory:")
    yield database
    database.close()


async def test_who_was_replaced_finds_out_without_a_change(database: SqliteDatabase) -> None:
    older = Ledger(SqliteStore(database), SystemRng())
    await older.open()
    await older.confirm()
    assert not older.lost.is_set()
    newer = Ledger(SqliteStore(database), SystemRng())
    await newer.open()
    with pytest.raises(NotCoordinatorError):
        await older.confirm()
    assert older.lost.is_set()
    await newer.confirm()
    assert not newer.lost.is_set()


class LosesAnswers(SqliteStore):
    """A store that does what it is asked, and breaks before it says so."""

    loses_from = 1
    asked = 0

    async def txn(self, *what: Any) -> bool:
        is_done = await super().txn(*what)
        self.asked += 1
        if self.asked > self.loses_from:
            raise UnavailableError("the answer of the transaction was lost")
        return is_done


async def test_a_change_whose_answer_was_lost_has_no_definite_end(
    database: SqliteDatabase,
) -> None:
    """A leader that took it for refused would acknowledge without a member that is stored."""
    ledger = Ledger(LosesAnswers(database), SystemRng())
    await ledger.open()
    with pytest.raises(UnavailableError) as caught:
        await ledger.decide(lambda state: counted(state, "a"))
    assert caught.value.indeterminate and ledger.lost.is_set()
    assert next_of((await opened(database)).state, "a").next_value == 2
    with pytest.raises(UnavailableError):  # it may be asked again by who was part of that change
        await ledger.decide(lambda state: counted(state, "a"))
    assert next_of((await opened(database)).state, "a").next_value == 2


async def test_a_list_that_is_stored_in_parts_has_no_definite_end(
    database: SqliteDatabase,
) -> None:
    ledger = await opened(database)
    write, newer = ledger._write, list[Ledger]()

    async def overtaken(change: Change) -> None:
        await write(change)
        if not newer:
            newer.append(await opened(database))

    ledger._write = overtaken  # type: ignore[method-assign]
    with pytest.raises(UnavailableError) as caught:
        await ledger.decide_each(["a", "a"], counted)
    assert caught.value.indeterminate
    assert next_of(newer[0].state, "a").next_value == 2


# --- waiting for what others commit ---------------------------------------------------------------


async def opened(database: SqliteDatabase) -> Ledger:
    ledger = Ledger(SqliteStore(database), SystemRng())
    await ledger.open()
    return ledger


def counted(state: ClusterState, name: str) -> Change:
    counter = next_of(state, name)
    return Change((updated(counter, next_value=counter.next_value + 1),))


async def test_each_item_is_decided_on_by_itself(database: SqliteDatabase) -> None:
    ledger = await opened(database)

    def decision(state: ClusterState, name: str) -> Change:
        if name == "bad":
            raise ConflictError(name)
        return counted(state, name)

    first, bad, again = await ledger.decide_each(["a", "bad", "a"], decision)
    assert isinstance(bad, ConflictError)
    assert isinstance(first, Change) and isinstance(again, Change)
    assert next_of(ledger.state, "a").next_value == 3


async def test_who_waits_looks_again_after_each_commit(database: SqliteDatabase) -> None:
    ledger = await opened(database)
    looks = 0

    def is_three(state: ClusterState) -> bool:
        nonlocal looks
        looks += 1
        return next_of(state, "a").next_value == 3

    waiting = asyncio.create_task(ledger.until(is_three, 30_000))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        await ledger.decide(lambda state: counted(state, "a"))
    assert await waiting and looks == 3
    assert await ledger.until(is_three, 0)


async def test_news_that_nobody_commits_wakes_them_too(database: SqliteDatabase) -> None:
    ledger = await opened(database)
    is_up = False
    waiting = asyncio.create_task(ledger.until(lambda _: is_up, 30_000))
    await asyncio.sleep(0)
    is_up = True
    ledger.note_news()
    assert await waiting
    assert not await ledger.until(lambda _: False, 1)


async def test_nobody_waits_for_a_coordinator_that_has_stopped(database: SqliteDatabase) -> None:
    older = await opened(database)
    waiting = asyncio.create_task(older.until(lambda _: False, 30_000))
    await asyncio.sleep(0)
    await opened(database)
    with pytest.raises(NotCoordinatorError):
        await older.confirm()
    with pytest.raises(UnavailableError):  # it may happen all the same
        await waiting


class Slow(SqliteStore):
    """A store whose answers come when they are let."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def txn(self, *given: Any) -> bool:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().txn(*given)


async def test_who_is_cancelled_leaves_no_change_half_known(database: SqliteDatabase) -> None:
    """The call of a client ends while the store works on its change: the change is stored and
    applied all the same, and the next one is based on it."""
    store = Slow(database)
    ledger = Ledger(store, SystemRng())
    await ledger.open()
    store.is_asked.clear()
    store.may_answer.clear()
    topics = CounterRecord("topics", 1, version=1)
    caller = asyncio.ensure_future(ledger.decide(lambda state: Change((topics,))))
    await store.is_asked.wait()
    caller.cancel()
    await asyncio.sleep(0)
    store.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ledger.state.metadata_revision == store.revision
    again = CounterRecord("topics", 2, version=2)
    await ledger.decide(lambda state: Change((again,)))
    assert not ledger.lost.is_set()
    assert (await store.get("counter/topics")) is not None


class Full(SqliteStore):
    """A store that has no room until somebody makes some."""

    has_room = False

    async def txn(self, *what: Any) -> bool:
        _, puts, deletes = what
        if (puts or deletes) and not self.has_room:
            raise OutOfSpaceError("there is no room: make some")
        return await super().txn(*what)


async def test_a_person_is_told_while_the_store_is_full(database: SqliteDatabase) -> None:
    store = Full(database)
    store.has_room = True
    ledger, told = Ledger(store, SystemRng()), list[str]()
    ledger.on_full = told.append
    await ledger.open()
    store.has_room = False
    for _ in range(2):
        with pytest.raises(OutOfSpaceError):
            await ledger.decide(lambda state: counted(state, "a"))
    assert told == ["there is no room: make some"] * 2
    assert ledger.full == told[0]
    assert not ledger.lost.is_set()
    await ledger.confirm()  # it changes nothing, and so tells nothing
    assert ledger.full
    store.has_room = True
    await ledger.decide(lambda state: counted(state, "a"))
    assert not ledger.full
