"""Choice of the store of a coordinator process: a file of its data folder, or etcd.

The folder remembers which metadata in etcd it belongs to. So a coordinator with a wrong prefix, or
without the settings of etcd, says so and takes over nothing.
"""

import json
import os
from pathlib import Path
from typing import Final

from icecore.errors import ConfigurationError
from icecore.rpc.ports import Rng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores.etcd_follower import EtcdFollower
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.metadata_store import MetadataStore
from icecore_coordinator.stores.sqlite_store import NODE_FILE, SqliteStore, lock_beside

SQLITE_FILE: Final = "metadata.sqlite3"
MEMBER_FILE: Final = "coordinator.member"
"""Identity of the folder in elections."""
ETCD_FILE: Final = "metadata.etcd.json"
"""Identity of the metadata in etcd, and where they were last."""


def open_store(
    folder: Path, etcd: EtcdSettings, rng: Rng, follower: EtcdFollower | None = None
) -> MetadataStore:
    """The store that the settings say.

    Args:
        folder: Data folder of the coordinator; made if absent.
        etcd: Its settings; without endpoints the store is a file of the folder.
        rng: Of identities.
        follower: Has followed the metadata in etcd until now, if anybody has.

    Raises:
        ConfigurationError: The folder is of no use, or belongs to another kind of store.
    """
    identity = folder / ETCD_FILE
    if not etcd.is_used:
        if identity.exists():
            raise ConfigurationError(
                f"the metadata of {folder} are in etcd ({_read(identity).get('endpoints')}): give"
                " etcd.endpoints, or another data folder for a new cluster"
            )
        return SqliteStore(folder / SQLITE_FILE)
    if (folder / SQLITE_FILE).exists():
        raise ConfigurationError(
            f"{folder} has metadata in SQLite: leave out etcd.endpoints, or move them into etcd by"
            " `icecore cluster backup` and `restore`, and give another data folder"
        )
    if (folder / NODE_FILE).exists():
        raise ConfigurationError(
            f"{folder} is the data folder of a node: give --data the coordinator's own folder"
        )
    known = str(_read(identity).get("store", "")) if identity.exists() else ""

    def remember(store: str) -> None:
        """Keep which metadata these are; they are there, with us as their writer."""
        if store != known:
            _write(identity, {"store": store, "endpoints": etcd.endpoints, "prefix": etcd.prefix})

    return EtcdStore(etcd, rng, known, remember, follower)


def member_of(folder: Path, rng: Rng) -> str:
    """Return the identity of this folder in elections, made once. The folder belongs to this
    process until it ends.

    Raises:
        ConfigurationError: Another process uses the folder, or it is of no use.
    """
    path = folder / MEMBER_FILE
    lock_beside(path)
    try:
        if path.exists():
            return path.read_text("utf-8").strip()
        member = rng.bytes(8).hex()
        path.write_text(member, "utf-8")
        return member
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be used ({error}): remove it, or give --data another folder"
        ) from error


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}): put it back, or remove it when etcd.prefix is right"
        ) from error
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: dict[str, object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"data folder {path.parent} cannot be used: {error.strerror}. Give --data a folder"
            " that this user may write"
        ) from error
