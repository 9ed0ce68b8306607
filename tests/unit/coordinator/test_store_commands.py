"""A store becomes a backup, and a backup a store: the same keys, versions and numbers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError, StorageError
from icecore.metadata_backup import BackupEntry, BackupHeader, BackupWriter
from icecore.process.system import SystemRng
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.cluster_state import next_of
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.store_commands import dump, main, restore
from icecore_coordinator.stores.metadata_store import Stored
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.stores.store_choice import SQLITE_FILE


async def filled(path: Path, changes: int = 2_500) -> SqliteStore:
    """A store with more records than a page has."""
    store = SqliteStore(path)
    ledger = Ledger(store, SystemRng())
    await ledger.open()
    for number in range(0, changes, 100):
        names = [f"c{each}" for each in range(number, number + 100)]
        counters = tuple(updated(next_of(ledger.state, name)) for name in names)
        await ledger.decide(lambda _, counters=counters: Change(counters))  # type: ignore[misc]
    return store


async def test_there_and_back(tmp_path: Path) -> None:
    store, path = await filled(tmp_path / "old" / SQLITE_FILE), tmp_path / "backup"
    told = await dump(store, path)
    new = SqliteStore(tmp_path / "new" / SQLITE_FILE)
    assert await restore(new, path) == told
    assert await new.scan("") == await store.scan("")
    assert new.revision == store.revision, "nodes take neither for the older one"
    assert await new.acquire_coordinator_epoch() == await store.acquire_coordinator_epoch()
    await store.close()
    await new.close()


async def test_a_store_with_metadata_is_left_alone(tmp_path: Path) -> None:
    store, path = await filled(tmp_path / "old" / SQLITE_FILE, 100), tmp_path / "backup"
    await dump(store, path)
    before = await store.scan("")
    with pytest.raises(ConfigurationError, match="not empty, so nothing was changed"):
        await restore(store, path)
    assert await store.scan("") == before
    await store.close()


def _foreign(entries: list[BackupEntry]) -> list[BackupEntry]:
    return [*entries, BackupEntry("group/x", "{}", 1)]


def _other_version(entries: list[BackupEntry]) -> list[BackupEntry]:
    return [each._replace(version=each.version + 1) for each in entries]


def _nameless(entries: list[BackupEntry]) -> list[BackupEntry]:
    return [each for each in entries if each.key != "cluster"]


def _not_json(entries: list[BackupEntry]) -> list[BackupEntry]:
    return [each._replace(value="{") for each in entries]


@pytest.mark.parametrize("change", [_foreign, _other_version, _nameless, _not_json])
async def test_records_that_no_coordinator_could_read(
    tmp_path: Path, change: Callable[[list[BackupEntry]], list[BackupEntry]]
) -> None:
    store, path = await filled(tmp_path / "old" / SQLITE_FILE, 100), tmp_path / "backup"
    entries = change([BackupEntry(*each) for each in await store.scan("")])
    cluster = json.loads((await store.scan("cluster"))[0].value)
    header = BackupHeader(bytes.fromhex(cluster["cluster_id"]), 1, 9, len(entries), 0)
    writer = BackupWriter(path, header)
    writer.write(entries)
    writer.finish()
    new = SqliteStore(tmp_path / "new" / SQLITE_FILE)
    with pytest.raises(StorageError, match="can't be used"):
        await restore(new, path)
    assert await new.scan("") == []
    await store.close()
    await new.close()


async def test_a_backup_that_names_two_clusters(tmp_path: Path) -> None:
    store, path = await filled(tmp_path / "old" / SQLITE_FILE, 100), tmp_path / "backup"
    entries = [BackupEntry(*each) for each in await store.scan("")]
    writer = BackupWriter(path, BackupHeader(b"d" * 16, 1, 9, len(entries), 0))
    writer.write(entries)
    writer.finish()
    new = SqliteStore(tmp_path / "new" / SQLITE_FILE)
    with pytest.raises(StorageError, match="names two clusters"):
        await restore(new, path)
    assert await new.scan("") == []
    await store.close()
    await new.close()


async def test_nothing_is_made_of_an_empty_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / SQLITE_FILE)
    with pytest.raises(ConfigurationError, match="empty: nothing was written"):
        await dump(store, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    await store.close()


def test_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backup, old, new, node, locked = (
        str(tmp_path / each) for each in ("backup", "old", "new", "node", "locked")
    )
    store = asyncio.run(filled(Path(old) / SQLITE_FILE, 100))
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "control.db").touch()

    def fails(why: str, *words: str) -> None:
        assert main(words) == 1
        assert why in capsys.readouterr().err

    fails("already in use", "dump", backup, "--data", old)
    asyncio.run(store.close())
    fails("has no metadata store", "dump", backup, "--data", new)
    fails("can't be read", "restore", backup, "--data", new)
    assert not Path(new).exists(), "a wrong path leaves nothing behind"
    assert main(["dump", backup, "--data", old]) == 0
    assert main(["restore", backup, "--data", new]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[0] == told[1]
    assert told[0]["records"] == 101
    fails("data folder of a node", "restore", backup, "--data", node)
    used = SqliteStore(Path(locked) / SQLITE_FILE)
    fails("already in use by another", "restore", backup, "--data", locked)
    asyncio.run(used.close())


async def test_a_coordinator_that_takes_over_meanwhile_spoils_the_backup(tmp_path: Path) -> None:
    """It stands by again, and may begin between two pages."""
    database = SqliteDatabase(tmp_path / SQLITE_FILE)

    class Overtaken(SqliteStore):
        async def scan(self, prefix: str, after: str = "", limit: int = 0) -> list[Stored]:
            found = await super().scan(prefix, after, limit)
            await SqliteStore(database).acquire_coordinator_epoch()
            return found

    first = Ledger(SqliteStore(database), SystemRng())
    await first.open()
    with pytest.raises(ConfigurationError, match="taken over while the metadata were read"):
        await dump(Overtaken(database), tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    database.close()
