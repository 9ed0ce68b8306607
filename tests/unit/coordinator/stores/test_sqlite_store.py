"""The SQLite metadata store: the conformance suite, its lock, its file."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError, StorageError
from icecore_coordinator.stores.metadata_store import Compare, MetadataStore
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_node.storage.data_folder import DataFolder
from tests.conformance.metadata_store_suite import MetadataStoreSuite


class TestInMemory(MetadataStoreSuite):
    """One database object, as the simulator uses it."""

    @pytest.fixture(autouse=True)
    def database(self) -> Iterator[None]:
        self._database = SqliteDatabase(":memory:")
        yield
        self._database.close()

    async def open_store(self) -> MetadataStore:
        return SqliteStore(self._database)


class TestFile(MetadataStoreSuite):
    """A file on disk, shared by competing handles of one process."""

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> Iterator[None]:
        self._database = SqliteDatabase(tmp_path / "metadata.sqlite3")
        yield
        self._database.close()

    async def open_store(self) -> MetadataStore:
        return SqliteStore(self._database)


def run_python(script: str) -> "subprocess.CompletedProcess[str]":
    """Another process, waited for."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_second_process_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    path = tmp_path / "data" / "metadata.sqlite3"
    store = SqliteStore(path)
    module = "icecore_coordinator.stores.sqlite_store"
    script = f"from {module} import SqliteStore; SqliteStore({str(path)!r})"
    other = run_python(script)
    assert other.returncode != 0 and "already in use" in other.stderr
    with pytest.raises(ConfigurationError, match="already in use"):
        SqliteStore(path)
    await store.close()
    await SqliteStore(path).close()


async def test_records_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite3"
    script = f"""
import asyncio, os, signal
from icecore_coordinator.stores.sqlite_store import SqliteStore
async def main():
    store = SqliteStore({str(path)!r})
    await store.acquire_coordinator_epoch()
    await store.txn([], [("a", "one")])
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    run_python(script)
    store = SqliteStore(path)
    assert await store.acquire_coordinator_epoch() == 2
    assert await store.txn([Compare("a", 1)], [("a", "two")])
    await store.close()


def test_damaged_file_is_refused_and_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite3"
    path.write_bytes(b"not a database" * 1000)
    for _ in range(2):
        with pytest.raises(StorageError):
            SqliteStore(path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        SqliteDatabase(tmp_path / "file" / "metadata.sqlite3")


def test_the_folder_of_a_node(tmp_path: Path) -> None:
    """A swapped path would begin a new, empty cluster there."""
    DataFolder.open(tmp_path, 1).close()
    before = {each.name for each in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="is the data folder of a node"):
        SqliteDatabase(tmp_path / "metadata.sqlite3")
    assert {each.name for each in tmp_path.iterdir()} == before
