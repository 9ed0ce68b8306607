"""The workers of object storage, composed.

A segment is uploaded, and small ones are merged, by ``uploads.py``. Tables name what is published,
and objects of what is gone are swept, by ``tables_and_sweeps.py``. Nodes drop their copies of what
was seen in the store, and what is missing there is withdrawn, by ``verified_copies.py``. A topic is
restored from a bucket by ``tier_import.py``. What each of them may do, ``decisions/remote/`` says.

An object store that takes long for a table or a sweep holds up no upload.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from icecore.model import NO_SEGMENT, NodeId, SegmentId
from icecore_coordinator.decisions.remote.tiering import store_warnings
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.work.remote.tables_and_sweeps import SweepScheduler, TableScheduler
from icecore_coordinator.work.remote.tier_nodes import TieringErrors
from icecore_coordinator.work.remote.uploads import Merging, UploadScheduler
from icecore_coordinator.work.remote.verified_copies import CopyVerifier, LocalCopies, Withdrawals
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
        self.local = LocalCopies(ports, verifier)
        calling: dict[SegmentId, NodeId] = {}
        self.merging = Merging(ports, self.errors, calling, spawn)
        self._uploads = UploadScheduler(ports, self.errors, calling, spawn)
        self.room = self._uploads.room
        """Set when another upload may begin."""
        self._withdrawals = Withdrawals(ports, verifier, self.errors)
        self._tables = TableScheduler(ports, self.errors, self._withdrawals.doubt)
        self._sweeper = SweepScheduler(ports, self.errors)
        self._ledger = ports.ledger
        self._live = ports.live
        self._alerts = ports.alerts
        self._told: dict[str, None] = {}
        """Warnings about the object stores of nodes that operators were told, and that still
        hold."""

    def doubt(self, segment_id: SegmentId) -> None:
        """A node could not read the published copy of this segment."""
        self._withdrawals.doubt_copy(segment_id)

    async def begin(self) -> None:
        """Begin the uploads that are due; each goes on as a task of its own."""
        self._tell_warnings()
        await self._uploads.look()

    async def follow(self) -> None:
        """Bring tables and objects to what metadata say; it may wait for the store."""
        await asyncio.gather(self._tables.look(), self._sweeper.look(), self._withdrawals.look())

    def _tell_warnings(self) -> None:
        """Each once, for as long as it holds; nodes store and serve what they have as before."""
        found = dict.fromkeys(store_warnings(self._ledger.state, self._live))
        for why in found:
            if why not in self._told:
                holds = partial(self._holds, why)
                self._alerts.raise_alert(AlertKind.STORE, NO_SEGMENT, why, holds)
        self._told = found

    def _holds(self, why: str) -> bool:
        return why in store_warnings(self._ledger.state, self._live)
