"""A person lets a coordinator go on with an older copy of its store, or with an empty one (R109).

What was acknowledged is there again, whatever the store knows, while nodes serve on, start anew or
are gone; and the advice of each message ends well.
"""

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icecore.blocking import Admin
from icecore.dev import LocalCluster
from icecore.model import OFFSETS_LEFT_OUT
from tests.chaos.damage import truncate
from tests.cluster.test_damage import file_of
from tests.cluster.test_old_metadata import (
    copy_of_metadata,
    known_everywhere,
    put,
    sealed,
    starts_and_waits,
)
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.support.waiting import until

COUNT = 200
REMEMBERED_S = 4.0
"""Each node stores what it heard with every fourth heartbeat."""


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster(tmp_path / "cluster", nodes=3)


async def icecore(cluster: LocalCluster, *words: str, status: int = 0) -> str:
    """Run a command; the last words that it said to a person, or its JSON."""
    command = [sys.executable, "-m", "icecore.cli", "--bootstrap", cluster.bootstrap, *words]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stderr + done.stdout


async def all_told(cluster: LocalCluster, count: int = 3) -> None:
    def told() -> bool:
        return cluster.coordinator.log_tail(200).count("event=inventory_told") >= count

    await until(told, 60)


class World:
    """Topics and records of before a copy of the store, and of after it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.acked: dict[str, Log] = {}

    async def produce(self, topic: str, bootstrap: str = "") -> None:
        known = self.acked.get(topic, {})
        start = sum(map(len, known.values()))
        values = numbered(start, COUNT)
        found = await produce(bootstrap or self.cluster.bootstrap, topic, values)
        self.acked[topic] = merged(known, found)

    async def before(self) -> None:
        await create(self.cluster.bootstrap, "before", partitions=2, replication_factor=3)
        await self.produce("before")

    async def after(self) -> None:
        """A topic is made, and segments are sealed and opened."""
        await create(self.cluster.bootstrap, "after", partitions=2, replication_factor=3)
        for _ in range(2):
            count = await asyncio.to_thread(sealed, self.cluster, "before")
            with Admin(self.cluster.bootstrap) as admin:
                await asyncio.to_thread(admin.roll_topic, "before")
            await asyncio.to_thread(asyncio.run, self._sealed(count + 2))
            await self.produce("before")
        await self.produce("after")
        for topic in ("before", "after"):
            await known_everywhere(self.cluster, topic)

    async def _sealed(self, count: int) -> None:
        await until(lambda: sealed(self.cluster, "before") >= count, 30)

    async def all_is_there(self) -> None:
        for topic, acked in self.acked.items():
            assert await read_all(self.cluster.bootstrap, topic) == acked

    async def goes_on(self) -> None:
        for topic in self.acked:
            await self.produce(topic)
        await self.all_is_there()


async def healthy(cluster: LocalCluster) -> None:
    await icecore(cluster, "cluster", "health", "--wait", "60")


async def test_an_older_copy_goes_on_while_nodes_serve(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with cluster:
        world = World(cluster)
        await world.before()
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        await world.after()
        cluster.kill_coordinator()
        newest = put(cluster, copy)
        assert "older copy" in await starts_and_waits(cluster)
        await all_told(cluster)
        shown = await icecore(cluster, "cluster", "adopt", "--dry-run")
        assert "1 topics come back" in shown
        assert "Nothing is in the way" in shown
        assert "metadata_adopted" not in cluster.coordinator.log_tail(200)

        producing = asyncio.create_task(world.produce("before", cluster.addresses[1]))
        await icecore(cluster, "cluster", "adopt", "--yes")
        await producing
        await healthy(cluster)
        await world.all_is_there()
        await world.goes_on()
        refused = await icecore(cluster, "cluster", "adopt", "--yes", status=1)
        assert "nothing to adopt" in refused

        # The store that was lost turns up: it is an older copy by now.
        cluster.kill_coordinator()
        adopted = put(cluster, newest)
        assert "older copy" in await starts_and_waits(cluster)
        cluster.kill_coordinator()
        put(cluster, adopted)
        await asyncio.to_thread(cluster.start_coordinator)
        await world.goes_on()


async def test_an_empty_store_goes_on_while_nodes_serve(cluster: LocalCluster) -> None:
    with cluster:
        world = World(cluster)
        await world.before()
        await world.after()
        cluster.kill_coordinator()
        put(cluster, None)
        assert "store is empty" in await starts_and_waits(cluster)
        await all_told(cluster)
        await icecore(cluster, "cluster", "adopt", "--yes")
        await healthy(cluster)
        await world.all_is_there()
        await world.goes_on()


@pytest.mark.parametrize("is_empty", [False, True])
async def test_nodes_that_start_anew_tell_what_their_disks_have(
    cluster: LocalCluster, tmp_path: Path, is_empty: bool
) -> None:
    """No process remembers a name, a leader or a set. The advice about names is followed."""
    with cluster:
        world = World(cluster)
        await world.before()
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        await world.after()
        await restart_on(cluster, None if is_empty else copy)
        await icecore(cluster, "cluster", "adopt", "--yes")
        await healthy(cluster)
        await rename_found(cluster, world)
        await world.all_is_there()
        await world.goes_on()


async def rename_found(cluster: LocalCluster, world: World) -> None:
    """Give topics their names back, as the command says: each is known by what it holds."""
    with Admin(cluster.bootstrap) as admin:
        found = await asyncio.to_thread(admin.describe_topics)
    for topic in found:
        if not topic.name.startswith("topic.found-"):
            continue
        log = await read_all(cluster.bootstrap, topic.name)
        [name] = [name for name, acked in world.acked.items() if acked == log]
        await icecore(cluster, "topic", "delete", topic.name, "--yes")
        await icecore(
            cluster, "topic", "undelete", "--topic-id", topic.topic_id.hex(), "--as", name
        )


async def test_a_copy_of_before_the_first_topic_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It knows the nodes, and not one segment of theirs."""
    with cluster:
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        world = World(cluster)
        await world.before()
        cluster.kill_coordinator()
        put(cluster, copy)
        await starts_and_waits(cluster)
        await all_told(cluster, 3)
        await icecore(cluster, "cluster", "adopt", "--yes")
        await world.all_is_there()
        await world.goes_on()


async def refused_without_node_3(world: World, tmp_path: Path) -> str:
    """Put back an older copy of the store while a node is down. Return what ``adopt`` says."""
    cluster = world.cluster
    await world.before()
    copy = copy_of_metadata(cluster, tmp_path / "copy")
    await world.after()
    cluster.kill_coordinator()
    cluster.kill_node(3)
    put(cluster, copy)
    await starts_and_waits(cluster)
    await all_told(cluster, 2)
    return await icecore(cluster, "cluster", "adopt", "--yes", status=1)


async def test_a_node_that_is_missing_is_waited_for(cluster: LocalCluster, tmp_path: Path) -> None:
    with cluster:
        world = World(cluster)
        refused = await refused_without_node_3(world, tmp_path)
        assert "not told what they hold: 3" in refused
        assert "--without-node 3" in refused
        cluster._spawn(cluster.node(3))
        await all_told(cluster, 3)
        await icecore(cluster, "cluster", "adopt", "--yes")
        await healthy(cluster)
        await world.goes_on()


async def test_a_node_that_is_gone_for_good_costs_offsets_and_no_record(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with cluster:
        world = World(cluster)
        refused = await refused_without_node_3(world, tmp_path)
        advice = re.findall(r"--without-node \d+", refused)[0]
        await icecore(cluster, "cluster", "adopt", "--yes", *advice.split())
        await world.all_is_there()
        await world.goes_on()
        for log in world.acked["before"].values():
            assert log[-1][0] >= OFFSETS_LEFT_OUT, "no offset may be given out twice"


async def test_a_coordinator_that_dies_in_the_middle_adopted_all_or_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with cluster:
        world = World(cluster)
        await world.before()
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        await world.after()
        cluster.kill_coordinator()
        put(cluster, copy)
        for wait_s in (0.0, 0.01, 0.03):
            if "metadata_suspended" not in await starts(cluster):
                break
            await all_told(cluster)
            with Admin(cluster.bootstrap, timeout_s=2) as admin:
                asking = asyncio.create_task(asyncio.to_thread(_adopt, admin))
                await asyncio.sleep(wait_s)
                cluster.kill_coordinator()
                await asking
        if "metadata_suspended" in await starts(cluster):
            await all_told(cluster)
            await icecore(cluster, "cluster", "adopt", "--yes")
        await healthy(cluster)
        await world.all_is_there()
        await world.goes_on()


def _adopt(admin: Admin) -> Any:
    try:
        return admin.adopt_metadata()
    except Exception as error:  # nobody knows whether it was done
        return error


async def starts(cluster: LocalCluster) -> str:
    """Start the coordinator, and wait until it has heard of all nodes, or waits for a person."""
    if not cluster.coordinator.is_running:
        await asyncio.to_thread(cluster.start_coordinator)

    def is_settled() -> bool:
        log = cluster.coordinator.log_tail(300)
        return "metadata_suspended" in log or log.count("event=node_up") >= 3

    await until(is_settled, 60)
    return cluster.coordinator.log_tail(300)


async def test_a_new_cluster_is_made_on_purpose(cluster: LocalCluster) -> None:
    with cluster:
        world = World(cluster)
        await world.before()
        await known_everywhere(cluster, "before")
        cluster.kill_coordinator()
        put(cluster, None)
        shown = await starts_and_waits(cluster)
        assert "start it with --new-cluster" in shown
        cluster.kill_coordinator()
        cluster.coordinator.extra.append("--new-cluster")
        await asyncio.to_thread(cluster.start_coordinator)
        node = cluster.node(1)
        await until(lambda: node.log_path.read_text().count("wrong_coordinator") >= 2, 30)
        with Admin(cluster.bootstrap) as admin:
            assert not await asyncio.to_thread(admin.describe_topics)
        assert await read_all(cluster.addresses[1], "before") == world.acked["before"]


async def test_a_single_copy_of_which_nobody_knows_more_goes_on_far_above(
    cluster: LocalCluster,
) -> None:
    """Others may have had copies, too, as far as anybody knows. Nothing that is left is lost."""
    with cluster:
        await create(cluster.bootstrap, "t", partitions=1, replication_factor=1)
        acked = await produce(cluster.bootstrap, "t", numbered(0, COUNT))
        await restart_on(cluster, None)
        shown = await icecore(cluster, "cluster", "adopt", "--yes")
        [topic] = set(re.findall(r"topic\.found-[0-9a-f]+", shown))
        await healthy(cluster)
        assert await read_all(cluster.bootstrap, topic) == acked
        more = await produce(cluster.bootstrap, topic, numbered(COUNT, COUNT))
        assert await read_all(cluster.bootstrap, topic) == merged(acked, more)
        assert more[0][0][0] >= OFFSETS_LEFT_OUT


async def test_a_damaged_copy_may_be_the_longest_and_needs_a_word_of_its_own(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """No process remembers who led. The advice about the end of the tail is followed."""
    with cluster:
        world = World(cluster)
        await world.before()
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        await create(cluster.bootstrap, "after", partitions=1, replication_factor=3)
        await world.produce("after")
        with Admin(cluster.bootstrap) as admin:
            [tail] = await asyncio.to_thread(admin.list_segments, "after")

        def damage() -> None:
            assert truncate(file_of(cluster, 3, tail), random.Random(1))

        await restart_on(cluster, copy, damage)
        shown = await icecore(cluster, "cluster", "adopt", "--yes")
        [advice] = set(re.findall(r"icecore (segment recover-unclean \S+ \d+ \d+)", shown))
        await icecore(cluster, *advice.split(), "--yes")
        await healthy(cluster)
        await rename_found(cluster, world)
        await world.all_is_there()
        await world.goes_on()


async def restart_on(
    cluster: LocalCluster, store: Path | None, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Everything ends at once, and comes back on another store of the coordinator."""
    await asyncio.sleep(REMEMBERED_S)
    cluster.kill_coordinator()
    for node_id in cluster.addresses:
        cluster.kill_node(node_id)
    meanwhile()
    put(cluster, store)
    for node_id in cluster.addresses:
        cluster._spawn(cluster.node(node_id))
    await starts_and_waits(cluster)
    await all_told(cluster)
