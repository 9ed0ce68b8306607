"""An operator who restores all topics of a lost cluster, with the functions that the commands use.

Whatever fails, and wherever the command is killed, it is begun again until it succeeds. Deleted
topics stay away, nothing that was published is missing, and no plan has a problem.
"""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from icecore.client.admin.admin import Admin
from icecore.client.admin.topic_settings import settings_of_plan
from icecore.errors import ConflictError, IcecoreError
from icecore.rpc.ports import Rng
from icecore.topic_settings import TopicSettings
from icecore_node.remote.verify.bucket import Bucket, read_bucket
from icecore_node.remote.verify.bucket_acts import take_over
from icecore_node.remote.verify.restore_choice import choose_topics
from icecore_node.remote.verify.restore_plan import RestoredTopic, plan_of
from tests.simulation.cluster import COORDINATOR
from tests.simulation.lost_cluster import LostCluster
from tests.simulation.object_store import SimObjectStore
from tests.simulation.process import SimProcess
from tests.simulation.shells import coordinator_address
from tests.simulation.topic_table import SimTopicTable

if TYPE_CHECKING:
    from tests.simulation.cluster import World

RETRY_S = 0.2
PATIENCE_S = 60.0


class Restorer:
    """One command line.

    Args:
        world: The new cluster, which has the bucket.
        lost: The old one.
    """

    def __init__(self, world: "World", lost: LostCluster) -> None:
        self._world = world
        self._lost = lost
        self.name = "restores"
        self._commands = 0
        self._problems: list[str] = []
        """Problems of the last plan. A listing may be late, so it is made again."""

    async def restore(self, kills: int) -> None:
        """Restore all topics; the first commands are killed while they are at it."""
        for number in range(kills + 1):
            name = f"restorer {self._commands}"
            self._commands += 1
            process, net, clock, rng = self._world.client(name)
            address = coordinator_address(COORDINATOR)
            admin = Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng)
            command = process.spawn(self._persist(process, admin, rng))
            lasts_s = self._world.rng.uniform(0.02, 1.0) if number < kills else None
            await asyncio.wait({command}, timeout=lasts_s)
            if command.done():
                await command
                break
            process.kill("interrupted", self._world.loop.time())
            self._world.count_fault("restore_interrupted")

    async def _persist(self, process: SimProcess, admin: Admin, rng: Rng) -> None:
        deadline_s = self._world.loop.time() + PATIENCE_S
        while self._world.loop.time() < deadline_s:
            try:
                await self._command(process, admin, rng)
            except IcecoreError as error:
                self._world.loop.trace(f"{process} restores nothing: {error!r}")
                await asyncio.sleep(RETRY_S)
            else:
                self._world.count_fault("cluster_restored")
                return
        self._problems.append("nothing is restored")

    async def _command(self, process: SimProcess, admin: Admin, rng: Rng) -> None:
        mine = (await admin.describe_tiering()).cluster_id
        store = SimObjectStore(self._world.bucket, process)
        bucket = await read_bucket(store, (), counts_all=True)
        plans = self._plans(process, mine, bucket)
        if bucket.cluster_id != mine.hex():
            await take_over(store, bucket, mine, (), rng)
        for topic in bucket.topics.values():
            self._table(process, mine, topic.topic_id).take_over()
        for plan in plans:
            settings = settings_of_plan(asdict(plan))
            if settings is None:  # lost before the table was brought up to date for the first time
                settings = TopicSettings(tier="on", partitions=plan.partitions)
            await admin.import_tiered(asdict(plan), settings)

    def _plans(self, process: SimProcess, mine: bytes, bucket: Bucket) -> list[RestoredTopic]:
        """Return the plans of all topics that come back. Raises ConflictError where they have
        problems, as the command does."""
        found = []
        for topic in bucket.topics.values():
            table = self._table(process, mine, topic.topic_id).look()
            found.append((topic, plan_of(bucket, topic, table, skip_gaps=False)))
        chosen, _ = choose_topics(found, (), with_deleted=False)
        wanted = {each.name for each in self._lost.topics if not each.is_deleted}
        names = {each.topic for each in chosen}
        self._problems = [f"{each.topic}: {what}" for each in chosen for what in each.problems]
        if names != wanted:
            self._problems.append(f"{names} come back, not {wanted}")
        if self._problems:
            raise ConflictError("; ".join(self._problems))
        return chosen

    def _table(self, process: SimProcess, mine: bytes, topic_id: bytes) -> SimTopicTable:
        return SimTopicTable(self._world.bucket, process, mine, topic_id)

    async def finish(self, _: Any) -> list[str]:
        """Return what went wrong, as the topics of a world do."""
        return [f"restore: {each}" for each in self._problems]
