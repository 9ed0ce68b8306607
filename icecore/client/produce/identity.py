"""The identity of a producer for leaders: an id and an epoch, found before the first batch.

Without a name each search gives a fresh id; with one, the next epoch of the name's. All partitions
that need one share a search.
"""

import asyncio
from typing import Final

from icecore.client.cluster.connection import Backoff, Connection, share
from icecore.client.cluster.metadata import Metadata
from icecore.client.produce.batches import Identity
from icecore.client.produce.producer_name import ProducerName
from icecore.errors import IcecoreError, ProducerFencedError, UnavailableError
from icecore.v1 import data_pb2

ATTEMPT_S: Final = 5.0


class Identities:
    """The identity of one producer, and its successors.

    Args:
        connection: The way to the cluster.
        metadata: Which nodes can be asked.
        name: Of the producer, if it has one.
        idempotent: Without, the identity is none, and stays.
        attempt_s: How long one node is waited for.
    """

    def __init__(
        self,
        connection: Connection,
        metadata: Metadata,
        name: ProducerName | None,
        *,
        idempotent: bool,
        attempt_s: float = ATTEMPT_S,
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._name = name
        self._attempt_s = attempt_s
        self._finding: asyncio.Future[Identity] | None = None
        self.current: Identity | None = None if idempotent else Identity(0, 0)
        """For batches that have no number yet; None until it is found."""

    @property
    def lost(self) -> ProducerFencedError | None:
        """Why nothing can be sent any more: somebody else has taken the name."""
        return self._name.lost if self._name is not None else None

    def give_up(self, identity: Identity | None) -> None:
        """Batches under ``identity`` left a gap: the next search finds another one."""
        if identity == self.current:
            self.current = None

    def cancel(self) -> "asyncio.Future[Identity] | None":
        """Stop searching; what to wait for."""
        if self._finding is not None:
            self._finding.cancel()
        return self._finding

    async def take_name(self, timeout_ms: float) -> None:
        """Take the producer's name over, if it has one; then nobody else can append under it.

        Raises:
            IcecoreError: That was not possible within ``timeout_ms``.
        """
        if self._name is None:
            return
        give_up_ms = self._connection.clock.monotonic_ms() + timeout_ms
        backoff = Backoff(self._connection.rng, 30, 1000)
        while True:
            left_s = (give_up_ms - self._connection.clock.monotonic_ms()) / 1000
            try:
                await self._metadata.refresh(timeout_s=max(0.001, left_s))
                await self.find()
            except IcecoreError as error:
                delay_s = backoff.next_s(error)
                past_ms = self._connection.clock.monotonic_ms() + delay_s * 1000
                if not error.retriable or past_ms >= give_up_ms:
                    raise
                await asyncio.sleep(delay_s)
            else:
                return

    async def find(self) -> Identity:
        """The current identity, or the next one after that was given up."""
        if self.current is not None:
            return self.current
        if self._finding is None or self._finding.done():
            self._finding = share(self._ask())
        finding = self._finding  # shared by all partitions; the next search may have begun below
        await asyncio.wait({finding})
        return finding.result()

    async def _ask(self) -> Identity:
        request = data_pb2.InitProducerRequest(cluster_id=self._metadata.view.cluster_id)
        if self._name is not None:
            self._name.fill(request)
        view = self._metadata.view
        addresses = [
            address for each in view.nodes if (address := view.address(each)) and view.is_up(each)
        ]
        if not addresses:
            raise UnavailableError("no node is up")
        address = addresses[int(self._connection.rng.random() * len(addresses))]
        try:
            answer = await self._connection.data(
                address,
                "InitProducer",
                request,
                data_pb2.InitProducerResponse,
                timeout_s=self._attempt_s,
            )
        except ProducerFencedError as error:
            if self._name is not None:
                self._name.lost = error
            raise
        if self._name is not None:
            self._name.is_taken = True
        self.current = Identity(answer.producer_id, answer.producer_epoch)
        return self.current
