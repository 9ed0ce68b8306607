"""The records of a standby: read once, and kept up with what etcd tells of each change (R122).

No input is waited for here. A change of etcd has all rows of one change of metadata and the head,
which counts changes; so a hole in what is told shows as a head that counts on by more than one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from icecore_coordinator.stores.etcd_layout import HEAD, RECORDS, EtcdHead
from icecore_coordinator.stores.etcd_messages import DELETED
from icecore_coordinator.stores.metadata_store import Stored


class FollowedRecords:
    """All records below one prefix, as of one head.

    Args:
        prefix: Of all keys of the cluster.
    """

    def __init__(self, prefix: bytes) -> None:
        self._head_key, self._record_keys = prefix + HEAD, prefix + RECORDS
        self._rows: dict[str, Stored] = {}
        self._keys: list[str] | None = None
        """In order; None = not made since the last change."""
        self.ahead: dict[str, int] = {}
        """How far versions are ahead of etcd's own counts; those that are level are not in."""
        self.head: EtcdHead | None = None
        """None = there are no metadata yet."""

    def __len__(self) -> int:
        return len(self._rows)

    def begin(self) -> None:
        """Forget everything: all is read again."""
        self._rows.clear()
        self.ahead.clear()
        self._keys, self.head = None, None

    def load(self, rows: Iterable[Any]) -> None:
        """Take rows of etcd as they were read, all as of one moment. Raises ConfigurationError."""
        for row in rows:
            self._put(row)

    def change(self, events: Iterable[Any]) -> bool:
        """Take what one change of etcd did.

        Returns:
            False where changes are missing in between: all has to be read again.

        Raises:
            ConfigurationError: The head is none that this version reads.
        """
        before, is_head_gone = self.head, False
        for each in events:
            if each.type != DELETED:
                self._put(each.kv)
            elif each.kv.key.startswith(self._record_keys):
                key = self._name(each.kv.key)
                self._rows.pop(key, None)
                self.ahead.pop(key, None)
                self._keys = None
            is_head_gone |= each.type == DELETED and each.kv.key == self._head_key
        return not is_head_gone and _follows(before, self.head)

    def scan(self, prefix: str, after: str, limit: int) -> list[Stored]:
        """See ``MetadataStore.scan``."""
        if self._keys is None:
            self._keys = sorted(self._rows)
        keys = self._keys
        is_on = after != "" and after >= prefix
        begin = bisect_right(keys, after) if is_on else bisect_left(keys, prefix)
        found: list[Stored] = []
        for at in range(begin, len(keys)):
            if not keys[at].startswith(prefix) or (limit and len(found) == limit):
                break
            found.append(self._rows[keys[at]])
        return found

    def _put(self, row: Any) -> None:
        if row.key == self._head_key:
            self.head = EtcdHead.decode(row.value)
        elif row.key.startswith(self._record_keys):
            stored = stored_of(self._name(row.key), row, self.ahead)
            if stored.key not in self._rows:
                self._keys = None
            self._rows[stored.key] = stored

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


def _follows(before: EtcdHead | None, after: EtcdHead | None) -> bool:
    """Return whether nothing happened between the two. An adoption counts on by any number, so it
    looks like a hole; it is rare."""
    if before is None or after is None:
        return before is after or before is None
    changes_max = 1 if after.epoch == before.epoch else 0  # a take-over changes nothing else
    is_same_store = before.store == after.store
    return is_same_store and 0 <= after.revision - before.revision <= changes_max
