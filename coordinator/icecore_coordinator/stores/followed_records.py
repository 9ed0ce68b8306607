"""The state of a standby: read once, and kept up with what etcd tells of each change (R122).

It is what a coordinator works with, so a take-over decodes nothing. No input is waited for here. A
change of etcd has all rows of one change of metadata and the head, which counts changes; so a hole
in what is told shows as a head that counts on by more than one.
"""

from collections.abc import Iterable
from typing import Any

from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, Record
from icecore_coordinator.state.stored_keys import count_of, record_at, type_of
from icecore_coordinator.stores.etcd_layout import HEAD, RECORDS, EtcdHead
from icecore_coordinator.stores.etcd_messages import DELETED
from icecore_coordinator.stores.metadata_store import Stored


class FollowedRecords:
    """All records below one prefix, as of one head.

    Args:
        prefix: Of all keys of the cluster.
        state: Becomes what they make.
    """

    def __init__(self, prefix: bytes, state: ClusterState) -> None:
        self._head_key, self._record_keys = prefix + HEAD, prefix + RECORDS
        self._strange: set[str] = set()
        """Keys of records that this version does not know."""
        self.state = state
        self.ahead: dict[str, int] = {}
        """How far versions are ahead of etcd's own counts; those that are level are not in."""
        self.head: EtcdHead | None = None
        """None = there are no metadata yet."""

    def __len__(self) -> int:
        return count_of(self.state) + len(self._strange)

    def begin(self) -> None:
        """Forget everything: all is read again."""
        ClusterState.__init__(self.state)
        self._strange.clear()
        self.ahead.clear()
        self.head = None

    def load(self, rows: Iterable[Any]) -> None:
        """Take rows of etcd as they were read, all as of one moment.

        Raises:
            ConfigurationError: The head is none that this version reads.
            InternalError: A record is none.
        """
        self.state.load(filter(None, map(self._put, rows)))

    def change(self, events: Iterable[Any]) -> bool:
        """Take what one change of etcd did.

        Returns:
            False where changes are missing in between: all has to be read again.

        Raises:
            ConfigurationError, InternalError: As ``load``; what was taken is of no use then.
        """
        before, puts, gone = self.head, list[Any](), list[bytes]()
        for each in events:
            if each.type == DELETED:
                gone.append(each.kv.key)
            else:
                puts.append(each.kv)
        # First what goes, as where it was decided (``ClusterState.apply``).
        deletes = [found for key in gone if (found := self._remove(key)) is not None]
        self.state.apply(Change(deletes=tuple(deletes)))
        self.load(puts)
        return self._head_key not in gone and follows(before, self.head)

    def _remove(self, key: bytes) -> Record | None:
        if not key.startswith(self._record_keys):
            return None
        name = self._name(key)
        self._strange.discard(name)
        self.ahead.pop(name, None)
        return record_at(self.state, name)

    def _put(self, row: Any) -> tuple[type[Record], str, int] | None:
        """The record of a row, as ``ClusterState.load`` takes it."""
        if row.key == self._head_key:
            self.head = EtcdHead.decode(row.value)
        elif row.key.startswith(self._record_keys):
            stored = stored_of(self._name(row.key), row, self.ahead)
            if (cls := type_of(stored.key)) is not None:
                return cls, stored.value, stored.version
            self._strange.add(stored.key)
        return None

    def _name(self, key: bytes) -> str:
        return key[len(self._record_keys) :].decode()


def stored_of(key: str, row: Any, ahead: dict[str, int]) -> Stored:
    """The record that a row of etcd has; ``ahead`` notes how far its version is ahead."""
    version, _, value = row.value.decode().partition(" ")
    stored = Stored(key, value, int(version))
    if stored.version == row.version:
        ahead.pop(key, None)
    else:
        ahead[key] = stored.version - row.version
    return stored


def follows(before: EtcdHead | None, after: EtcdHead | None) -> bool:
    """Return whether nothing happened between the two. An adoption counts on by any number, so it
    looks like a hole; it is rare."""
    if before is None or after is None:
        return before is after or before is None
    changes_max = 1 if after.epoch == before.epoch else 0  # a take-over changes nothing else
    is_same_store = before.store == after.store
    return is_same_store and 0 <= after.revision - before.revision <= changes_max
