"""The table of a topic, read without a cluster: the objects that it names or named, and its owner.

The Delta library blocks, and is for a reader thread. It does not tell what a table named once
without comparing clocks, so that is read from the commits themselves.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from icecore.errors import ObjectStoreError
from icecore_node.remote.format.topic_table import app_id_of, description_of, place_of
from icecore_node.remote.store.object_store import ObjectStore
from icecore_node.remote.store.obstore_store import StoreSettings
from icecore_node.remote.store.store_errors import translated
from icecore_node.remote.verify.bucket import TopicObjects

COMMIT_BYTES_MAX: Final = 64 << 20
_OURS: Final = "icecore cluster "


@dataclass(frozen=True, slots=True)
class TableLook:
    """Content of a table."""

    topic: str
    about: str
    """The table's own description, which names its cluster."""
    paths: frozenset[str]
    """Paths of its objects below the topic's folder."""
    revisions: tuple[int, ...]
    """Revision of the last commit, by partition; 0 = never. Partitions without objects have one,
    too."""
    removed: frozenset[str] = frozenset()
    """Paths of objects that it named once, as far as commits since its last checkpoint say it."""

    def revision(self, partition: int) -> int:
        """Return the revision of a partition; 0 = never committed."""
        return self.revisions[partition] if partition < len(self.revisions) else 0

    @property
    def cluster_id(self) -> str:
        """Id of the cluster in hexadecimal; empty when it is no table of ours."""
        return _cluster_of(self.about)


def _cluster_of(about: str) -> str:
    return about.removeprefix(_OURS).split(" ")[0] if about.startswith(_OURS) else ""


def damage_of_log(topic: TopicObjects) -> str:
    """Return what the listing says against a topic's log; empty = nothing.

    The library takes an empty commit for one that changed nothing, and a log without its first
    commit for no table at all. Both would bring back other records than were published.
    """
    begin = max(topic.checkpoint, 0)
    end = max([topic.checkpoint, *topic.commits], default=-1) + 1
    for version in range(begin, end):
        is_needed = version > topic.checkpoint
        if is_needed and version not in topic.commits:
            return f"commit {version} is missing"
        if is_needed and version in topic.empty_commits:
            return f"commit {version} is empty"
    return ""


def look_at_table(
    settings: StoreSettings, topic_id: bytes, partitions: int = 0
) -> TableLook | None:
    """The table of a topic; None when there is none.

    Args:
        settings: Where the bucket is.
        topic_id: Of the topic.
        partitions: How many it has, as far as it is known. The table names no partition of which
            it has no object.

    Raises:
        ObjectStoreError: The log can't be read, or the store refuses.
        ObjectStoreBusyError: Try again later.
    """
    try:
        table = _open(settings, topic_id)
        if table is None:
            return None
        paths = frozenset(pa.table(table.get_add_actions()).column("path").to_pylist())
        about, revisions = table.metadata(), _revisions(table, paths, partitions)
    except (DeltaError, OSError) as error:
        raise translated(error, f"the table of topic {topic_id.hex()}") from error
    return TableLook(about.name or "", about.description or "", paths, revisions)


async def removed_paths(store: ObjectStore, topic: TopicObjects) -> frozenset[str]:
    """Return the paths that commits since the last checkpoint took out of a topic's table.

    Raises:
        ObjectStoreError: A commit can't be read.
        ObjectStoreBusyError: Try again later.
    """
    removed: set[str] = set()
    for version, key in sorted(topic.commits.items()):
        if version < topic.checkpoint:
            continue
        data = await store.get_whole(key, COMMIT_BYTES_MAX)
        try:
            actions = [json.loads(line) for line in data.splitlines()]
            removed.update(each["remove"]["path"] for each in actions if "remove" in each)
        except (ValueError, KeyError, TypeError) as error:
            raise ObjectStoreError(f"{key} is no commit of a Delta table: {error}") from error
    return frozenset(removed)


def _revisions(table: DeltaTable, paths: frozenset[str], partitions: int) -> tuple[int, ...]:
    numbers = [int(each.split("/")[0]) for each in paths if each.split("/")[0].isdecimal()]
    count = max(partitions, max(numbers, default=-1) + 1)
    return tuple(table.transaction_version(app_id_of(each)) or 0 for each in range(count))


def take_over_table(
    settings: StoreSettings, topic_id: bytes, cluster_id: bytes, owners: Collection[str]
) -> bool:
    """Give a table to another cluster. Return whether anything changed.

    Args:
        settings: Where the bucket is.
        topic_id: Of the topic.
        cluster_id: Of the new owner.
        owners: Ids of those whose tables are given away; a table of any other cluster stays.

    Raises:
        ObjectStoreError: It is no table of ours, or the store refuses.
        ObjectStoreBusyError: Try again later.
    """
    wanted = description_of(cluster_id, topic_id)
    try:
        table = _open(settings, topic_id)
        if table is None:
            return False
        about = table.metadata().description or ""
        if about == wanted:
            return False
        if not about.startswith(_OURS):
            raise ObjectStoreError(f"the table of topic {topic_id.hex()} is of {about!r}, not ours")
        if _cluster_of(about) not in owners:
            return False
        table.alter.set_table_description(wanted)
    except (DeltaError, OSError) as error:
        raise translated(error, f"the table of topic {topic_id.hex()}") from error
    return True


def _open(settings: StoreSettings, topic_id: bytes) -> DeltaTable | None:
    uri, options = place_of(settings, topic_id)
    try:
        return DeltaTable(uri, storage_options=dict(options))
    except TableNotFoundError:
        return None
