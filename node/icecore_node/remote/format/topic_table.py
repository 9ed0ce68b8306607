"""The table of a topic: a Delta log that names exactly the Parquet objects that are published.

It is made from metadata and may be thrown away: its caller names the published objects of a
partition and the revision of that partition's record, and it adds and removes the differences. No
data is written again. A crash anywhere is mended by the next call, and calls may repeat, race or
come late: each commit also stores the partition's revision (as an application transaction of
Delta's), an older revision than the stored one changes nothing, and of two commits at once for one
partition the library refuses the second. Partitions do not disturb each other.

Publish: the object first, then metadata, then the table. Retire: metadata, the table, and after
readers have had their time the object. So a reader of the table finds every object that it names.

The log lies at the root of the topic, ``TOPIC/_delta_log``. Blocking: for a reader thread. The
library's way to read data (``to_pyarrow_table``) is never used in a server: it may abort the
process when that ends (deltalake 1.6.6 with pyarrow 26).
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from icecore.errors import ConflictError, ObjectStoreError
from icecore.tier_records import topic_folder
from icecore_node.remote.format.rows import SCHEMA
from icecore_node.remote.format.table_file import (
    TableDifferences,
    TableFile,
    check_paths,
    to_add,
)
from icecore_node.remote.store.obstore_store import StoreSettings, local_folder, sync_path
from icecore_node.remote.store.store_errors import translated

CHECKPOINT_COMMITS: Final = 25
"""Commits between two checkpoints: a reader of the log then reads one file instead of this many.
The library reads them all at once, and in a local folder with a thread for each."""
LOG_RETENTION: Final = "interval 30 days"
_OURS: Final = re.compile(r"[0-9]+/")
"""How the path of an object of ours begins: with its partition."""
RETRIES: Final = 8
"""Maximum number of retries of a commit, when another partition's commit came first."""


def place_of(settings: StoreSettings, topic_id: bytes) -> tuple[str, Mapping[str, str]]:
    """Return the URI of a topic's log and the library's options. In HDFS the library uses Hadoop's
    RPC."""
    url = urlsplit(settings.url)
    if url.scheme == "webhdfs":
        folder = f"{settings.endpoint.rstrip('/')}{url.path.rstrip('/')}"
        return f"{folder}/{topic_folder(topic_id)}", {}
    options = {
        **settings.options(),
        "allow_http": str(settings.is_clear_text).lower(),
        "timeout": f"{settings.request_timeout_ms}ms",
        "connect_timeout": f"{settings.connect_timeout_ms}ms",
        "max_retries": str(settings.retries_max),
        "retry_timeout": f"{settings.retry_ms_max}ms",
    }
    return f"{settings.url.rstrip('/')}/{topic_folder(topic_id)}", options


def description_of(cluster_id: bytes, topic_id: bytes) -> str:
    """Return the description that the log has of itself."""
    return f"icecore cluster {cluster_id.hex()} topic {topic_folder(topic_id)}"


class TopicTable:
    """The log of one topic. Has no state: every call begins with what is stored.

    Args:
        settings: Settings of the objects' store.
        cluster_id: Id of our cluster. It is compared with the log's description, since a bucket of
            another cluster must not be written.
        topic_id: Id of the topic, which names its folder.
        topic: The name of a table that is made.
    """

    def __init__(
        self, settings: StoreSettings, cluster_id: bytes, topic_id: bytes, topic: str
    ) -> None:
        self._uri, self._options = place_of(settings, topic_id)
        self._folder = local_folder(settings.url)
        self._log = f"{topic_folder(topic_id)}/_delta_log"
        self._about = description_of(cluster_id, topic_id)
        self._topic = topic

    def compare(self, partition: int, revision: int, paths: Sequence[str]) -> TableDifferences:
        """See ``Table.compare``."""
        check_paths(partition, paths)
        try:
            table = self._existing()
            if table is None:
                return TableDifferences([*paths], [])
            if _knows(table, partition, revision):
                return TableDifferences([], [])
            present = _paths_of(table, partition)
        except (DeltaError, OSError) as error:
            raise self._translated(error) from error
        return TableDifferences(
            [path for path in paths if path not in present],
            sorted(present.keys() - {*paths}),
        )

    def bring_to(
        self,
        partition: int,
        revision: int,
        paths: Sequence[str],
        added: Sequence[TableFile],
        now_ms: int,
    ) -> bool:
        """See ``Table.bring_to``."""
        check_paths(partition, paths)
        try:
            table = self._open()
            if _knows(table, partition, revision):
                return False
            # Also where nothing differs: a later call with an older revision must find this one.
            present = _paths_of(table, partition) | _strangers(table)
            table.create_write_transaction(
                _differences(present, paths, added, now_ms),
                mode="append",
                schema=SCHEMA,
                commit_properties=CommitProperties(
                    custom_metadata={"icecore.partition": partition, "icecore.revision": revision},
                    max_commit_retries=RETRIES,
                    app_transactions=[Transaction(app_id_of(partition), revision, now_ms)],
                ),
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=True, cleanup_expired_logs=True
                ),
            )
            self._sync(table.version())  # as it was opened
        except CommitFailedError as error:
            raise ConflictError(f"the table of {self._topic}: {error}") from error
        except (DeltaError, OSError) as error:
            raise self._translated(error) from error
        return True

    def files(self) -> list[str]:
        """Paths below the topic's folder of all objects that the table names; none without one.

        Raises:
            ObjectStoreError: The table is not ours, or the store refuses.
            ObjectStoreBusyError: Try again later.
        """
        try:
            table = self._existing()
            return [] if table is None else sorted(_actions(table).column("path").to_pylist())
        except (DeltaError, OSError) as error:
            raise self._translated(error) from error

    def checkpoint(self) -> None:
        """Write a checkpoint now, and remove log files that are not needed any more. Every
        twenty-fifth commit does that, too.

        Raises:
            ObjectStoreError: There is no table, it is not ours, or the store refuses.
            ObjectStoreBusyError: Try again later.
        """
        try:
            table = self._existing()
            if table is None:
                raise ObjectStoreError(f"there is no table of {self._topic}")
            table.create_checkpoint()
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            raise self._translated(error) from error

    def _existing(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self._uri, storage_options=dict(self._options))
        except TableNotFoundError:
            return None
        about = table.metadata().description
        if about != self._about:
            raise ObjectStoreError(f"{self._uri} is a table of {about!r}, not of {self._about!r}")
        return table

    def _open(self) -> DeltaTable:
        """The table; made when there is none. Two that make it at once make the same."""
        found = self._existing()
        if found is not None:
            return found
        DeltaTable.create(
            self._uri,
            SCHEMA,
            mode="ignore",
            name=self._topic,
            description=self._about,
            configuration={
                "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
                "delta.logRetentionDuration": LOG_RETENTION,
            },
            storage_options=dict(self._options),
        )
        self._sync(-1)
        made = self._existing()
        if made is None:
            raise ConflictError(f"the table of {self._topic} was made and is gone")
        return made

    def _sync(self, after: int) -> None:
        """Make the commits in a local folder durable that came after this version, and checkpoints
        beside them. The library does not do it, and takes a commit that a power cut left empty for
        a good one. Raises OSError."""
        if self._folder is None:
            return
        known = f"{after:020d}.json" if after >= 0 else ""
        for name in sorted(os.listdir(self._folder / self._log)):
            if name > known:  # also ``_last_checkpoint``
                with contextlib.suppress(FileNotFoundError):  # whoever cleans up was here
                    sync_path(self._folder, f"{self._log}/{name}")

    def _translated(self, error: Exception) -> Exception:
        return translated(error, f"the table of {self._topic}")


def app_id_of(partition: int) -> str:
    """Return the id under which the log keeps the revision of a partition."""
    return f"icecore-partition-{partition}"


def _knows(table: DeltaTable, partition: int, revision: int) -> bool:
    """Return whether the table has this revision of a partition, or a later one. Where somebody
    else has put objects into it, a revision is not all that it has."""
    stored = table.transaction_version(app_id_of(partition))
    if stored is None or stored < revision:
        return False
    return stored > revision or not _strangers(table)


def _actions(table: DeltaTable) -> Any:
    return pa.table(table.get_add_actions(flatten=True))


def _sizes(table: DeltaTable) -> dict[str, int]:
    actions = _actions(table)
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return dict(zip(paths, sizes, strict=True))


def _paths_of(table: DeltaTable, partition: int) -> dict[str, int]:
    """Return the sizes of a partition's objects by path."""
    return {path: size for path, size in _sizes(table).items() if path.startswith(f"{partition}/")}


def _strangers(table: DeltaTable) -> dict[str, int]:
    """Return objects that no node has put in: another program appended to the table, or made one
    object of many. Their rows are there twice."""
    sizes = _sizes(table)
    return {path: size for path, size in sizes.items() if not _OURS.match(path)}


def _differences(
    present: Mapping[str, int], paths: Sequence[str], added: Sequence[TableFile], now_ms: int
) -> list[AddAction | RemoveAction]:
    new = to_add(present, paths, added)
    kept = {*paths}
    gone = [(path, size) for path, size in present.items() if path not in kept]
    return [
        *(_add(each, now_ms) for each in new),
        *(_remove(path, size, now_ms) for path, size in gone),
    ]


def _add(file: TableFile, now_ms: int) -> AddAction:
    low, high = file.lowest, file.highest
    stats = {
        "numRecords": file.records,
        "minValues": low,
        "maxValues": high,
        "nullCount": dict.fromkeys(low, 0),
    }
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={},
        modification_time=now_ms,
        data_change=True,
        stats=json.dumps(stats, separators=(",", ":")),
    )


def _remove(path: str, size: int, now_ms: int) -> RemoveAction:
    return RemoveAction(
        path, data_change=True, deletion_timestamp=now_ms, size=size, partition_values={}
    )
