"""A world of coordinators that stand by for each other: production's election, follower and store,
on an etcd in memory that loses calls, while processes die, stand still and are cut off.

One of them may act at a time; each take-over knows what is stored; and when all is well again,
somebody acts.
"""

import asyncio
import random
from typing import Any, cast

from icecore.errors import IcecoreError
from icecore.model import ProducerId
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.election.elector import Elector
from icecore_coordinator.election.etcd_ballot import EtcdBallot
from icecore_coordinator.ledger import Tenure
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import Change, ProducerRecord
from icecore_coordinator.stores.etcd_follower import EtcdFollower
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.metadata_store import Stored
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimRng
from tests.simulation.process import SimProcess
from tests.simulation.sim_etcd import Links, SimEtcd, SimEtcdClient

SESSION_S = 2.0
FAULTS_S = 60.0
WHOLE_WITHIN_S = 6 * SESSION_S
_ACT_S = 0.05
_KEYS = 50
_PREFIX = "icecore/"


class DriftingClock:
    """A monotonic clock that is a little fast or slow, as clocks are."""

    def __init__(self, loop: SimLoop, rate: float) -> None:
        self._loop, self._rate = loop, rate

    def now_ms(self) -> int:
        return int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000 * self._rate


class Member:
    """One coordinator, over all lives of its process."""

    def __init__(self, world: "ElectionWorld", name: str) -> None:
        self.world, self.name, self.life = world, name, 0
        self.links = Links()
        self.clock = DriftingClock(world.loop, world.rng.uniform(0.97, 1.03))
        self.process = SimProcess(name, 0)
        self.elector: Elector | None = None
        self.acts = 0

    def start(self) -> None:
        self.life += 1
        self.process = SimProcess(self.name, self.life)
        self.process.spawn(self._live())

    def kill(self) -> None:
        self.world.loop.resume(self.process)
        self.process.kill("killed", self.world.loop.time())
        self.elector = None

    def _client(self) -> Any:
        seed = f"{self.world.seed} {self.name} {self.life} {self.world.rng.random()}"
        return SimEtcdClient(self.world.etcd, self.links, random.Random(seed), SESSION_S / 4)

    async def _live(self) -> None:
        settings = EtcdSettings(endpoints="e:1", prefix=_PREFIX, session_ms=int(SESSION_S * 1000))
        ballot = EtcdBallot(settings, self.name)
        ballot._client, ballot._watcher = self._client(), self._client()
        clock = cast(Any, self.clock)
        elector = Elector(ballot, clock, self.name, f"{self.name}:1", SESSION_S * 1000)
        self.elector = elector
        elector.start()
        while True:
            state = ClusterState()
            follower = EtcdFollower(settings, state)
            follower._client = self._client()
            follower.start()
            await elector.elected.wait()
            rng = SimRng(f"{self.world.seed} {self.name} {self.life} {self.acts}")
            store = EtcdStore(settings, cast(Any, rng), follower=follower)
            store._client = self._client()
            tenure = Tenure(elector.is_sure, lambda _: None)
            try:
                await self._act(store, state, tenure)
            except IcecoreError as error:
                self.world.loop.trace(f"{self.process} acts no more: {error.message}")
            await follower.stop()
            elector.resign()

    async def _act(self, store: EtcdStore, state: ClusterState, tenure: Tenure) -> None:
        await store.acquire_coordinator_epoch()
        if not store.is_followed:
            ClusterState.__init__(state)
            stored = await store.scan("")
            state.load((ProducerRecord, each.value, each.version) for each in stored)
        head = store._head
        if head is not None and self.world.is_head(head.encode()):
            self.world.followed += store.is_followed
            self.world.compare(self.name, stored_in(state), self.world.truth())
        while True:
            tenure.check()
            self.world.note_act(self)
            name = f"k/{self.world.rng.randrange(_KEYS)}"
            old = state.producers.get(name)
            is_gone = old is not None and self.world.rng.random() < 0.05
            new = ProducerRecord(name, ProducerId(self.acts), version=old.version + 1 if old else 1)
            change = Change((), (old,)) if old and is_gone else Change((new,))
            puts = [(each.key, encode(each)) for each in change.puts]
            await store.txn([], puts, [each.key for each in change.deletes])
            state.apply(change)
            self.acts += 1
            await asyncio.sleep(_ACT_S)


class ElectionWorld:
    """Two or three members, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(f"election {seed}")
        self.loop = SimLoop(seed, shuffle=self.rng.choice([0.0, 0.2]))
        self.etcd = SimEtcd(self.loop)
        self.members = [Member(self, f"m{number}") for number in range(self.rng.choice([2, 3]))]
        self.problems: list[str] = []
        self.last_act_s = 0.0
        self.take_overs = 0
        self.followed = 0
        """Take-overs that read nothing."""

    def run(self) -> list[str]:
        """Run to the verdict: all that was wrong."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._run())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
        return self.problems + self.loop.failures

    async def _run(self) -> None:
        keeping = asyncio.create_task(self.etcd.keep_leases())
        for member in self.members:
            member.start()
        while self.loop.time() < FAULTS_S:
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            self._disturb(self.rng.choice(self.members))
        await asyncio.sleep(5 * SESSION_S)  # the last of it is well again
        whole_s = self.loop.time()
        await asyncio.sleep(WHOLE_WITHIN_S)
        if self.last_act_s < whole_s + WHOLE_WITHIN_S - SESSION_S:
            self.problems.append(f"nobody acts {WHOLE_WITHIN_S} s after all is well")
        keeping.cancel()
        for member in self.members:
            member.kill()

    def _disturb(self, member: Member) -> None:
        """One thing goes wrong, and is well again after a while."""
        links, rng = member.links, self.rng
        for_s = rng.uniform(0.2, 3 * SESSION_S)
        match rng.choice(["pause", "kill", "cut", "lossy", "late", "compact", "gaps", "gaps"]):
            case "pause":
                member.process.paused = True
                self.loop.call_later(for_s, self.loop.resume, member.process)
            case "kill" if member.process.alive:
                member.kill()
                self.loop.call_later(for_s, member.start)
            case "cut":
                links.is_cut = True
            case "lossy":
                links.loss = 0.2
            case "late":  # etcd takes the requests, and its answers come when it is far away
                links.slow_answers_s = SESSION_S
                self.loop.call_later(rng.uniform(0.2, SESSION_S), links.cut)
            case "compact":
                self.etcd.compact()
            case "gaps":
                links.gaps, for_s = 0.05, 5 * SESSION_S
        self.loop.call_later(for_s, links.heal)

    # --- what must hold -------------------------------------------------------------------------

    def note_act(self, member: Member) -> None:
        """R121: whoever acts is the only one that may."""
        self.last_act_s = self.loop.time()
        for other in self.members:
            if other is not member and other.elector is not None and other.elector.is_sure():
                self.problems.append(f"{self.loop.time():.3f}: {member.name} and {other.name} act")

    def compare(self, name: str, found: list[Stored], truth: list[Stored]) -> None:
        """R122: a take-over knows what is stored."""
        self.take_overs += 1
        if found != truth:
            self.problems.append(f"{self.loop.time():.3f}: {name} knows {found}, not {truth}")

    def is_head(self, head: bytes) -> bool:
        """Return whether the one that reads is still the writer."""
        row = self.etcd.rows.get(_PREFIX.encode() + b"head")
        return row is not None and bool(row.value == head)

    def truth(self) -> list[Stored]:
        """All records that are stored."""
        begin = (_PREFIX + "record/").encode()
        found = []
        for row in self.etcd.below(begin, begin + b"\xff"):
            version, _, value = row.value.decode().partition(" ")
            found.append(Stored(row.key[len(begin) :].decode(), value, int(version)))
        return found


def stored_in(state: ClusterState) -> list[Stored]:
    """All records of a state, as they are stored."""
    found = state.producers.values()
    return sorted(Stored(each.key, encode(each), each.version) for each in found)


def run_election(seed: int) -> list[str]:
    """One world from its seed to its verdict."""
    return ElectionWorld(seed).run()
