"""The workers of object storage, composed: uploads, mergers, tables, the sweeper, copies that nodes
drop, and what people are told.

An object store that takes long for a table or a sweep holds up no upload.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from icecore.model import NO_SEGMENT, NodeId, SegmentId
from icecore_coordinator.decisions.tiering import store_warnings
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.work.remote.copy_verifier import CopyVerifier
from icecore_coordinator.work.remote.local_copies import LocalCopies
from icecore_coordinator.work.remote.merging import Merging
from icecore_coordinator.work.remote.tier_sweeping import SweepScheduler
from icecore_coordinator.work.remote.tier_tables import TableScheduler
from icecore_coordinator.work.remote.tiering_errors import TieringErrors
from icecore_coordinator.work.remote.uploads import UploadScheduler
from icecore_coordinator.work.remote.withdrawals import Withdrawals
from icecore_coordinator.work.worker_ports import WorkerPorts


class TieringScheduler:
    """Level-triggered; keeps no state that matters.

    Args:
        ports: The cluster.
        spawn: Starts a task, under a name.
    """

    def __init__(
        self, ports: WorkerPorts, spawn: Callable[[Coroutine[Any, Any, None], str], None]
    ) -> None:
        self.errors = TieringErrors(ports.clock)
        verifier = CopyVerifier(ports, self.errors)
        self.local = LocalCopies(ports, verifier.verify, verifier.is_due)
        calling: dict[SegmentId, NodeId] = {}
        self.merging = Merging(ports, self.errors, calling, spawn)
        self._uploads = UploadScheduler(ports, self.errors, calling, spawn)
        self._withdrawals = Withdrawals(ports, verifier, self.errors)
        self._tables = TableScheduler(ports, self.errors, self._withdrawals.doubt)
        self._sweeper = SweepScheduler(ports, self.errors)
        self._ledger = ports.ledger
        self._live = ports.live
        self._alerts = ports.alerts
        self._told: dict[str, None] = {}
        """Warnings about the object stores of nodes that operators were told, and that still
        hold."""

    async def begin(self) -> None:
        """Begin the uploads that are due; each goes on as a task of its own."""
        self._tell_warnings()
        await self._uploads.look()

    async def wait_for_room(self, timeout_ms: float) -> None:
        """See ``UploadScheduler.wait_for_room``."""
        await self._uploads.wait_for_room(timeout_ms)

    async def follow(self) -> None:
        """Bring tables and objects to what metadata say; it may wait for the store."""
        await asyncio.gather(self._tables.look(), self._sweeper.look(), self._withdrawals.look())

    def _tell_warnings(self) -> None:
        """Each once; nodes store and serve what they have as before."""
        found = dict.fromkeys(store_warnings(self._ledger.state, self._live))
        for why in found:
            if why not in self._told:
                self._alerts.raise_alert(AlertKind.STORE, NO_SEGMENT, why)
        self._told = found
