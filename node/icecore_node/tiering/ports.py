"""What a node needs of object storage, from outside: the store, and tables of topics in it.

Light to import: nodes without an object store need none of the libraries behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from icecore_node.tiering.object_store import ObjectStore

if TYPE_CHECKING:
    from icecore_node.tiering.table_file import TableFile


class Table(Protocol):
    """The table of one topic. Has no state: every call begins with what is stored. Blocking.

    Both methods raise ObjectStoreError when the table is not ours or the store refuses, and
    ObjectStoreBusyError when it is worth to try again later.
    """

    def unnamed(self, partition: int, revision: int, paths: Sequence[str]) -> list[str]:
        """Which of these objects ``bring_to`` would add: none when the table knows this revision
        or a later one."""
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
            partition: Whose objects these are; those of others stay as they are.
            revision: Of the metadata that say so; it grows with every change.
            paths: Of all that are published and have rows, below the topic's folder.
            added: What the table has to say of those that it does not name yet.
            now_ms: The time of what is added and removed.

        Returns:
            Whether anything was committed: False when the table knows this revision or a later one.

        Raises:
            ConflictError: Another call for this partition, or many for others, came first: look at
                metadata again and repeat.
            InvalidRequestError: An object belongs to another partition, or is named twice.
        """
        ...


TableOf: TypeAlias = Callable[[bytes, bytes, str], Table]
"""The table of a cluster's topic, by cluster id, topic id and name."""


@dataclass(frozen=True, slots=True)
class TierPorts:
    """The object store of a node."""

    store: ObjectStore
    table_of: TableOf
