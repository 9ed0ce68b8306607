"""The control plane of a scenario: its coordinators, and the members of etcd behind them."""

import asyncio
import itertools
import time
import urllib.error
import urllib.request
from collections.abc import Iterable

from icecore import Admin
from icecore.errors import IcecoreError
from icecore.process.members import Member
from tests.chaos.cluster import SESSION_MS, ChaosCluster
from tests.chaos.links import ETCD, Links

TAKE_OVER_SLACK_S = 8.0
"""A take-over may last so much longer than the session of the dead one. One second is meant, and a
half of it is etcd's, which looks for ended leases that often; the rest is for a machine that is
shared with anything. The figures are printed."""
TAKE_OVER_S = SESSION_MS / 1000 + TAKE_OVER_SLACK_S
CHANGE_S = 45.0
"""For a change after whatever etcd had to mend before."""
_POLL_S = 0.05
_PAGE_S = 1.0
_ASK_S = 3.0


class NotInTimeError(Exception):
    """The cluster did not become what it had to become."""


class ControlPlane:
    """All of its processes; a scenario breaks some.

    Args:
        cluster: Runs.
        network: Between all processes.
    """

    def __init__(self, cluster: ChaosCluster, network: Links) -> None:
        self._cluster, self._network = cluster, network
        self._names = itertools.count(1)
        self.take_overs_ms: list[float] = []
        """From the loss of the active coordinator to the next change, for each loss."""
        self.problems: list[str] = []

    @property
    def coordinators(self) -> list[Member]:
        return self._cluster.coordinators

    @property
    def names(self) -> list[str]:
        """Names of all coordinators."""
        return [each.name for each in self.coordinators]

    @property
    def _all_names(self) -> list[str]:
        nodes = (f"node-{node_id}" for node_id in self._cluster.addresses)
        return [*self.names, *ETCD, *nodes]

    # --- questions ------------------------------------------------------------------------------

    async def page(self, member: Member, path: str = "readyz") -> str:
        """One of a coordinator's pages for monitors; empty = it does not answer."""
        return await asyncio.to_thread(_page, f"http://{member.metrics_listen}/{path}")

    async def active(self, within_s: float = 30.0) -> Member:
        """Return the coordinator that acts. Raises NotInTimeError."""
        deadline_s = time.monotonic() + within_s
        while len(self.coordinators) > 1:
            for each in self.coordinators:
                if await self.page(each) == "active":
                    return each
            if time.monotonic() > deadline_s:
                raise NotInTimeError(f"no coordinator acted for {within_s:g} s")
            await asyncio.sleep(_POLL_S)
        return self.coordinators[0]

    async def standbys(self) -> list[Member]:
        """Return the others."""
        active = await self.active()
        return [each for each in self.coordinators if each is not active]

    async def changed(self, within_s: float = CHANGE_S) -> float:
        """Return after how many seconds a topic could be made. Raises NotInTimeError."""
        began_s = time.monotonic()
        while True:
            try:
                async with Admin(self._cluster.bootstrap, timeout_s=_ASK_S) as admin:
                    one = {"partitions": 1, "replication_factor": 1, "min_insync_replicas": 1}
                    await admin.create_topic(f"made-{next(self._names)}", **one)
            except IcecoreError as error:
                if time.monotonic() > began_s + within_s:
                    raise NotInTimeError(f"no change in {within_s:g} s: {error!r}") from error
                await asyncio.sleep(_POLL_S)
            else:
                return time.monotonic() - began_s

    async def taken_over(self) -> None:
        """The next change after the loss of the active coordinator comes soon enough. Raises
        NotInTimeError."""
        took_s = await self.changed(TAKE_OVER_S)
        self.take_overs_ms.append(took_s * 1000)
        print(f"    the next change after {took_s:.2f} s", flush=True)
        if took_s > TAKE_OVER_S:
            raise NotInTimeError(
                f"a take-over lasted {took_s:.1f} s, {TAKE_OVER_S:g} s is the most"
            )

    async def says_why(self) -> str:
        """Empty when each coordinator that answers, its metrics, and the answer to a person say
        that etcd is away; else what is missing."""
        for each in self.coordinators:
            ready, metrics = await self.page(each), await self.page(each, "metrics")
            if not metrics:
                return f"{each.name} does not answer"
            if "etcd" not in ready:
                return f"{each.name} is {ready!r}"
            for name in ("store_up", "active"):
                if f"icecore_coordinator_{name} 0.0" not in metrics:
                    return f"{each.name}: {name} is not 0"
        try:
            async with Admin(self._cluster.bootstrap, timeout_s=0.5) as admin:
                await admin.describe_cluster()
        except IcecoreError as error:
            return "" if "no coordinator can act" in error.message else f"health says {error!r}"
        return "the cluster is described"

    async def stands_by(self, member: Member, within_s: float = 30.0) -> None:
        """Wait until a coordinator stands by, or acts once more. Raises NotInTimeError."""
        deadline_s = time.monotonic() + within_s
        while (found := await self.page(member)) not in ("active", "standby"):
            if time.monotonic() > deadline_s:
                raise NotInTimeError(f"{member.name} says {found!r}")
            await asyncio.sleep(_POLL_S)

    # --- faults ---------------------------------------------------------------------------------

    async def kill(self, members: Iterable[Member]) -> None:
        """SIGKILL coordinators, at the same moment."""
        for each in members:
            each.expected_to_run = False
            if each.process is not None:
                each.process.kill()
        for each in members:
            await asyncio.to_thread(self._cluster.kill_member, each)

    async def start(self, members: Iterable[Member]) -> None:
        """Start coordinators again, all at once."""
        starts = (asyncio.to_thread(self._cluster.start_member, each) for each in members)
        await asyncio.gather(*starts)

    def isolate(self, names: Iterable[str]) -> None:
        """Nothing passes between each of these and any other process; clients are not concerned."""
        for name in names:
            others = (each for each in self._all_names if each != name)
            self._network.separate([name], others)

    def silence(self, names: Iterable[str]) -> None:
        """Nothing from these reaches any other process; the other way stays."""
        for name in names:
            for other in self._all_names:
                if other != name:
                    self._network.cut(name, other)

    def kill_etcd(self, number: int) -> None:
        """SIGKILL a member."""
        assert self._cluster.etcd is not None
        self._cluster.etcd.kill(number)

    def pause_etcd(self, number: int) -> None:
        """SIGSTOP a member."""
        assert self._cluster.etcd is not None
        self._cluster.etcd.pause(number)

    async def heal(self) -> None:
        """Start what is dead, and let go on what stands still; cuts are the network's."""
        etcd = self._cluster.etcd
        if etcd is not None:
            for number in range(len(ETCD)):
                if etcd.pid(number):
                    etcd.resume(number)
                else:
                    etcd.start_member(number)
        dead = [each for each in self.coordinators if not each.is_running]
        for each in self.coordinators:
            if each not in dead:
                each.resume()
        if dead and etcd is not None:  # one that finds no etcd ends
            for number in range(len(ETCD)):
                await asyncio.to_thread(etcd.wait_ready, number)
        await self.start(dead)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_PAGE_S) as answer:
            found: bytes = answer.read()
    except urllib.error.HTTPError as error:
        found = error.read()
    except OSError:
        return ""
    return found.decode().strip()
