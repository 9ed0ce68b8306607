"""The port to the durable metadata: a small compare-and-set store with a fencing token.

Every write is one transaction that compares the versions of the records it is based on *and* the
coordinator's epoch, so that an older coordinator never overwrites a newer one. The version of a
key is the number of times it was put, 0 while it is absent (etcd's ``version``); the coordinator
never deletes a key to create it again. ``sqlite_store.py`` and ``etcd_store.py`` implement it. Both
pass ``tests/conformance/metadata_store_suite.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from icecore.model import CoordinatorEpoch


class Stored(NamedTuple):
    """One key as it is stored. A start makes one of each record."""

    key: str
    value: str
    version: int


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the key has this version, 0 = it is absent."""

    key: str
    version: int


class MetadataStore(Protocol):
    """Strings by key, changed in transactions. Only one coordinator holds the newest coordinator
    epoch."""

    async def acquire_coordinator_epoch(self) -> CoordinatorEpoch:
        """Become the writer: a coordinator epoch higher than any before, durable when this
        returns."""
        ...

    @property
    def revision(self) -> int:
        """Return how often the store was changed since it was made, as of the last change by this
        process; at least 1. It is stored in the transaction of each change (etcd's ``revision``).
        """
        ...

    @property
    def is_followed(self) -> bool:
        """Return whether this process has followed the store up to its own coordinator epoch: its
        state is whole then. Else the coordinator reads all of it."""
        ...

    async def get(self, key: str) -> Stored | None:
        """The stored value, None when the key is absent."""
        ...

    async def scan(self, prefix: str, after: str = "", limit: int = 0) -> list[Stored]:
        """Keys that start with ``prefix``, in their order.

        Args:
            prefix: Of the keys; empty = all.
            after: Only those behind this key.
            limit: At most so many; 0 = all.
        """
        ...

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """Apply all puts and deletes when every compare holds, durable when this returns.

        Returns:
            False when a compare did not hold; nothing was changed then.

        Raises:
            SupersededError: this process does not hold the newest coordinator epoch; nothing was
                changed.
            OutOfSpaceError: the store takes no changes for now; nothing was changed.
            StorageError: the store failed; the outcome is unknown.
        """
        ...

    async def adopt(
        self,
        puts: Sequence[Stored],
        deletes: Sequence[str],
        coordinator_epoch: int,
        revision: int,
    ) -> None:
        """Go on above all that is known elsewhere: one transaction, durable when this returns.

        Args:
            puts: With the versions that they get, whatever is stored.
            deletes: Keys that go.
            coordinator_epoch: The next coordinator gets a higher one.
            revision: The next change makes a higher one.

        Raises:
            SupersededError: As ``txn``; nothing was changed.
            StorageError: The store failed; the outcome is unknown.
        """
        ...

    async def close(self) -> None:
        """Release the store. Idempotent."""
        ...
