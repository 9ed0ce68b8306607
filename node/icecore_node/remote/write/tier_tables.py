"""Tables of topics brought to what metadata say is published, on the coordinator's order.

An order names all published copies of a partition and the revision of that. Only manifests of
copies that the table does not name yet are read, each proved by its hash in metadata. One commit
at a time for a topic, because commits of this node would only get in each other's way; those of
other nodes are met with another try.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from icecore.errors import ConflictError, IcecoreError, InvalidRequestError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.remote.access import TierAccess
from icecore_node.remote.format.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    CopyName,
    PublishedCopy,
    parse_published,
)
from icecore_node.remote.format.stored_settings import (
    SettingsKeeper,
    StoredSettings,
    check_settings_order,
)
from icecore_node.remote.format.table_file import TableFile, table_file
from icecore_node.remote.write.tier_evidence import TierEvidence
from icecore_node.replica.order_checks import (
    NUMBER_MAX,
    PARTITION_MAX,
    TOPIC_ID_LENGTH,
)

_log = logging.getLogger(__name__)

TRIES: Final = 4
"""Maximum number of tries of one order, when other nodes commit to the same table."""
READS_AT_ONCE: Final = 16
WITHOUT_ROWS_MAX: Final = 100_000
TOPIC_CHARACTERS_MAX: Final = 249


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """All that is published of a partition, as of a revision."""

    topic_id: bytes
    topic: str
    partition: int
    revision: int
    copies: Sequence[PublishedCopy]
    settings: StoredSettings
    """Settings of the topic."""


class TierTables:
    """All tables that this node commits to. Loop only."""

    def __init__(self, context: NodeContext, access: TierAccess, evidence: TierEvidence) -> None:
        self._context = context
        self._evidence = evidence
        self._access = access
        self._settings = SettingsKeeper()
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._without_rows: dict[str, None] = {}
        """Paths of copies that no table will ever name, newest last: their manifests were read."""

    async def commit(self, asked: PublishedPartition, check: Callable[[], None]) -> None:
        """Return when the table is at this revision or a later one.

        Args:
            asked: The state to bring the table to.
            check: Raises an error when the order must end; called before each commit.

        Raises:
            InvalidRequestError: There can be no such partition or copy, or the table would lose
                a copy that is published.
            ConflictError: Other nodes came first again and again: look at metadata again.
            TieredDamageError: A manifest is not the one that was published.
            UnsupportedError, ObjectStoreError, ObjectStoreBusyError: As the object store has it.
        """
        metrics = self._context.metrics
        try:
            _check_order(asked)
            turn = self._turns.setdefault(asked.topic_id, asyncio.Lock())
            async with turn:
                if await self._persistently(asked, check):
                    metrics.tier_commits.inc()
        except IcecoreError as error:
            metrics.tier_errors.labels("commit", type(error).__name__).inc()
            event(
                _log,
                logging.WARNING,
                "table_not_committed",
                topic=asked.topic,
                partition=asked.partition,
                revision=asked.revision,
                error=error,
            )
            raise

    async def mark_gone(self, topic_id: bytes, version: int, check: Callable[[], None]) -> None:
        """Note beside the copies of a topic that it is deleted for good.

        Args:
            topic_id: Of the topic.
            version: Of what is said of it; no earlier settings count any more.
            check: Raises an error when the order must end.

        Raises as ``commit``.
        """
        settings = StoredSettings(version, is_deleted=True)
        try:
            if len(topic_id) != TOPIC_ID_LENGTH:
                raise InvalidRequestError(f"a topic id has {TOPIC_ID_LENGTH} bytes")
            check_settings_order(settings)
            self._evidence.check_gone(topic_id)
            await self._access.confirm()
            check()
            store, cluster_id = self._access.store, self._access.cluster_id
            await self._settings.keep(store, cluster_id, topic_id, settings)
        except IcecoreError as error:
            self._context.metrics.tier_errors.labels("mark", type(error).__name__).inc()
            event(
                _log,
                logging.WARNING,
                "topic_not_marked",
                topic_id=topic_id[:TOPIC_ID_LENGTH],
                error=error,
            )
            raise

    async def _persistently(self, asked: PublishedPartition, check: Callable[[], None]) -> bool:
        for again in range(TRIES):
            check()
            try:
                return await self._commit(asked, check)
            except ConflictError:
                if again == TRIES - 1:
                    raise
                retry_s = self._context.settings.timing.table_retry_ms / 1000
                await asyncio.sleep(retry_s * (again + self._context.rng.random()))
        raise AssertionError("the last try returns or raises")

    async def _commit(self, asked: PublishedPartition, check: Callable[[], None]) -> bool:
        await self._access.confirm()
        table = self._access.table(asked.topic_id, asked.topic)
        copies = {each.name.path: each for each in asked.copies}
        run = self._context.executor.run
        rows = [path for path in copies if path not in self._without_rows]
        unnamed, taken_out = await run(table.compare, asked.partition, asked.revision, rows)
        await self._evidence.check_taken_out(asked.topic, taken_out)
        files: list[TableFile] = []
        for at in range(0, len(unnamed), READS_AT_ONCE):
            check()
            some = unnamed[at : at + READS_AT_ONCE]
            found = await asyncio.gather(*(self._file(copies[path]) for path in some))
            files += [each for each in found if each is not None]
        rows = [path for path in rows if path not in self._without_rows]
        check()
        store, cluster_id = self._access.store, self._access.cluster_id
        await self._settings.keep(store, cluster_id, asked.topic_id, asked.settings)
        check()
        now_ms = self._context.clock.now_ms()
        return await run(table.bring_to, asked.partition, asked.revision, rows, files, now_ms)

    async def _file(self, copy: PublishedCopy) -> TableFile | None:
        """Read a copy's manifest and return its entry for the table; None for a copy without
        rows."""
        key = copy.name.key(MANIFEST)
        data = await self._access.store.get_whole(key, MANIFEST_BYTES_MAX)
        manifest = await self._context.executor.run(parse_published, data, copy)
        found = table_file(manifest)
        if found is None:
            self._without_rows[copy.name.path] = None
            if len(self._without_rows) > WITHOUT_ROWS_MAX:
                del self._without_rows[next(iter(self._without_rows))]
        return found


def _check_order(asked: PublishedPartition) -> None:
    if len(asked.topic_id) != TOPIC_ID_LENGTH:
        raise InvalidRequestError(f"a topic id has {TOPIC_ID_LENGTH} bytes")
    if not 0 < len(asked.topic) <= TOPIC_CHARACTERS_MAX:
        raise InvalidRequestError(f"no topic has the name {asked.topic[:50]!r}")
    if not 0 <= asked.partition <= PARTITION_MAX:
        raise InvalidRequestError(f"no partition {asked.partition}")
    if not 1 <= asked.revision <= NUMBER_MAX:
        raise InvalidRequestError(f"no table has revision {asked.revision}")
    check_settings_order(asked.settings)
    for each in asked.copies:
        check_name(each.name)
    if len({each.name.path for each in asked.copies}) != len(asked.copies):
        raise InvalidRequestError("a copy is named twice")


def check_name(name: CopyName) -> None:
    """Raises InvalidRequestError for numbers that no copy can have: they are parts of keys."""
    if len(name.topic_id) != TOPIC_ID_LENGTH:
        raise InvalidRequestError(f"a topic id has {TOPIC_ID_LENGTH} bytes")
    if not 0 <= name.partition <= PARTITION_MAX:
        raise InvalidRequestError(f"no partition {name.partition}")
    least = {"segment_id": 1, "generation": 0, "base_offset": 0, "attempt": 1}
    for field, lowest in least.items():
        value = getattr(name, field)
        if not lowest <= value <= NUMBER_MAX:
            raise InvalidRequestError(f"no copy has {field} {value}")
