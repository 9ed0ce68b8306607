"""``python -m icecore_coordinator.store_commands``: a metadata store and a backup, side by side.

A process of its own, so that the command line needs no server's packages. The coordinator of the
store must not run. Prints one line of JSON; errors go to the standard error, with status 1.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InternalError,
    StorageError,
    SupersededError,
)
from icecore.metadata_backup import Backup, BackupEntry, BackupHeader, BackupWriter
from icecore.process.settings import load
from icecore.process.system import SystemClock, SystemRng
from icecore_coordinator.config import CoordinatorSettings
from icecore_coordinator.state.cluster_state import ClusterState, live_topics
from icecore_coordinator.state.records import RECORD_TYPES, Record
from icecore_coordinator.state.stored_keys import type_of
from icecore_coordinator.stores.metadata_store import MetadataStore, Stored
from icecore_coordinator.stores.store_choice import SQLITE_FILE, open_store

_RECORDS_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """A summary of what a command has written."""

    cluster_id: bytes
    revision: int
    records: int
    topics: int
    segments: int


async def dump(store: MetadataStore, path: Path) -> StoredMetadata:
    """Write a backup of a store whose coordinator does not run.

    Raises:
        ConfigurationError: The store is empty, or a coordinator has changed it meanwhile; the path
            is something else than its backup.
        StorageError: The store or the file failed.
    """
    epoch = await store.acquire_coordinator_epoch()
    entries: list[BackupEntry] = []
    while page := await store.scan("", entries[-1].key if entries else "", _RECORDS_PER_PAGE):
        entries += [BackupEntry(each.key, each.value, each.version) for each in page]
    if not entries:
        raise ConfigurationError("this metadata store is empty: nothing was written")
    await _check_unchanged(store)
    state = _loaded(entries)
    taken_at_ms = SystemClock().now_ms()
    header = BackupHeader(state.cluster_id, epoch, store.revision, len(entries), taken_at_ms)
    writer = BackupWriter(path, header)
    try:
        writer.write(entries)
        writer.finish()
    finally:
        writer.abandon()
    return _summary(state, header)


async def _check_unchanged(store: MetadataStore) -> None:
    """Raises ConfigurationError unless nobody else could write while the records were read."""
    try:
        await store.txn([], [])
    except SupersededError as error:
        raise ConfigurationError(
            "a coordinator has taken over while the metadata were read, so nothing was written:"
            " stop all coordinators, or take the backup without --data"
        ) from error


async def restore(store: MetadataStore, path: Path) -> StoredMetadata:
    """Fill an empty store from a backup, in one transaction.

    Raises:
        ConfigurationError: The store has metadata, or the file is no backup.
        StorageError: The backup is damaged, or the store failed; nothing was stored.
    """
    backup = Backup(path)
    entries = list(backup.entries())
    try:
        state = _loaded(entries)
    except IcecoreError as error:
        raise StorageError(f"the backup {path} can't be used: {error.message}") from error
    if state.cluster_id != backup.header.cluster_id:
        raise StorageError(f"the backup {path} can't be used: it names two clusters")
    if stored := await store.scan("cluster", limit=1):
        raise ConfigurationError(
            "this metadata store is not empty, so nothing was changed. Give the folder of no "
            f"coordinator. It has {stored[0].value[:100]}"
        )
    await store.acquire_coordinator_epoch()
    header = backup.header
    puts = [Stored(each.key, each.value, each.version) for each in entries]
    await store.adopt(puts, [], header.coordinator_epoch, header.revision)
    return _summary(state, header)


def _loaded(entries: Sequence[BackupEntry]) -> ClusterState:
    """The state that a coordinator makes of them. Raises InternalError for what it can't read."""
    state = ClusterState()
    by_type: dict[type[Record], list[BackupEntry]] = {each: [] for each in RECORD_TYPES}
    for entry in entries:
        if (cls := type_of(entry.key)) is None:
            raise InternalError(f"no version of this program stores {entry.key[:100]!r}")
        by_type[cls].append(entry)
    for cls, found in by_type.items():
        state.load((cls, each.value, each.version) for each in found)
    if state.cluster is None:
        raise InternalError("the record of the cluster is missing")
    return state


def _summary(state: ClusterState, header: BackupHeader) -> StoredMetadata:
    return StoredMetadata(
        cluster_id=header.cluster_id,
        revision=header.revision,
        records=header.records,
        topics=len(live_topics(state)),
        segments=len(state.segments),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    parser = argparse.ArgumentParser("icecore_coordinator.store_commands")
    parser.add_argument("command", choices=("dump", "restore"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--config", help="TOML file of the coordinator; it may say etcd")
    asked = parser.parse_args(argv)
    try:
        found = asyncio.run(_run(asked))
    except IcecoreError as error:
        print(f"icecore: {error.message}", file=sys.stderr)
        return 1
    print(
        json.dumps(
            {
                "cluster_id": found.cluster_id.hex(),
                "revision": found.revision,
                "records": found.records,
                "topics": found.topics,
                "segments": found.segments,
            }
        )
    )
    return 0


async def _run(asked: Any) -> StoredMetadata:
    settings = load(CoordinatorSettings, asked.config, {"data": str(asked.data)})
    is_missing = not (settings.etcd.is_used or (asked.data / SQLITE_FILE).exists())
    if asked.command == "dump" and is_missing:
        raise ConfigurationError(f"{asked.data} has no metadata store: give a coordinator's folder")
    if asked.command == "restore":
        Backup(asked.file)  # a wrong path must not leave an empty store behind
    store = open_store(asked.data, settings.etcd, SystemRng())
    try:
        return await (dump if asked.command == "dump" else restore)(store, asked.file)
    finally:
        await store.close()


if __name__ == "__main__":
    sys.exit(main())
