"""The metadata store in etcd: one prefix, of which one coordinator at a time is the writer.

Keys below the prefix:

- ``head``: identity of these metadata, coordinator epoch, revision, and who holds the epoch. Every
  transaction compares its whole value, and every change replaces it. So a coordinator that was
  replaced changes nothing, nor does one whose etcd was put back to an older state, and a call that
  is repeated is carried out once. No revision of etcd counts for anything: it falls with a restore.
- ``record/…``: the version and the value of each record. etcd's own count of puts would not do: it
  begins anew when keys are copied into another etcd, and an adoption sets versions. ``_ahead`` has
  the difference of the two for the few records that have one.
- ``staged/…``: the rows of a change that is larger than a transaction of etcd. They are written
  first, then the head says how many they are; that is the moment at which all of the change has
  happened. Then they are moved to their places. Who takes over in the middle moves the rest.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from icecore.errors import ConfigurationError, OutOfSpaceError, StorageError, SupersededError
from icecore.model import CoordinatorEpoch
from icecore.process.log import event
from icecore.rpc.ports import Rng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores.etcd_client import EtcdClient
from icecore_coordinator.stores.etcd_follower import EtcdFollower
from icecore_coordinator.stores.etcd_layout import (
    CANDIDATES,
    FORMAT,
    HEAD,
    RECORDS,
    STAGED,
    EtcdHead,
    TxnOutcome,
    outcome_of,
)
from icecore_coordinator.stores.etcd_messages import (
    delete,
    delete_all,
    end_of,
    has_value,
    has_version,
    put,
    read,
)
from icecore_coordinator.stores.followed_records import stored_of
from icecore_coordinator.stores.metadata_store import Compare, Stored

_log = logging.getLogger(__name__)

OPERATIONS_MAX: Final = 128
"""etcd's limit for conditions and for operations (``--max-txn-ops``), each with the head."""
BYTES_MAX: Final = 1 << 20
"""Keys and values of one transaction; etcd allows a request of 1.5 MiB."""
ROWS_PER_PAGE: Final = 10_000
"""etcd counts the rest of a range for each page, so many small pages take it a square of time."""

Rows = list[tuple[str, str | None]]
"""Keys with what is stored there from now on; None = nothing."""


class EtcdStore:
    """``MetadataStore`` in etcd: one coordinator's handle, with its coordinator epoch.

    Args:
        settings: Where it is, and who asks.
        rng: Of identities.
        known_store: Identity of the metadata that must be there; empty = any, or none yet.
        remember: Called with the identity of those that this handle is the writer of.
        follower: Has followed the metadata until now; None = nobody has.
    """

    def __init__(
        self,
        settings: EtcdSettings,
        rng: Rng,
        known_store: str = "",
        remember: Callable[[str], object] = str,
        follower: EtcdFollower | None = None,
    ) -> None:
        self._client = EtcdClient(settings)
        self._settings = settings
        self._rng = rng
        self._known_store = known_store
        self._remember = remember
        self._follower = follower
        self.is_followed = False
        self._prefix = settings.prefix.encode()
        self._head_key = self._prefix + HEAD
        self._records = self._prefix + RECORDS
        self._staged_keys = self._prefix + STAGED
        self._head: EtcdHead | None = None
        self._ahead: dict[str, int] = {}
        """How far versions of records are ahead of etcd's own; those that are level are not in."""
        self._lock = asyncio.Lock()

    @property
    def revision(self) -> int:
        """See ``MetadataStore.revision``."""
        return self._head.revision if self._head else 1

    async def acquire_coordinator_epoch(self) -> CoordinatorEpoch:
        """See ``MetadataStore.acquire_coordinator_epoch``.

        Raises:
            ConfigurationError: The prefix is not that of the metadata which must be there.
        """
        await self.check()
        holder = self._rng.bytes(8).hex()
        async with self._lock:
            while True:
                found = await self._read_head()
                await self._refuse_others(found)
                if found is None:
                    mine = EtcdHead(FORMAT, self._rng.bytes(16).hex(), 1, holder, 1)
                else:
                    mine = replace(found, epoch=found.epoch + 1, holder=holder)
                if await self._replace_head(found, mine):
                    break
            self._remember(mine.store)
            if mine.staged:
                await self._move_staged()
            if self._follower is not None:
                ahead = await self._follower.hand_over(self._owned())
                self.is_followed, self._ahead = ahead is not None, ahead or {}
        return CoordinatorEpoch(mine.epoch)

    async def check(self) -> None:
        """Look whether etcd answers and the prefix is the right one, before anything is changed.

        Raises:
            ConfigurationError: etcd, or what is below the prefix, is of no use.
            StorageError: etcd does not answer.
        """
        for why in await self._client.check():
            event(_log, logging.WARNING, "etcd_member_unwell", why=why)
        await self._refuse_others(await self._read_head())

    async def get(self, key: str) -> Stored | None:
        """See ``MetadataStore.get``."""
        answer = await self._client.range(self._key(key))
        return self._stored(answer.kvs[0]) if answer.kvs else None

    async def scan(self, prefix: str, after: str = "", limit: int = 0) -> list[Stored]:
        """See ``MetadataStore.scan``."""
        end = end_of(self._key(prefix))
        # A NUL makes the next key: nothing lies between the two.
        begin = self._key(after) + b"\0" if after >= prefix and after else self._key(prefix)
        found: list[Stored] = []
        while begin < end:
            room = min(ROWS_PER_PAGE, limit - len(found)) if limit else ROWS_PER_PAGE
            answer = await self._client.range(begin, end, room)
            found += map(self._stored, answer.kvs)
            if not answer.more or len(found) == limit:
                break
            begin = answer.kvs[-1].key + b"\0"
        return found

    async def txn(
        self,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        """See ``MetadataStore.txn``."""
        async with self._lock:
            head = await self._ready()
            expected = {each.key: each.version for each in compares}
            if len(expected) != len(set(compares)):
                return False  # two versions of one key
            for key in [key for key, _ in puts if key not in expected]:
                stored = await self.get(key)
                expected[key] = stored.version if stored else 0
            rows = _rows({key: f"{expected[key] + 1} {value}" for key, value in puts}, deletes)
            after = replace(head, revision=head.revision + 1) if rows else head
            if max(len(rows), len(expected)) < OPERATIONS_MAX and _size(rows) <= BYTES_MAX:
                return await self._change(head, after, expected, rows)
            if not await self._holds(head, expected):
                return False
            await self._stage(head, after, rows)
            return True

    async def adopt(
        self,
        puts: Sequence[Stored],
        deletes: Sequence[str],
        coordinator_epoch: int,
        revision: int,
    ) -> None:
        """See ``MetadataStore.adopt``."""
        async with self._lock:
            head = self._owned()
            gone = set(deletes).difference(each.key for each in puts)
            rows = _rows({each.key: f"{each.version} {each.value}" for each in puts}, gone)
            after = replace(
                head,
                epoch=max(head.epoch, coordinator_epoch),
                revision=max(head.revision + 1, revision),
            )
            await self._stage(head, after, rows)

    async def close(self) -> None:
        """See ``MetadataStore.close``."""
        self._head = None
        await self._client.close()

    # --- the head -------------------------------------------------------------------------------

    def _owned(self) -> EtcdHead:
        if self._head is None:
            raise SupersededError("this process holds no coordinator epoch")
        return self._head

    async def _ready(self) -> EtcdHead:
        """The head, for the next change; what the last one left halfway is carried out first."""
        if self._owned().staged:
            await self._move_staged()
        return self._owned()

    async def _read_head(self) -> EtcdHead | None:
        answer = await self._client.range(self._head_key)
        return EtcdHead.decode(answer.kvs[0].value) if answer.kvs else None

    async def _refuse_others(self, found: EtcdHead | None) -> None:
        """Metadata of somebody else must not be taken over, nor an empty prefix for them."""
        prefix, known = self._settings.prefix, self._known_store
        if found is None:
            if known:
                raise ConfigurationError(
                    f"etcd has nothing below {prefix!r}, but the data folder says that the"
                    f" cluster's metadata {known} are there: look at etcd.endpoints and"
                    " etcd.prefix. For a new cluster give another data folder"
                )
            if (key := await self._stranger()) is not None:
                raise ConfigurationError(
                    f"etcd has keys below {prefix!r} that are no metadata of icecore, such as"
                    f" {key!r}: give another etcd.prefix"
                )
        elif known and known != found.store:
            raise ConfigurationError(
                f"below {prefix!r} etcd has the metadata {found.store} of another cluster; those"
                f" of this data folder are {known}: give the etcd.prefix of this cluster, or"
                " another data folder"
            )

    async def _stranger(self) -> str | None:
        """A key below the prefix that belongs neither to metadata nor to an election."""
        candidates = self._prefix + CANDIDATES
        for begin, end in (
            (self._prefix, candidates),
            (end_of(candidates), end_of(self._prefix)),
        ):
            if found := (await self._client.range(begin, end, 1)).kvs:
                return str(found[0].key.decode(errors="replace"))
        return None

    async def _replace_head(self, before: EtcdHead | None, after: EtcdHead) -> bool:
        """Return whether the head is ours now; False = somebody else was faster."""
        key, value = self._head_key, after.encode()
        condition = has_value(key, before.encode()) if before else has_version(key, 0)
        answer = (await self._client.txn([condition], [put(key, value)], [read(key)])).message
        found = [] if answer.succeeded else answer.responses[0].response_range.kvs
        if not answer.succeeded and not (found and found[0].value == value):
            return False
        self._head = after
        return True

    # --- changes --------------------------------------------------------------------------------

    async def _change(
        self, head: EtcdHead, after: EtcdHead, expected: Mapping[str, int], rows: Rows
    ) -> bool:
        """One transaction of etcd: all rows and the head, if the head is ours and all records have
        these versions."""
        success = [self._operation(key, value) for key, value in rows]
        if after != head:
            success.append(put(self._head_key, after.encode()))
        looks = [read(self._key(key)) for key in expected]
        for _ in range(2):
            conditions = [
                has_version(self._key(key), version and version - self._ahead.get(key, 0))
                for key, version in expected.items()
            ]
            answer = await self._fenced(head, after, conditions, success, looks)
            if answer is None:
                self._head = after
                for key, value in rows:
                    if value is None:
                        self._ahead.pop(key, None)
                return True
            stored = [self._stored(each) for row in answer for each in row.response_range.kvs]
            versions = {each.key: each.version for each in stored}
            if any(versions.get(key, 0) != version for key, version in expected.items()):
                return False
            # They are the right ones: now it is known how far they are ahead of etcd's own.
        raise StorageError("records in etcd change though this coordinator is their only writer")

    async def _holds(self, head: EtcdHead, expected: Mapping[str, int]) -> bool:
        """Return whether records have these versions. Nobody but the holder alters them, so it
        stays like that as long as the head is ours."""
        keys = list(expected)
        for at in range(0, len(keys), OPERATIONS_MAX // 2):
            part = keys[at : at + OPERATIONS_MAX // 2]
            if not await self._change(head, head, {key: expected[key] for key in part}, []):
                return False
        return True

    async def _stage(self, head: EtcdHead, after: EtcdHead, rows: Rows) -> None:
        """A change of any size: write it down, say that it has happened, carry it out."""
        await self._must(head, head, [delete_all(self._staged_keys)])
        count = 0
        for part in _parts(rows):
            value = json.dumps(part, ensure_ascii=False).encode()
            await self._must(head, head, [put(self._staged_key(count), value)])
            count += 1
        after = replace(after, staged=count)
        await self._must(head, after, [put(self._head_key, after.encode())])
        try:
            await self._move_staged()
        except OutOfSpaceError as error:  # it has happened: nobody may take it for refused
            raise StorageError(error.message) from error

    async def _move_staged(self) -> None:
        """Carry out a change that has happened. Whatever was moved before is passed over."""
        head = self._owned()
        for number in range(head.staged):
            key = self._staged_key(number)
            answer = await self._client.range(key)
            if answer.kvs:
                rows: Rows = [(name, value) for name, value in json.loads(answer.kvs[0].value)]
                moved = [self._operation(name, value) for name, value in rows]
                await self._must(head, head, [*moved, delete(key)], [has_version(key, 1)])
        after = replace(head, staged=0)
        await self._must(head, after, [put(self._head_key, after.encode())])

    async def _must(
        self,
        head: EtcdHead,
        after: EtcdHead,
        operations: Sequence[Any],
        conditions: Sequence[Any] = (),
    ) -> None:
        """Operations that only another holder of the epoch can keep from being carried out."""
        await self._fenced(head, after, conditions, operations, ())
        self._head = after

    async def _fenced(
        self,
        head: EtcdHead,
        after: EtcdHead,
        conditions: Sequence[Any],
        success: Sequence[Any],
        looks: Sequence[Any],
    ) -> Any:
        """Carry out operations if the head is ours.

        Returns:
            None when all is done; else what ``looks`` found when a condition did not hold.

        Raises:
            SupersededError: The head is another one; nothing was changed.
            StorageError: As ``MetadataStore.txn``.
        """
        key = self._head_key
        answer, is_repeated = await self._client.txn(
            [has_value(key, head.encode()), *conditions], success, [read(key), *looks]
        )
        kvs = () if answer.succeeded else answer.responses[0].response_range.kvs
        found = EtcdHead.decode(kvs[0].value) if kvs else None
        outcome = outcome_of(head, after, found, is_done=answer.succeeded, is_repeated=is_repeated)
        if outcome is TxnOutcome.DONE:
            return None
        if outcome is TxnOutcome.REFUSED:
            return answer.responses[1:]
        newest = f"epoch {found.epoch}" if found else "nobody's: it is gone"
        message = f"coordinator epoch {head.epoch} is not the newest: the head is {newest}"
        if outcome is TxnOutcome.UNKNOWN:
            raise StorageError(f"{message}, and the outcome of the last change is unknown")
        raise SupersededError(message)

    # --- rows -----------------------------------------------------------------------------------

    def _key(self, key: str) -> bytes:
        return self._records + key.encode()

    def _staged_key(self, number: int) -> bytes:
        return self._staged_keys + f"{number:08d}".encode()

    def _operation(self, key: str, value: str | None) -> Any:
        return delete(self._key(key)) if value is None else put(self._key(key), value.encode())

    def _stored(self, row: Any) -> Stored:
        key = row.key[len(self._records) :].decode()
        return stored_of(key, row, self._ahead)


def _rows(puts: Mapping[str, str], deletes: Iterable[str]) -> Rows:
    """Each key once, as etcd wants it."""
    return list({**puts, **dict.fromkeys(deletes)}.items())


def _size(rows: Iterable[tuple[str, str | None]]) -> int:
    """Bytes of keys and values, as if all were ASCII or nearly; etcd leaves half as much again."""
    return sum(len(key) + len((value or "").encode()) for key, value in rows)


def _parts(rows: Rows) -> Iterator[Rows]:
    """Rows for one transaction each. A row that is larger than all allow goes alone."""
    part: Rows = []
    size = 0
    for row in rows:
        row_bytes = _size([row])
        if part and (len(part) == OPERATIONS_MAX // 2 or size + row_bytes > BYTES_MAX // 2):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_bytes
    if part:
        yield part
