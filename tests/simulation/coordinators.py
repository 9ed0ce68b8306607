"""The coordinators of a world that stand by for each other, on one simulated etcd.

Production's roles, election, follower and store run in each of them (``icecore_coordinator``'s
``__main__``); here is what a process of theirs has around it. The one that acts, as far as the
world has seen, is what ``COORDINATOR`` means wherever a fault or a checker names it.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from icecore.errors import IcecoreError
from icecore.process.server import ServerProcess
from icecore.process.status_page import Pages
from icecore_coordinator.__main__ import Roles
from icecore_coordinator.config import CoordinatorSettings, EtcdSettings
from icecore_coordinator.coordinator import Coordinator
from icecore_coordinator.election.etcd_ballot import EtcdBallot
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.stores.etcd_follower import EtcdFollower
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.timing import WaitSettings
from tests.simulation import shells
from tests.simulation.network import SimNet
from tests.simulation.ports import SimClock, SimRng
from tests.simulation.process import SimProcess
from tests.simulation.sim_etcd import Links, SimEtcd, SimEtcdClient

if TYPE_CHECKING:
    from tests.simulation.cluster import World

ACTS = "coordinator"
"""The name of the role."""
SESSION_S = 2.0
CALL_S = 0.5
"""A call to etcd waits so long for its answer."""
CLOCK_DRIFT_MAX = 0.02
PREFIX = "icecore/"


class Coordinators:
    """All of them, over all their lives.

    Args:
        world: They run in it.
        count: How many, two or more.
    """

    def __init__(self, world: "World", count: int) -> None:
        self._world = world
        self.rng = random.Random(f"coordinators {world.seed}")
        self.names = [f"coordinator-{number + 1}" for number in range(count)]
        self.acting = self.names[0]
        """The last one that began to act."""
        self.take_overs = 0
        self.etcd = SimEtcd(world.loop, world.loop.failures.append)
        self.links = {name: Links() for name in self.names}
        drift = CLOCK_DRIFT_MAX
        self._rates = {name: self.rng.uniform(1 - drift, 1 + drift) for name in self.names}
        self.known_stores: dict[str, str] = {}
        """Identity of the metadata that each data folder belongs to."""
        self._lifetimes: dict[str, _Lifetime] = {}

    def begin(self) -> None:
        """Let etcd look after leases."""
        self._world.loop.create_task(self.etcd.keep_leases())

    def heal(self) -> None:
        """All calls to etcd come through."""
        for links in self.links.values():
            links.heal()

    async def live(self, process: SimProcess) -> None:
        """One life of a process. Raises what ends it."""
        world, lifetime = self._world, _Lifetime()
        self._lifetimes[process.name] = lifetime
        roles = _SimRoles(
            self,
            process,
            SimNet(world.network, process),
            _settings(world.knobs, shells.coordinator_address(process.name)),
            lifetime,
            _Around(self, process, world.clock(process.name, self._rates[process.name])),
        )
        try:
            await roles.run()
        except IcecoreError:
            await roles.stop()
            raise
        await roles.stop()

    def terminate(self, name: str) -> None:
        """SIGTERM; a supervisor starts it again."""
        if name in self._lifetimes:
            self._world.loop.trace(f"terminate {name}")
            self._lifetimes[name].stopping.set()

    def note(self, process: SimProcess, coordinator: Coordinator) -> None:
        """A process has become the coordinator."""
        self.take_overs += 1
        self.acting = process.name
        self._world.shells[ACTS] = coordinator
        self._world.loop.trace(f"up {process} acts")

    def noted_store(self, name: str) -> Callable[[str], None]:
        """Remembers the metadata of a data folder."""

        def remember(store: str) -> None:
            self.known_stores[name] = store

        return remember

    def seen(self, process: SimProcess, coordinator: Coordinator) -> None:
        """A process is about to become the coordinator."""
        self._world.shells[process.name] = coordinator


class _SimRoles(Roles):
    """Tells the world who acts."""

    def __init__(self, all_: Coordinators, process: SimProcess, *given: Any) -> None:
        super().__init__(*given)
        self._all, self._sim_process = all_, process

    def _make(self) -> Coordinator:
        coordinator = super()._make()
        self._all.seen(self._sim_process, coordinator)
        return coordinator

    def _show(self) -> None:
        super()._show()
        if self._is_acting and self._coordinator is not None:
            self._all.note(self._sim_process, self._coordinator)


class _Lifetime:
    """As ``ServerProcess``, without signals, and pages that nobody looks at."""

    def __init__(self) -> None:
        self.stopping = self._stopping = asyncio.Event()

    async def has_ended(self, work: Coroutine[Any, Any, object]) -> bool:
        """Wait as production does."""
        return await ServerProcess.has_ended(cast(ServerProcess, self), work)

    def show(self, pages: Callable[[], Pages]) -> None:
        """Nobody looks."""

    def say_ready(self, **known: object) -> None:
        """Nobody listens."""


class _Around:
    """``Surroundings`` of one life of a process."""

    def __init__(self, all_: Coordinators, process: SimProcess, clock: SimClock) -> None:
        self._all, self._process, self.clock = all_, process, clock
        self._settings = _etcd_settings()
        self._count = 0

    def rng(self) -> SimRng:
        self._count += 1
        return SimRng(f"{self._process} {self._count} {self._all.rng.random()}")

    def _client(self) -> Any:
        self._count += 1
        rng = random.Random(f"{self._process} etcd {self._count} {self._all.rng.random()}")
        links = self._all.links[self._process.name]
        return SimEtcdClient(self._all.etcd, links, rng, CALL_S, self._process)

    async def enter(self) -> str:
        store = self.store(None)
        await store.check()
        return self._process.name

    def ballot(self, member: str) -> EtcdBallot:
        ballot = EtcdBallot(self._settings, member)
        ballot._client, ballot._watcher = self._client(), self._client()
        return ballot

    def follower(self, state: ClusterState) -> EtcdFollower:
        follower = EtcdFollower(self._settings, state)
        follower._client = self._client()
        return follower

    def store(self, follower: EtcdFollower | None) -> EtcdStore:
        name = self._process.name
        known, remember = self._all.known_stores.get(name, ""), self._all.noted_store(name)
        store = EtcdStore(self._settings, self.rng(), known, remember, follower)
        store._client = self._client()
        return store


def _etcd_settings() -> EtcdSettings:
    return EtcdSettings(
        endpoints="etcd:2379",
        prefix=PREFIX,
        session_ms=int(SESSION_S * 1000),
        attempt_ms=int(CALL_S * 1000),
        timeout_ms=int(4 * CALL_S * 1000),
    )


def _settings(knobs: shells.Knobs, listen: str) -> CoordinatorSettings:
    waits = shells.timing(knobs).model_dump()
    common = {name: waits.pop(name) for name in WaitSettings.model_fields}
    return CoordinatorSettings.model_validate(
        {
            "data": "simulated",
            "listen": listen,
            "insecure_bind": True,
            "reclaim_slack_bytes": knobs.reclaim_slack_bytes,
            "etcd": _etcd_settings(),
            "timing": waits,
            **common,
        }
    )
