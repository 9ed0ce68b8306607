"""Removal of objects that are not needed any more, on the coordinator's order.

No other part removes objects. Metadata close an attempt before an order names it. So the order
holds whatever happens meanwhile, also when it comes twice; but a node stops when it hears a newer
coordinator, and it refuses what ``tier_evidence`` contradicts. The manifest goes first: without it
the objects left are no copy.
"""

import logging
from collections.abc import Callable

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.process.log import event
from icecore.tier_records import topic_folder
from icecore_node.context import NodeContext
from icecore_node.remote.access import TierAccess
from icecore_node.remote.format.manifest import SUFFIXES, CopyName
from icecore_node.remote.format.stored_settings import FOLDER as SETTINGS_FOLDER
from icecore_node.remote.write.tier_evidence import TierEvidence
from icecore_node.remote.write.tier_tables import check_name
from icecore_node.replica.order_checks import TOPIC_ID_LENGTH

_log = logging.getLogger(__name__)


class Sweeper:
    """Removes objects. Loop only."""

    def __init__(self, context: NodeContext, access: TierAccess, evidence: TierEvidence) -> None:
        self._context = context
        self._access = access
        self._evidence = evidence

    async def sweep(self, name: CopyName, check: Callable[[], None]) -> None:
        """Remove all objects of one upload; those that are not there are fine.

        Args:
            name: The upload.
            check: Raises an error when the order must end; called before each removal.

        Raises:
            InvalidRequestError: There can be no such upload, or it is published.
            UnsupportedError, ObjectStoreError, ObjectStoreBusyError: As the object store has it.
        """
        try:
            check_name(name)
            await self._evidence.check_closed(name.segment_id, name.attempt)
            await self._access.confirm()
            for suffix in SUFFIXES:
                check()
                await self._remove(name.key(suffix))
        except IcecoreError as error:
            self._note_failed(error, f"attempt {name.attempt} of segment {name.segment_id}")
            raise
        event(_log, logging.INFO, "swept", segment_id=name.segment_id, attempt=name.attempt)

    async def sweep_topic(self, topic_id: bytes, check: Callable[[], None]) -> None:
        """Remove everything of a topic that is gone for good, its table included. A listing may be
        late, so an order that comes again may find more.

        Raises as ``sweep``.
        """
        removed = 0
        try:
            if len(topic_id) != TOPIC_ID_LENGTH:
                raise InvalidRequestError(f"a topic id has {TOPIC_ID_LENGTH} bytes")
            self._evidence.check_gone(topic_id)
            await self._access.confirm()
            folder = topic_folder(topic_id)
            keys = [each.key async for each in self._access.store.list(folder)]
            # Settings say that the topic is deleted, as long as anything of it is there.
            said = f"{folder}/{SETTINGS_FOLDER}/"
            for key in sorted(keys, key=lambda each: (each.startswith(said), each)):
                check()
                await self._remove(key)
                removed += 1
        except IcecoreError as error:
            self._note_failed(error, f"topic {topic_id[:16].hex()}")
            raise
        if removed:
            event(_log, logging.INFO, "topic_swept", topic_id=topic_id, removed=removed)

    async def _remove(self, key: str) -> None:
        await self._access.store.delete(key)
        self._context.metrics.tier_swept_objects.inc()

    def _note_failed(self, error: IcecoreError, what: str) -> None:
        self._context.metrics.tier_errors.labels("sweep", type(error).__name__).inc()
        event(_log, logging.WARNING, "not_swept", what=what, error=error)
