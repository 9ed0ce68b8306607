"""The ledger of a coordinator that another one has replaced."""

from collections.abc import Iterator

import pytest

from icecore.errors import NotCoordinatorError
from icecore.process.system import SystemRng
from icecore_coordinator.ledger import Ledger
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
