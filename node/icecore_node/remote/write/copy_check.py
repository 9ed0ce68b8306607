"""Sight of a published copy through this node's own way to the object store, on the coordinator's
order: before nodes drop what they have of the segment (R87).
"""

import logging
from collections.abc import Callable
from typing import Final

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.remote.access import TierAccess
from icecore_node.remote.format.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    PublishedCopy,
    TieredDamageError,
    parse_published,
)
from icecore_node.remote.write.tier_tables import check_name

_log = logging.getLogger(__name__)

CHECKS_AT_ONCE: Final = 8


class CopyCheck:
    """Looks for copies and reads nothing of their records: the uploader has read them back, and
    each part is proved by its hash whenever it is read. Loop only."""

    def __init__(self, context: NodeContext, access: TierAccess) -> None:
        self._context = context
        self._access = access

    async def check(self, copy: PublishedCopy, go_on: Callable[[], None]) -> None:
        """Return when the manifest is the published one, and all objects that it names are there,
        as long as it says.

        Args:
            copy: The copy.
            go_on: Raises an error when the order must end; called before each request.

        Raises:
            InvalidRequestError: There can be no such copy.
            TieredDamageError: The manifest or an object is another one.
            UnsupportedError, ObjectStoreError, ObjectStoreBusyError: As the object store has it.
        """
        try:
            check_name(copy.name)
            await self._check(copy, go_on)
        except IcecoreError as error:
            self._context.metrics.tier_errors.labels("verify", type(error).__name__).inc()
            event(
                _log,
                logging.WARNING,
                "copy_not_seen",
                segment_id=copy.name.segment_id,
                attempt=copy.name.attempt,
                error=error,
            )
            raise

    async def _check(self, copy: PublishedCopy, go_on: Callable[[], None]) -> None:
        store = self._access.store
        go_on()
        data = await store.get_whole(copy.name.key(MANIFEST), MANIFEST_BYTES_MAX)
        manifest = await self._context.executor.run(parse_published, data, copy)
        for each in (manifest.parquet, manifest.index, manifest.side):
            if each is None:
                continue
            go_on()
            found = await store.head(each.key)
            if found.size_bytes != each.size_bytes:
                raise TieredDamageError(
                    f"{each.key} has {found.size_bytes} bytes, not {each.size_bytes}"
                )
