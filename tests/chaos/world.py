"""The tools of a scenario: cluster, network, load, time, and simple questions."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from icecore.errors import IcecoreError
from icecore.model import Segment, SegmentState
from tests.chaos.cluster import ChaosCluster
from tests.chaos.control import ControlPlane, NotInTimeError
from tests.chaos.links import Links
from tests.chaos.load import PARTITIONS, Load
from tests.chaos.record import Recorder
from tests.chaos.storage import SURVIVES_PROCESSES
from tests.chaos.store import FaultyStore
from tests.simulation.observer import Observer

TOPIC = "chaos"
SEGMENT_BYTES = 256 << 10
"""Small: segments are sealed all the time."""
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Scenario:
    """``run`` makes the faults; the flags say what it needs and what it promises."""

    run: "Callable[[World], Awaitable[None]]"
    small_disks: tuple[int, ...] = ()
    is_smooth: bool = False
    """Patient producers may be told of no error at all."""
    stored_as: tuple[str, ...] = SURVIVES_PROCESSES
    """How the topic may be stored, by name."""
    needs_etcd: bool = False
    """Its metadata are in etcd, and three coordinators stand by for each other."""
    segment_bytes: int = SEGMENT_BYTES


@dataclass(slots=True)
class World:
    """One run of one scenario."""

    cluster: ChaosCluster
    network: Links
    control: ControlPlane
    recorder: Recorder
    observer: Observer
    load: Load
    rng: random.Random
    store: FaultyStore | None
    """The object store, where the topic is tiered."""
    ends_s: float
    """Time of the monotonic clock after which no new fault begins, in seconds."""
    faults: int = 0

    @property
    def left_s(self) -> float:
        """Seconds for more faults."""
        return self.ends_s - time.monotonic()

    def fault(self, kind: str, **what: object) -> None:
        """Note a fault, just before it is made."""
        self.faults += 1
        partitions = list(range(PARTITIONS))
        self.recorder.write("fault", kind=kind, partitions=partitions, **what)
        print(f"    {max(0.0, self.left_s):5.1f} s left: {kind} {what or ''}", flush=True)

    # --- questions ------------------------------------------------------------------------------

    async def segments(self, state: SegmentState) -> list[Segment]:
        """All segments in this state."""
        return [each for each in await self.observer.segments(TOPIC) if each.state is state]

    async def leader(self) -> int:
        """The node that leads most."""
        for _ in range(150):
            active = await self.segments(SegmentState.ACTIVE)
            counts = Counter(
                each.leader for each in active if each.leader in self.cluster.addresses
            )
            if counts:
                return counts.most_common(1)[0][0]
            await asyncio.sleep(POLL_S)
        raise NotInTimeError("there was no leader for 30 s")

    def others(self, node_id: int) -> list[int]:
        """All nodes but this one."""
        return [each for each in self.cluster.addresses if each != node_id]

    # --- waiting --------------------------------------------------------------------------------

    async def until(self, what: str, holds: Callable[[], Awaitable[str]], within_s: float) -> None:
        """Wait until ``holds`` answers nothing.

        Raises:
            NotInTimeError: With its last answer.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                answer = await holds()
            except IcecoreError as error:
                answer = repr(error)
            if not answer:
                return
            if time.monotonic() > deadline_s:
                raise NotInTimeError(f"{what}: not in {within_s:g} s: {answer}")
            await asyncio.sleep(POLL_S)

    async def settled(self, within_s: float = 60.0) -> None:
        """All nodes up, every segment with all its copies, every partition active."""
        nodes = len(self.cluster.addresses)
        await self.until("whole", lambda: self.observer.settled(TOPIC, nodes), within_s)

    async def writes(self, records: int = 300, within_s: float = 30.0) -> None:
        """Wait until this number of further records is acknowledged: the cluster works."""
        wanted = self.load.acked + records

        async def missing() -> str:
            left = wanted - self.load.acked
            return f"{left} acks of {records} are missing" if left > 0 else ""

        await self.until("writes", missing, within_s)

    async def stands_still(self) -> str:
        """Empty when nothing was acknowledged for two seconds."""
        before = self.load.acked
        await asyncio.sleep(2.0)
        return f"{self.load.acked - before} acks in 2 s" if self.load.acked != before else ""

    # --- faults ---------------------------------------------------------------------------------

    async def kill(self, node_id: int, kind: str = "kill") -> None:
        """SIGKILL a node."""
        self.fault(kind, node=node_id)
        await asyncio.to_thread(self.cluster.kill_node, node_id)

    async def start(self, *node_ids: int) -> None:
        """Start nodes again, all at once."""
        starts = (asyncio.to_thread(self.cluster.start_node, node_id) for node_id in node_ids)
        await asyncio.gather(*starts)

    async def heal(self) -> None:
        """Undo everything that can be undone from outside: cuts, pauses, dead processes."""
        self.network.heal()
        if self.store is not None:
            self.store.heal()
        await self.control.heal()
        dead = [i for i in self.cluster.addresses if not self.cluster.node(i).is_running]
        for node_id in set(self.cluster.addresses) - set(dead):
            self.cluster.node(node_id).resume()
        await self.start(*dead)


def name_of(node_id: int) -> str:
    """As processes are called."""
    return f"node-{node_id}"
