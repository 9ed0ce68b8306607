"""Ports of a node to object storage: the store, and the tables of topics in it.

Light to import: nodes without an object store need none of the libraries behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from icecore.model import NodeId
from icecore_node.remote.store.object_store import ObjectStore
from icecore_node.storage.control.known_buckets import KnownBucket

if TYPE_CHECKING:
    from icecore_node.remote.format.table_file import TableDifferences, TableFile


class Table(Protocol):
    """The table of one topic. Has no state: every call begins with what is stored. Blocking.

    Both methods raise ObjectStoreError when the table is not ours or the store refuses, and
    ObjectStoreBusyError when it is worth to try again later.
    """

    def compare(self, partition: int, revision: int, paths: Sequence[str]) -> "TableDifferences":
        """Return the differences that ``bring_to`` would remove: none when the table knows this
        revision or a later one."""
        ...

    def bring_to(
        self,
        partition: int,
        revision: int,
        paths: Sequence[str],
        added: Sequence["TableFile"],
        now_ms: int,
    ) -> bool:
        """Make the table name these objects of a partition and no others.

        Args:
            partition: The partition of these objects; objects of other partitions stay as they are.
            revision: Revision of the metadata that name them; it grows with every change.
            paths: Paths of all published objects with rows, below the topic's folder.
            added: Entries for the objects that the table does not name yet.
            now_ms: Time of the additions and removals.

        Returns:
            Whether anything was committed: False when the table knows this revision or a later one.

        Raises:
            ConflictError: Another call for this partition, or many for others, came first: look at
                metadata again and repeat.
            InvalidRequestError: An object belongs to another partition, or is named twice.
        """
        ...


class StoreUser(Protocol):
    """The node that uses an object store, as its coordinator knows it."""

    @property
    def node_id(self) -> NodeId:
        """Id of the node."""
        ...

    @property
    def cluster_id(self) -> bytes:
        """Id of its cluster; empty before its registration."""
        ...

    @property
    def store_id(self) -> bytes:
        """Identity of the cluster's object store; empty while none is known."""
        ...

    @property
    def forgotten_store_id(self) -> bytes:
        """Identity of the last one that a person gave up."""
        ...


class BucketMemory(Protocol):
    """The durable memory that this node has of the bucket at a URL. Blocking. Both methods raise
    StorageError."""

    @property
    def url(self) -> str:
        """The URL, for people."""
        ...

    def recall(self) -> KnownBucket | None:
        """Return the bucket as it was found; None before the first use."""
        ...

    def keep(self, bucket: KnownBucket) -> None:
        """Remember it, durably. Raises OutOfSpaceError as well."""
        ...


TableOf: TypeAlias = Callable[[bytes, bytes, str], Table]
"""The table of a cluster's topic, by cluster id, topic id and name."""


@dataclass(frozen=True, slots=True)
class TierPorts:
    """The object store of a node."""

    store: ObjectStore
    table_of: TableOf
    memory: BucketMemory
