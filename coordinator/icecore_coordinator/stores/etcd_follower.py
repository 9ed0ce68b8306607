"""Follows the metadata in etcd while another coordinator changes them.

So a take-over reads nothing: it waits until its own head has come by the watch, for then everything
before it has. Where that is not certain all is read again; nothing depends on the watch but time.
"""

import asyncio
import contextlib
import logging
from itertools import groupby
from typing import Any, Final

from icecore.errors import IcecoreError, StorageError
from icecore.process.garbage import without_collector
from icecore.process.log import event
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.stores.etcd_client import CompactedError, EtcdClient
from icecore_coordinator.stores.etcd_layout import HEAD, RECORDS, EtcdHead
from icecore_coordinator.stores.etcd_messages import end_of
from icecore_coordinator.stores.followed_records import FollowedRecords

_log = logging.getLogger(__name__)
_ROWS_PER_PAGE: Final = 10_000
"""etcd counts the rest of a range for each page, so many small pages take it a square of time."""
_ROWS_PER_TURN: Final = 500
"""Decoded at once: the election must not wait for it."""
_RETRY_S: Final = 0.5
_BARRIER_S: Final = 1.0
"""A take-over waits so long for the watch; to read a small cluster again takes less."""


class EtcdFollower:
    """Keeps the state up to date. ``start``, then ``stop``.

    Args:
        settings: Where etcd is, and who asks.
        state: Of the coordinator that this process may become.
    """

    def __init__(self, settings: EtcdSettings, state: ClusterState) -> None:
        self._client = EtcdClient(settings)
        self._prefix = settings.prefix.encode()
        self._silence_s = settings.session_ms / 2000
        self._records = FollowedRecords(self._prefix, state)
        self._revision = 0
        """etcd's, up to which everything was told; 0 = all has to be read."""
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Follow no more. Idempotent."""
        await self._follow_no_more()
        await self._client.close()

    async def hand_over(self, head: EtcdHead) -> dict[str, int] | None:
        """Follow no more. The state is that of this head, which nobody replaces meanwhile.

        Returns:
            How far versions are ahead of etcd's own counts; None = the state is of no use, for it
            is not certain that it has everything.

        Raises as ``EtcdClient.range``.
        """
        try:
            async with asyncio.timeout(_BARRIER_S):
                while self._revision == 0 or self._records.head != head:
                    self._moved.clear()
                    await self._moved.wait()
                begin = self._prefix + RECORDS
                count = await self._client.count(begin, end_of(begin))
                return self._records.ahead if count == len(self._records) else None
        except TimeoutError:
            return None
        finally:
            await self._follow_no_more()

    async def _follow_no_more(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                if self._revision == 0:
                    with without_collector():
                        await self._read_all()
                await self._watch()
            except CompactedError:
                self._revision = 0
            except (IcecoreError, LookupError, ValueError) as error:
                event(_log, logging.INFO, "metadata_not_followed", error=error)
                await asyncio.sleep(_RETRY_S)

    async def _read_all(self) -> None:
        """Read page by page, all as of one revision of etcd."""
        self._records.begin()
        revision = await self._read_below(self._prefix + HEAD, 0)
        self._revision = await self._read_below(self._prefix + RECORDS, revision)
        event(_log, logging.INFO, "metadata_followed", records=len(self._records))
        self._moved.set()

    async def _read_below(self, begin: bytes, revision: int) -> int:
        """All rows whose keys begin so; the revision of etcd as of which they are."""
        end = end_of(begin)
        while True:
            answer = await self._client.range(begin, end, _ROWS_PER_PAGE, revision)
            revision = revision or answer.header.revision
            for at in range(0, len(answer.kvs), _ROWS_PER_TURN):
                self._records.load(answer.kvs[at : at + _ROWS_PER_TURN])
                await asyncio.sleep(0)
            if not answer.more:
                return revision
            begin = answer.kvs[-1].key + b"\0"

    async def _watch(self) -> None:
        """Take what is told until the watch breaks. Raises StorageError."""
        changes = self._client.watch(
            self._prefix, end_of(self._prefix), self._revision + 1, self._silence_s
        )
        async with contextlib.aclosing(changes):
            async for answer in changes:
                # Whoever is behind is told of many changes at once.
                for revision, events in groupby(answer.events, _revision_of):
                    self._revision = 0  # a change that was taken by half is of no use
                    if not self._records.change(events):
                        raise StorageError("a change is missing in what etcd has told")
                    self._revision = revision
                    self._moved.set()


def _revision_of(told: Any) -> int:
    """etcd's revision in which something happened."""
    return int(told.kv.mod_revision)
