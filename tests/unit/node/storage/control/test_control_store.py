"""The control store: one synced commit per list, what comes back after a restart, a full disk."""

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icecore.errors import (
    FencedError,
    NotReplicaError,
    OutOfSpaceError,
    StorageError,
    WrongClusterError,
)
from icecore.topic_settings import FlushBounds
from icecore_node.storage.control.control_database import RESERVE_BYTES
from icecore_node.storage.control.control_store import CONFIRMED, ControlStore, ReplicaRow

TOPIC = bytes(16)


def row(segment_id: int) -> ReplicaRow:
    return ReplicaRow(segment_id, 0, TOPIC, 3, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.db"


@pytest.fixture
def store(path: Path) -> Iterator[ControlStore]:
    store = ControlStore(path)
    yield store
    store.close()


def reopened(store: ControlStore, path: Path) -> ControlStore:
    store.close()
    return ControlStore(path)


def count_commits(store: ControlStore) -> list[str]:
    commits: list[str] = []
    store.database._connection.set_trace_callback(
        lambda statement: commits.append(statement) if statement == "COMMIT" else None
    )
    return commits


def test_every_commit_is_synced(store: ControlStore) -> None:
    assert store.database._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store.database._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_disk_counter_and_the_revision_heard_are_one_commit(
    store: ControlStore, path: Path
) -> None:
    assert (store.disk.disk_counter, store.disk.metadata_revision) == (0, 0)
    commits = count_commits(store)
    assert store.disk.raise_disk_counter(12) == 1
    assert len(commits) == 1
    again = reopened(store, path)
    assert (again.disk.disk_counter, again.disk.metadata_revision) == (1, 12)
    again.close()


def test_rows_come_back(store: ControlStore, path: Path) -> None:
    commits = count_commits(store)
    store.put_rows([row(2), row(1)], [(1, 4), (2, 5)])
    assert len(commits) == 1
    changed = store.change_row(
        2, state=CONFIRMED, base_offset=7, snapshot=b"\0state", seal_digest=b"d" * 32
    )
    store = reopened(store, path)
    assert store.rows() == [row(1), changed]
    assert store.row(2) == changed and store.row(3) is None
    assert [store.promises.epoch_of(segment_id) for segment_id in (1, 2, 3)] == [4, 5, 0]
    with pytest.raises(NotReplicaError):
        store.change_row(3, state=CONFIRMED)
    store.close()


def test_promises_of_rows_only_rise(store: ControlStore) -> None:
    store.promises.persist([(1, 9)], 0)
    store.put_rows([row(1)], [(1, 4)])
    assert store.promises.epoch_of(1) == 9


def test_promises_and_coordinator_epoch(store: ControlStore, path: Path) -> None:
    commits = count_commits(store)
    store.promises.persist([(number, 2) for number in range(1000)], 5)
    store.promises.persist([(7, 2)], 5)
    assert len(commits) == 1  # what is known already costs nothing
    for promises, coordinator_epoch in (([(8, 3), (7, 1)], 5), ([(7, 3)], 4)):
        with pytest.raises(FencedError):
            store.promises.persist(promises, coordinator_epoch)
    assert (
        store.promises.epoch_of(7),
        store.promises.epoch_of(8),
        store.promises.max_coordinator_epoch,
    ) == (
        2,
        2,
        5,
    )
    store.promises.persist([], 6)
    store = reopened(store, path)
    assert (
        store.promises.epoch_of(7),
        store.promises.epoch_of(8),
        store.promises.max_coordinator_epoch,
    ) == (
        2,
        2,
        6,
    )
    store.close()


def test_an_intent_survives_until_it_is_finished(store: ControlStore, path: Path) -> None:
    store.put_rows([row(1)], [(1, 4)])
    store.put_intents([1], 8)
    with pytest.raises(FencedError):
        store.put_intents([2], 7)
    store = reopened(store, path)
    assert store.intents() == [1] and store.promises.max_coordinator_epoch == 8
    store.finish_intents([1])
    store = reopened(store, path)
    assert store.intents() == [] and store.rows() == []
    assert store.promises.epoch_of(1) == 4  # an old leader may still be about
    store.close()


def test_who_the_node_is(store: ControlStore, path: Path) -> None:
    assert (store.disk.cluster_id, store.disk.disk_id, store.disk.incarnation) == (b"", b"", 0)
    store.database.put(disk_id=b"\x01" * 16, note=1)
    store.disk.join_cluster(b"c" * 16)
    store.disk.join_cluster(b"c" * 16)
    store.disk.keep_incarnation(41, 7)
    with pytest.raises(WrongClusterError):
        store.disk.join_cluster(b"d" * 16)
    store = reopened(store, path)
    assert (store.disk.cluster_id, store.disk.disk_id) == (b"c" * 16, b"\x01" * 16)
    assert (store.disk.incarnation, store.database.get_number("note")) == (41, 1)
    store.database.put(note=None)
    assert store.database.get("note") is None
    store.close()


def test_a_damaged_file_does_not_open(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StorageError):
        ControlStore(path)


def test_a_connection_outlives_the_store() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    store = ControlStore(connection)
    store.put_rows([row(1)])
    store.close()
    assert ControlStore(connection).rows() == [row(1)]
    connection.close()


def test_threads_share_it(store: ControlStore, path: Path) -> None:
    def work(first: int) -> None:
        for number in range(first, first + 20):
            store.put_rows([row(number)], [(number, 1)])
            store.change_row(number, state=CONFIRMED)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = reopened(store, path)
    assert [one.state for one in store.rows()] == [CONFIRMED] * 60
    store.close()


class FullConnection:
    """A connection to a disk on which nothing can be committed while the reserve exists."""

    def __init__(self, path: Path, reserve: Path, *, hopeless: bool) -> None:
        self._real = sqlite3.connect(path, isolation_level=None)
        self._reserve = reserve
        self._hopeless = hopeless

    def execute(self, statement: str, *args: object) -> object:
        if statement == "COMMIT" and (self._hopeless or self._reserve.exists()):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._real.execute(statement, *args)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@pytest.mark.parametrize("hopeless", [False, True])
def test_the_reserve_pays_for_promises_on_a_full_disk(
    store: ControlStore, path: Path, hopeless: bool
) -> None:
    reserve = path.with_suffix(".reserve")
    assert reserve.stat().st_size == RESERVE_BYTES
    store.database._connection.close()
    store.database._connection = FullConnection(path, reserve, hopeless=hopeless)  # type: ignore[assignment]
    if hopeless:
        with pytest.raises(OutOfSpaceError):
            store.promises.persist([(1, 2)], 3)
        assert (store.promises.epoch_of(1), store.promises.max_coordinator_epoch) == (0, 0)
        return
    store.promises.persist([(1, 2)], 3)
    assert not reserve.exists()
    store.database.keep_reserve()
    assert reserve.stat().st_size == RESERVE_BYTES
    store = reopened(store, path)
    assert (store.promises.epoch_of(1), store.promises.max_coordinator_epoch) == (2, 3)
    store.close()


def test_a_file_of_an_earlier_version_gets_what_it_lacks(store: ControlStore, path: Path) -> None:
    store.put_rows([row(1)])
    store.close()
    old = sqlite3.connect(path)
    for column in ("flush_interval_ms", "flush_bytes"):
        old.execute(f"ALTER TABLE replicas DROP COLUMN {column}")
        old.commit()
    old.close()
    with_late = replace(row(2), flush_interval_ms=9, flush_bytes=10)
    for _ in range(2):  # the second time there is nothing to do
        store = ControlStore(path)
        store.put_rows([with_late])
        assert store.rows() == [row(1), with_late]
        store.close()
    assert with_late.flush == FlushBounds(9, 10) and row(1).flush is None
