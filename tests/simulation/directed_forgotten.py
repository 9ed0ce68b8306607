"""Staged worlds in which an operator empties and forgets nodes, and strangers register.

First the operator is wrong: B and C are down for a moment, and hold what nobody else can prove.
Then B is down for long, its copies are made again on a fourth machine, and it is forgotten, with
all that is on its disk. It comes back with that disk. Coordinators die in between, and somebody
registers nodes that there are not. In another world nodes are emptied before they go. Roles are
those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from icecore.model import Acks
from icecore_coordinator.decisions.node_removal import named_in
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import plan, roles
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.shells import coordinator_address
from tests.stranger import Stranger

FORGED_FIRST = 100
FORGED_COUNT = 20
WITHIN_S = 40.0
LOOK_S = 0.25


def forgotten_plan(seed: int) -> Plan:
    """There are some sealed segments, and records are acked by quorums, too."""
    calm = plan("nodes_are_forgotten", acks=(Acks.ALL, Acks.QUORUM), pauses_s=(0.02,))
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=16384, roll_up_wait_ms=1_000))


class ForgottenNodes:
    """An operator and a stranger, and what was wrong with their answers."""

    name = "forgotten nodes"

    def __init__(self, world: World) -> None:
        self._world = world
        self._process, net, clock, rng = world.client("operator")
        address = coordinator_address(COORDINATOR)
        self._admin = Admin(address, net=net, clock=clock, rng=rng)
        self._stranger = Stranger(net, address)
        self._problems: list[str] = []
        self._incarnations: set[tuple[int, int]] = set()
        """(node id, incarnation) that processes had which are dead."""

    async def forget(self, name: str, *, disk_gone: bool) -> bool:
        """Return whether the cluster did so."""
        node_id = self._world.hosts[name].node_id

        async def ask() -> bool:
            try:
                await self._admin.remove_node(node_id, disk_gone=disk_gone)
            except IcecoreError:
                return False
            return True

        is_done: bool = await self._process.spawn(ask())
        return is_done

    async def forget_at_last(self, name: str) -> None:
        """The node is forgotten soon, for others have all that it had."""
        for _ in range(int(WITHIN_S / LOOK_S)):
            if await self.forget(name, disk_gone=True):
                return
            await asyncio.sleep(LOOK_S)
        self._problems.append(f"R106: {name} is down for long, and is not forgotten")

    async def forge(self) -> None:
        """Somebody registers nodes that there are not."""

        async def register() -> None:
            try:
                known = await self._stranger.look(TOPIC)
                for number in range(FORGED_COUNT):
                    await self._stranger.register(known, FORGED_FIRST + number)
            except IcecoreError:
                return  # no coordinator

        await self._process.spawn(register())

    def note_dead(self, name: str) -> None:
        """The process of a node has ended, with this incarnation."""
        nodes = self._world.shells[COORDINATOR].ledger.state.nodes
        node_id = self._world.hosts[name].node_id
        if node_id in nodes:
            self._incarnations.add((node_id, nodes[node_id].incarnation))

    async def check_back(self, name: str) -> None:
        """The node is in the cluster again, as a process that nobody was before."""
        node_id = self._world.hosts[name].node_id
        for _ in range(int(WITHIN_S / LOOK_S)):
            shell = self._world.shells.get(COORDINATOR)
            nodes = shell.ledger.state.nodes if shell is not None else {}
            if node_id in nodes and self._world.is_up(name):
                now = (node_id, nodes[node_id].incarnation)
                if now in self._incarnations:
                    self._problems.append(f"R106: {name} has an incarnation that it had: {now}")
                return
            await asyncio.sleep(LOOK_S)
        self._problems.append(f"R106: {name} does not come back")

    def check_records(self) -> None:
        """No stranger has left a record."""
        shell = self._world.shells.get(COORDINATOR)
        nodes = shell.ledger.state.nodes if shell is not None else {}
        if forged := [each for each in nodes if each >= FORGED_FIRST]:
            self._problems.append(f"R107: nodes {forged} only registered, and have records")

    async def finish(self, _: object) -> list[str]:
        """As a topic that comes and goes is asked at the end."""
        await self._admin.close()
        return self._problems


async def nodes_are_forgotten(scene: Scene, fault: Fault) -> None:
    """The operator is wrong, and then right."""
    world = scene.world
    leader, followers = await roles(world)
    operator = ForgottenNodes(world)
    world.fleeting.append(operator)
    await operator.forge()
    await _too_early(world, operator, leader, followers)
    fourth = world.add_host()
    world.start(fourth)
    await operator.forge()
    away = world.rng.choice(followers)
    operator.note_dead(away)
    world.kill(away)
    world.kill(COORDINATOR)
    world.start(COORDINATOR)
    await operator.forget_at_last(away)
    operator.check_records()
    if world.rng.random() < 0.5:
        world.kill(COORDINATOR)
        world.start(COORDINATOR)
    world.start(away)
    await operator.check_back(away)
    await operator.check_back(fourth)


async def _too_early(
    world: World, operator: ForgottenNodes, leader: str, followers: list[str]
) -> None:
    """Both followers are down when the operator gives them up; then the leader dies, too."""
    await asyncio.sleep(1.0)
    for name in followers:
        operator.note_dead(name)
        world.kill(name)
    await asyncio.sleep(1.0)
    for name in followers:
        for disk_gone in (False, True):
            await operator.forget(name, disk_gone=disk_gone)
    world.kill(leader)
    world.start_all()
    await asyncio.sleep(3.0)


def drained_plan(seed: int) -> Plan:
    """The same, with other acts."""
    faults = plan("nodes_are_drained").faults
    return replace(forgotten_plan(seed), faults=faults)


class DrainingOperator(ForgottenNodes):
    """Has nodes emptied, and says what was left on them."""

    name = "drained nodes"

    async def drain(self, name: str, *, undrain: bool = False) -> None:
        """The cluster does so, as soon as it has a coordinator and enough nodes."""
        node_id = self._world.hosts[name].node_id

        async def ask() -> bool:
            try:
                if undrain:
                    await self._admin.undrain_node(node_id)
                else:
                    await self._admin.drain_node(node_id)
            except IcecoreError:
                return False
            return True

        for _ in range(int(WITHIN_S / LOOK_S)):
            if await self._process.spawn(ask()):
                return
            await asyncio.sleep(LOOK_S)
        self._problems.append(f"R115: {name} is not drained")

    async def forget_empty(self, name: str) -> None:
        """The node holds nothing soon; then it dies for good, and no disk has to be given up."""
        node_id = self._world.hosts[name].node_id
        for _ in range(int(WITHIN_S / LOOK_S)):
            shell = self._world.shells.get(COORDINATOR)
            if shell is not None and named_in(shell.ledger.state, node_id).is_nothing:
                break
            await asyncio.sleep(LOOK_S)
        else:
            self._problems.append(f"R115: {name} is drained, and is never empty")
            return
        self.note_dead(name)
        self._world.kill(name, power_cut=True)
        for _ in range(int(WITHIN_S / LOOK_S)):
            if await self.forget(name, disk_gone=False):
                return
            await asyncio.sleep(LOOK_S)
        self._problems.append(f"R115: {name} was empty, and is not forgotten")


async def nodes_are_drained(scene: Scene, fault: Fault) -> None:
    """The leader's node is to be empty, and a follower's for a moment. Processes die meanwhile."""
    world = scene.world
    leader, followers = await roles(world)
    operator = DrainingOperator(world)
    world.fleeting.append(operator)
    fourth = world.add_host()
    world.start(fourth)
    await operator.drain(leader)
    if world.rng.random() < 0.5:
        world.kill(COORDINATOR)
        world.start(COORDINATOR)
    if world.rng.random() < 0.5:
        await asyncio.sleep(world.rng.uniform(0.0, 1.0))
        name = world.rng.choice([leader, fourth, followers[0]])
        world.kill(name)
        world.start(name)
    await operator.forget_empty(leader)
    if not world.is_up(leader):
        world.start(leader)
    await operator.check_back(leader)
    await operator.drain(followers[0])
    await asyncio.sleep(world.rng.uniform(0.0, 2.0))
    await operator.drain(followers[0], undrain=True)


PLANS: dict[str, Callable[[int], Plan]] = {
    "nodes_are_forgotten": forgotten_plan,
    "nodes_are_drained": drained_plan,
}
KINDS = (
    Kind("nodes_are_forgotten", nodes_are_forgotten),
    Kind("nodes_are_drained", nodes_are_drained),
)
