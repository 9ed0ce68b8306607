"""Has published copies uploaded again whose objects are missing, while nodes have them (R100).

What is missing is heard from nodes that look for copies before others drop theirs, and from those
that can't bring a table up to date: then all copies of the partition that nodes have are looked
for. What was in a store that a person gave up is missing without a look.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from icecore.errors import IcecoreError
from icecore.model import NO_SEGMENT, NodeId, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierRecord
from icecore_coordinator.decisions.tier_withdrawal import (
    doubtful_copies,
    forgotten_copies,
    withdraw,
)
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey
from icecore_coordinator.work.remote.tiering_errors import VERIFY, TieringErrors
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

LOOKED_FOR_MAX = 256
"""Most copies of a partition that one look asks for."""
COPIES_PER_LOOK = 512


class MissingCopies(Protocol):
    """Sight of copies in the object store; see ``CopyVerifier``."""

    def is_due(self, segment_id: SegmentId) -> bool:
        """Return whether it may be asked for now."""
        ...

    async def verify(self, segment_ids: Iterable[SegmentId]) -> Mapping[SegmentId, int]:
        """Have nodes look for published copies."""
        ...

    def take_missing(self) -> Mapping[SegmentId, int]:
        """Take what is missing for certain: the attempts, by segment. Each is returned once."""
        ...

    def tell_unseen(self, tier: TierRecord) -> None:
        """Tell an operator that this copy is not found, and that nothing mends it."""
        ...


class Withdrawals:
    """Keeps only which partitions are in doubt; each failed commit says so again.

    Args:
        ports: The cluster.
        verifier: Has copies looked for.
        errors: What went wrong, for people.
    """

    def __init__(self, ports: WorkerPorts, verifier: MissingCopies, errors: TieringErrors) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._alerts = ports.alerts
        self._verifier = verifier
        self._errors = errors
        self._doubtful: dict[PartitionKey, None] = {}

    def doubt(self, key: PartitionKey) -> None:
        """Some published copy of this partition may be missing."""
        self._doubtful[key] = None

    async def look(self) -> None:
        """Look for what is in doubt, and take back what is missing."""
        forgotten = list(forgotten_copies(self._ledger.state, self._has_copy))
        for at in range(0, len(forgotten), COPIES_PER_LOOK):
            await self._withdraw(forgotten[at : at + COPIES_PER_LOOK], "the store was given up")
        doubtful, self._doubtful = self._doubtful, {}
        for key in doubtful:
            found = filter(self._verifier.is_due, doubtful_copies(self._ledger.state, key))
            await self._verifier.verify(islice(found, LOOKED_FOR_MAX))
        await self._withdraw([*self._verifier.take_missing().items()], "its objects are missing")

    async def _withdraw(self, copies: Sequence[tuple[SegmentId, int]], why: str) -> None:
        def decision(state: ClusterState, copy: tuple[SegmentId, int]) -> Change:
            segment_id, attempt = copy
            return withdraw(
                state, segment_id, attempt, lambda node_id: self._has_copy(node_id, segment_id)
            )

        results = await self._ledger.decide_each(copies, decision)
        topics: dict[bytes, None] = {}
        for (segment_id, attempt), result in zip(copies, results, strict=True):
            if isinstance(result, IcecoreError):
                event(_log, logging.WARNING, "copy_stays", segment_id=segment_id, error=result)
                if tier := self._ledger.state.tiers.segments.get(segment_id):
                    self._verifier.tell_unseen(tier)
            elif result.puts:
                topics[self._ledger.state.segments[segment_id].segment.topic_id] = None
                event(
                    _log,
                    logging.WARNING,
                    "copy_withdrawn",
                    segment_id=segment_id,
                    attempt=attempt,
                    why=why,
                )
        for topic_id in topics:
            self._errors.forget(topic_id, VERIFY)
            topic = self._ledger.state.topics.get(topic_id)
            name = topic.name if topic is not None else topic_id.hex()
            self._alerts.raise_alert(
                AlertKind.MISSING,
                NO_SEGMENT,
                f"published copies of topic {name} were missing in the object store ({why}): the "
                "nodes that have the records upload them again",
            )

    def _has_copy(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        return self._live.is_live(node_id) and self._copies.has_copy(node_id, segment_id)
