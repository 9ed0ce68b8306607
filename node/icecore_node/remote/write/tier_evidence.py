"""Evidence against orders that take something out of object storage or its tables.

Such an order may be forged, late, or come of wrong metadata, and nothing brings back what it took.
So this node compares it with the topics that it has heard of itself, and with the published copies
that its own coordinator names when it is asked. A contradiction is refused, and nothing changes
(R103). Absence proves nothing: while this node has heard of no topics, and while no coordinator
answers, the order waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from icecore.errors import InvalidRequestError, UnavailableError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.tier_records import copy_path
from icecore.v1 import coordinator_pb2
from icecore_node.metrics import NodeMetrics
from icecore_node.registry.topic_mirror import TopicMirror

_log = logging.getLogger(__name__)

Describe: TypeAlias = Callable[[SegmentId], Awaitable[coordinator_pb2.DescribedCopy]]
"""Asks the coordinator about one segment; requests made at the same time share a call."""
ASKED_AT_ONCE: Final = 500


class TierEvidence:
    """Raises for orders that this node knows to be wrong. Loop only.

    Args:
        mirror: Topics as the coordinator last reported them.
        describe: Asks the coordinator for the published copy of a segment.
        metrics: Count refusals.
    """

    def __init__(self, mirror: TopicMirror, describe: Describe, metrics: NodeMetrics) -> None:
        self._mirror = mirror
        self._describe = describe
        self._metrics = metrics

    def check_gone(self, topic_id: bytes) -> None:
        """Raises InvalidRequestError for a topic that is there, UnavailableError when this node has
        heard of no topics."""
        if self._mirror.is_empty:
            raise UnavailableError("this node has not heard yet which topics there are")
        if self._mirror.shows(topic_id):
            self._refuse("sweep", f"topic {topic_id.hex()} is not deleted, as far as is known here")

    async def check_closed(self, segment_id: SegmentId, attempt: int) -> None:
        """Raises InvalidRequestError for an attempt that is published, and what the call raises."""
        if await self._is_published(segment_id, attempt):
            self._refuse("sweep", f"attempt {attempt} of segment {segment_id} is published")

    async def check_taken_out(self, topic: str, paths: Iterable[str]) -> None:
        """Raises InvalidRequestError when a table would lose a copy that is published, and what
        the call raises.

        Args:
            topic: Name of the topic whose table it is.
            paths: Paths of the copies that the table names and would not name any more.
        """
        found = [each for each in map(copy_path, paths) if each is not None]
        for at in range(0, len(found), ASKED_AT_ONCE):
            some = found[at : at + ASKED_AT_ONCE]
            published = await asyncio.gather(
                *(self._is_published(each.segment_id, each.attempt) for each in some)
            )
            for each, is_published in zip(some, published, strict=True):
                if is_published:
                    self._refuse(
                        "commit_tables",
                        f"the table of {topic} would lose attempt {each.attempt} of segment "
                        f"{each.segment_id}, which is published",
                    )

    async def _is_published(self, segment_id: SegmentId, attempt: int) -> bool:
        found = await self._describe(segment_id)
        return found.HasField("copy") and found.copy.attempt == attempt

    def _refuse(self, order: str, why: str) -> None:
        self._metrics.orders_refused.labels(order).inc()
        event(_log, logging.CRITICAL, "order_refused", order=order, why=why)
        raise InvalidRequestError(
            f"{why}: the order to take it away contradicts that, and nothing was removed"
        )
