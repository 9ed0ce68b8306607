"""Identity of a producer for leaders: an id and an epoch, found before the first batch, and
the name by which a successor takes them over; and all names that producers have taken.

Without a name each search gives a fresh id; with one, the next epoch of the name's. All partitions
that need one share a search.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from icecore.client.checks import names, text
from icecore.client.cluster.connection import Backoff, Connection, share
from icecore.client.cluster.metadata import Metadata
from icecore.client.produce.batches import ProducerIdentity
from icecore.client.types import ProducerNameInfo
from icecore.errors import ConfigurationError, IcecoreError, ProducerFencedError, UnavailableError
from icecore.rpc.ports import Rng
from icecore.v1 import admin_pb2, data_pb2

# --- the name of a producer -----------------------------------------------------------------------

# The name of a producer: one id and rising epochs, so that an earlier owner can append no more.


@dataclass
class ProducerName:
    """A name, what it is needed for, and whether it is ours."""

    name: str
    topics: tuple[str, ...]
    instance: int
    """Tells us from others that use the name."""
    is_taken: bool = False
    """Once it was ours it is only renewed: who takes it afterwards keeps it."""
    lost: ProducerFencedError | None = None

    def fill(self, request: data_pb2.InitProducerRequest) -> None:
        """Ask for the name's next epoch."""
        request.producer_name = self.name
        request.topics.extend(self.topics)
        request.instance = self.instance
        request.renew = self.is_taken


def producer_name(
    name: str, topics: Sequence[str], is_idempotent: bool, rng: Rng
) -> ProducerName | None:
    """The name a producer was given, None when it has none.

    Raises:
        TypeError: The name is no string, or the topics are no sequence of names.
        ConfigurationError: Topics without a name, or a name without numbered batches.
    """
    text("producer_name", name)
    wanted = names("producer_topics", topics)
    if not name and not wanted:
        return None
    if not name or not is_idempotent:
        raise ConfigurationError("producer_topics need a producer_name, and that idempotent=True")
    return ProducerName(name, wanted, int.from_bytes(rng.bytes(8), "little"))


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
        self._finding: asyncio.Future[ProducerIdentity] | None = None
        self.current: ProducerIdentity | None = None if idempotent else ProducerIdentity(0, 0)
        """For batches that have no number yet; None until it is found."""

    @property
    def lost(self) -> ProducerFencedError | None:
        """Return why nothing can be sent any more: somebody else has taken the name."""
        return self._name.lost if self._name is not None else None

    def give_up(self, identity: ProducerIdentity | None) -> None:
        """Batches under ``identity`` left a gap: the next search finds another one."""
        if identity == self.current:
            self.current = None

    def cancel(self) -> "asyncio.Future[ProducerIdentity] | None":
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

    async def find(self) -> ProducerIdentity:
        """The current identity, or the next one after that was given up."""
        if self.current is not None:
            return self.current
        if self._finding is None or self._finding.done():
            self._finding = share(self._ask())
        finding = self._finding  # shared by all partitions; the next search may have begun below
        await asyncio.wait({finding})
        return finding.result()

    async def _ask(self) -> ProducerIdentity:
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
        self.current = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        return self.current


# --- all names ------------------------------------------------------------------------------------


async def list_producer_names(
    connection: Connection, *, timeout_s: float
) -> list[ProducerNameInfo]:
    """Return all names, in order.

    Args:
        connection: The way to the coordinator.
        timeout_s: For each page.

    Raises IcecoreError when no coordinator answered in time.
    """
    found: list[ProducerNameInfo] = []
    after = ""
    while True:
        answer = await connection.admin(
            "ListProducerNames",
            admin_pb2.ListProducerNamesRequest(after=after),
            admin_pb2.ListProducerNamesResponse,
            timeout_s=timeout_s,
        )
        found += [
            ProducerNameInfo(
                name=each.name,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                taken_at_ms=each.taken_at_ms,
            )
            for each in answer.names
        ]
        after = answer.next
        if not after:
            return found
