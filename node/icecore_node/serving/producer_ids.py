"""Producer ids that this node may hand out. It fetches some ahead, so that producers can start
while no coordinator answers.

Each id is given once. Ids left when the process ends are lost; there are enough.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from icecore.errors import IcecoreError, UnavailableError
from icecore.process.log import event
from icecore.rpc.methods import COORDINATOR
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CALL_TIMEOUT_S, CoordinatorLink

_log = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""Number of ids per request to the coordinator. The next request follows when half of them are
used."""


class ProducerIds:
    """The producer ids of one process; ``run`` goes on until it is cancelled."""

    def __init__(self, context: NodeContext, coordinator: CoordinatorLink) -> None:
        self._context = context
        self._coordinator = coordinator
        self._ids: deque[int] = deque()
        self._asking = asyncio.Lock()
        self._is_low = asyncio.Event()
        self._is_low.set()

    async def take(self) -> int:
        """Return an id that was never handed out before.

        Raises UnavailableError when none is left and the coordinator gives no more.
        """
        while not self._ids:
            await self._ask()
        producer_id = self._ids.popleft()
        if len(self._ids) < AT_ONCE // 2:
            self._is_low.set()
        return producer_id

    async def run(self) -> None:
        """Keep some ids ahead."""
        while True:
            await self._is_low.wait()
            self._is_low.clear()
            try:
                await self._ask()
            except IcecoreError as error:
                event(_log, logging.INFO, "producer_ids_not_got", left=len(self._ids), error=error)
                self._is_low.set()
                await asyncio.sleep(self._context.settings.timing.producer_id_retry_ms / 1000)

    async def _ask(self) -> None:
        """Get more ids, unless another task did so meanwhile."""
        async with self._asking:
            if len(self._ids) >= AT_ONCE // 2:
                return
            request = coordinator_pb2.AllocateProducerIdsRequest(
                cluster_id=self._context.identity.cluster_id, count=AT_ONCE
            )
            try:
                body = await self._coordinator.ask(
                    COORDINATOR["AllocateProducerIds"], request.SerializeToString(), CALL_TIMEOUT_S
                )
            except IcecoreError as error:
                if not error.retriable:
                    raise
                raise UnavailableError(
                    f"node {self._context.identity.node_id} has no producer ids left, and the "
                    f"coordinator at {self._coordinator.address} gave none: {error.message}"
                ) from error
            answer = coordinator_pb2.AllocateProducerIdsResponse.FromString(body)
            first = answer.first_producer_id
            self._ids.extend(range(first, first + answer.count))
