"""Keeps the mirror of all topics at what the coordinator has, by asking for what changed.

Each message on the heartbeat stream says how many changes there are: while that is what is known
here, nothing is asked, and the mirror is as old as the last message.
"""

import asyncio
import logging

from icecore.errors import IcecoreError
from icecore.model import CoordinatorEpoch
from icecore.process.log import event
from icecore.rpc.methods import MIRROR
from icecore.v1 import mirror_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CALL_TIMEOUT_S, CoordinatorLink
from icecore_node.registry.topic_mirror import TopicMirror

_log = logging.getLogger(__name__)


class TopicFollowing:
    """Follows the topics for one node; ``run`` goes on until it is cancelled."""

    def __init__(
        self, context: NodeContext, coordinator: CoordinatorLink, mirror: TopicMirror
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._mirror = mirror
        self._is_due = asyncio.Event()

    def heard(self, coordinator_epoch: CoordinatorEpoch, version: int) -> None:
        """The coordinator with this epoch has this version now; 0 = it does not say."""
        mirror = self._mirror
        if not version:
            return
        if (mirror.coordinator_epoch, mirror.version) == (coordinator_epoch, version):
            mirror.note_newest(self._context.clock.monotonic_ms())
        else:
            self._is_due.set()

    async def run(self) -> None:
        """Ask whenever there is something new."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._catch_up()
            except IcecoreError as error:  # the next heartbeat that is answered says it again
                event(_log, logging.INFO, "topics_not_followed", error=error)
            # What changes all the time is asked for together.
            await asyncio.sleep(self._context.settings.timing.topic_follow_ms / 1000)

    async def _catch_up(self) -> None:
        """Page after page until the mirror is whole, or a page does not follow."""
        identity, mirror = self._context.identity, self._mirror
        while True:
            place, now_ms = mirror.place, self._context.clock.monotonic_ms()
            request = mirror_pb2.FollowTopicsRequest(
                cluster_id=identity.cluster_id,
                coordinator_epoch=place.coordinator_epoch,
                since_version=place.since_version,
                after_version=place.after_version,
            )
            body = await self._coordinator.ask(
                MIRROR["FollowTopics"], request.SerializeToString(), CALL_TIMEOUT_S
            )
            page = mirror_pb2.FollowTopicsResponse.FromString(body)
            if (
                page.cluster_id != identity.cluster_id
                or page.coordinator_epoch < identity.coordinator_epoch
            ):
                return  # of somebody who is no coordinator of ours any more
            if mirror.take(page):
                mirror.note_newest(now_ms)
            if mirror.place == place or not page.more:
                return
