"""Quarantine of an UNKNOWN replica, to make room for a copy. It is never patched, and its bytes
stay (R43)."""

from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.damage import Damage
from icecore_node.replica.replica import Replica
from icecore_node.storage.port import Store


class SettingAside:
    """Takes replicas out of the table; their files stay under another name."""

    def __init__(self, store: Store, table: ReplicaTable, damage: Damage) -> None:
        self._store = store
        self._table = table
        self._damage = damage

    async def set_aside(self, replica: Replica) -> None:
        """Quarantine a replica, so that a copy can take its place.

        What is still to be stored or said of its damage must not hit the copy. The caller works on
        the segment alone; when no copy takes the place, it says so by ``Damage.report_missing``.
        """
        await self._damage.until_said(replica)
        replica.end_role("it is set aside")
        await replica.log.worker.run(
            self._store.removal.quarantine, replica.segment_id, "replaced by a repair"
        )
        self._table.remove(replica)
        self._damage.report_room(replica.segment_id)
