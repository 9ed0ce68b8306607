"""A coordinator whose metadata are suspended: they are an older copy, or empty beside a cluster.

It gives nothing out and orders nothing. It waits at the coordinator's address for the word of the
nodes, and for a person: who puts the newest store back, or lets these metadata go on. Then all of
it is stored in one transaction, and an ordinary coordinator begins.
"""

import asyncio
import logging

from icecore.errors import SupersededError
from icecore.process.log import event
from icecore.rpc.addresses import native
from icecore.rpc.ports import Net, Rng, Server
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.adoption.adopt import Adoption
from icecore_coordinator.ledger import Ledger, to_its_end
from icecore_coordinator.services.adoption_service import AdoptionService
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.stores.metadata_store import MetadataStore, Stored

_log = logging.getLogger(__name__)


class SuspendedCoordinator:
    """Stands in the place of a coordinator. ``start``, then ``stop``; not to be started again.

    Args:
        net: From everyone.
        store: Exclusive to this object; closed by ``stop``.
        rng: Of its name.
        why: Why the metadata are suspended, and what a person can do.
        defaults: Of topics that come back from object storage, and say nothing.
    """

    def __init__(
        self, net: Net, store: MetadataStore, rng: Rng, why: str, defaults: TopicDefaults
    ) -> None:
        self._net, self._store, self._why, self._defaults = net, store, why, defaults
        self._name = rng.bytes(8).hex()
        self._ledger = Ledger(store, rng)
        self._servers: list[Server] = []
        self.outdated = asyncio.Event()
        """Set when what was read is not what is stored any more, for it was adopted, or a person
        has put another copy back: an ordinary coordinator is to begin, and reads it."""

    async def start(self, listen: str, native_listen: str = "") -> None:
        """Read the store and serve.

        Raises:
            ConfigurationError: An address can't be bound.
            StorageError: The metadata store failed.
        """
        await self._ledger.open()
        service = AdoptionService(
            self._ledger.state, self._why, self._name, self._commit, self._defaults
        )
        for address in (listen, *([native(native_listen)] if native_listen else [])):
            self._servers.append(await self._net.serve(address, service.handlers()))
        event(_log, logging.CRITICAL, "metadata_suspended", why=self._why)

    async def stop(self) -> None:
        """Stop serving and release the store. Idempotent."""
        await asyncio.gather(*(server.stop(grace_s=0.5) for server in self._servers))
        self._servers.clear()
        await self._store.close()

    async def _commit(self, adoption: Adoption) -> None:
        """As ``_adopt``; the call of a person may end before that."""
        await to_its_end(self._adopt(adoption))

    async def _adopt(self, adoption: Adoption) -> None:
        """Store all of it at once: a process that dies before it has changed nothing."""
        puts = [Stored(each.key, encode(each), each.version) for each in adoption.puts]
        deletes = [each.key for each in adoption.deletes]
        await asyncio.sleep(0)  # probes have their turn
        try:
            await self._store.adopt(puts, deletes, adoption.coordinator_epoch, adoption.revision)
        except SupersededError as error:
            event(_log, logging.WARNING, "metadata_replaced", error=error)
            self.outdated.set()
            raise
        event(
            _log,
            logging.WARNING,
            "metadata_adopted",
            cluster_id=adoption.cluster_id,
            revision=adoption.revision,
            segments=adoption.segments_found,
            topics=adoption.topics_found,
            findings=len(adoption.findings),
        )
        self.outdated.set()
