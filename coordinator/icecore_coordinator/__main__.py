"""``python -m icecore_coordinator``: one coordinator process in its roles, one after the other.

It is a standby, the coordinator, or suspended. A process with a store of its own has no election:
it acts from its start to its end. With etcd it stands in an election. It acts while it is elected,
and stands by otherwise; what it knew while it acted is forgotten, for the next one changes it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from icecore.extras import as_one_line

# gRPC's core would write a line for each call that a stranger compresses.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with as_one_line("icecore-coordinator", "server"):
    from icecore.errors import (
        ConfigurationError,
        IcecoreError,
        NotCoordinatorError,
        OutOfSpaceError,
        StorageError,
        SupersededError,
    )
    from icecore.process.log import event
    from icecore.process.server import ServerProcess, run
    from icecore.process.settings import load_from_arguments
    from icecore.process.status_page import Pages
    from icecore.process.system import SystemClock, SystemRng, opening
    from icecore.rpc.addresses import is_wildcard, split_address
    from icecore.rpc.ports import Clock, Net, Rng
    from icecore.rpc.transports import Transports
    from icecore.v1.admin_pb2 import DescribeClusterResponse
    from icecore_coordinator.config import CoordinatorSettings
    from icecore_coordinator.coordinator import Coordinator
    from icecore_coordinator.election.ballot import Ballot
    from icecore_coordinator.election.elector import Elector
    from icecore_coordinator.election.etcd_ballot import EtcdBallot
    from icecore_coordinator.metrics import CoordinatorPages
    from icecore_coordinator.standby import StandbyCoordinator
    from icecore_coordinator.state.cluster_state import ClusterState
    from icecore_coordinator.stores.etcd_follower import EtcdFollower
    from icecore_coordinator.stores.etcd_store import EtcdStore
    from icecore_coordinator.stores.metadata_store import MetadataStore
    from icecore_coordinator.stores.store_choice import member_of, open_store
    from icecore_coordinator.suspended import SuspendedCoordinator

PROGRAM = "icecore-coordinator"
_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point ``icecore-coordinator``. Return the exit status."""
    return run(PROGRAM, lambda: load_from_arguments(CoordinatorSettings, PROGRAM, argv), _serve)


async def _serve(settings: CoordinatorSettings, process: ServerProcess) -> None:
    net = Transports(insecure_bind=settings.insecure_bind)
    roles = Roles(net, settings, process, CoordinatorMachine(settings))
    try:
        await roles.run()
    finally:
        await process.close()
        await roles.stop()
        await net.close()


class Lifetime(Protocol):
    """A process, as it knows of its own end and shows itself (``icecore.process.server``)."""

    async def has_ended(self, work: Coroutine[Any, Any, object]) -> bool:
        """Wait until ``work`` has ended; False = the process is to end before that."""
        ...

    def show(self, pages: Callable[[], Pages]) -> None:
        """Show pages to monitors."""
        ...

    def say_ready(self, **known: object) -> None:
        """Say that the process serves."""
        ...


class Surroundings(Protocol):
    """Whatever a coordinator process has around it but for the network."""

    @property
    def clock(self) -> Clock: ...

    def rng(self) -> Rng:
        """A source of chance for one role."""
        ...

    async def enter(self) -> str:
        """Look whether a shared store answers and is the right one; the identity of this process
        in elections.

        Raises:
            ConfigurationError: A person has to change settings.
            StorageError: It does not answer.
        """
        ...

    def ballot(self, member: str) -> Ballot:
        """The election of a shared store."""
        ...

    def follower(self, state: ClusterState) -> EtcdFollower:
        """Follows a shared store by this state; not started yet."""
        ...

    def store(self, follower: EtcdFollower | None) -> MetadataStore:
        """A new handle of the store, after what has followed it. Raises ConfigurationError."""
        ...


class Roles:
    """The roles of one process. ``run``, then ``stop``.

    Args:
        net: To nodes and from everyone.
        settings: Of the process.
        process: Knows when it is to end.
        around: Clock, chance, store and election.
    """

    def __init__(
        self, net: Net, settings: CoordinatorSettings, process: Lifetime, around: Surroundings
    ) -> None:
        self._net, self._settings, self._process = net, settings, process
        self._around = around
        self._address = settings.listen
        self._coordinator: Coordinator | None = None
        self._suspended: SuspendedCoordinator | None = None
        self._standby: StandbyCoordinator | None = None
        self._elector: Elector | None = None
        self._follower: EtcdFollower | None = None
        self._state = ClusterState()
        """State of the next coordinator that this process is; followed until then."""
        self._is_shown = False

    async def run(self) -> None:
        """Be what is needed until the process is to end.

        Raises:
            ConfigurationError: A person has to change settings.
            StorageError: The metadata store failed, and nobody else can act.
            NotCoordinatorError: This coordinator failed, or another one took over the store.
        """
        if self._settings.etcd.is_used and not await self._enter():
            return
        is_going_on = True
        while is_going_on:
            is_going_on = await self._stand_by() and await self._act()
        event(_log, logging.INFO, "stopping")

    async def stop(self) -> None:
        """End the role, and let the next coordinator begin. Idempotent."""
        if self._coordinator is not None and self._elector is not None:
            self._coordinator.ledger.lose()  # it changes nothing more: now another one may
        if self._elector is not None:
            await self._elector.stop()
        await self._end_following()
        for role in (self._standby, self._coordinator, self._suspended):
            if role is not None:
                await role.stop()

    # --- standby --------------------------------------------------------------------------------

    async def _enter(self) -> bool:
        """Stand in the election; return False when the process is to end before that."""
        settings = self._settings
        member = await self._around.enter()
        self._standby = StandbyCoordinator(
            self._net, lambda: self._active_address, lambda: self._trouble
        )
        await self._standby.start(settings.listen, settings.native_listen)
        self._address = self._standby.address
        self._elector = Elector(
            self._around.ballot(member),
            self._around.clock,
            member,
            _reached(settings.advertise or self._address),
            settings.etcd.session_ms,
        )
        self._elector.start()
        return await self._until(self._placed(self._elector))

    async def _placed(self, elector: Elector) -> None:
        try:
            async with asyncio.timeout(self._settings.etcd.timeout_ms / 1000):
                await elector.placed.wait()
        except TimeoutError as error:
            raise StorageError(elector.trouble or "the election does not answer") from error

    async def _stand_by(self) -> bool:
        """Wait until this process is to act; return False when it is to end before that."""
        elector, standby = self._elector, self._standby
        if elector is None or standby is None:
            return True
        if not elector.elected.is_set():
            if not standby.address:
                await standby.start(self._address, self._settings.native_listen)
            self._show()
            event(_log, logging.INFO, "standing_by", active=self._active_address)
            self._follower = self._around.follower(self._state)
            self._follower.start()
            if not await self._until(elector.elected.wait()):
                return False
        await standby.stop()
        return True

    async def _end_following(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            await follower.stop()

    # --- coordinator ----------------------------------------------------------------------------

    async def _act(self) -> bool:
        """Be the coordinator; return False when the process is to end, True when it is one no more.

        Raises as ``run``.
        """
        coordinator = self._coordinator = self._make()
        try:
            await coordinator.start(self._address, self._settings.native_listen)
        except IcecoreError as error:
            if self._elector is None or isinstance(error, ConfigurationError):
                raise
            if not self._is_shown and isinstance(error, OutOfSpaceError):
                raise
            coordinator.ledger.end(error)
        else:
            self._address = coordinator.address
            self._show()
        finally:
            await self._end_following()
        if not await self._until(self._while_elected(coordinator.ledger.lost.wait())):
            return False
        ledger = coordinator.ledger
        if self._elector is not None and not ledger.lost.is_set():
            ledger.end(SupersededError(self._elector.why_deposed))
        await coordinator.stop()
        if ledger.suspended:
            return await self._be_suspended(ledger.suspended)
        if self._elector is None or not ledger.is_replaceable:
            raise NotCoordinatorError(ledger.why_lost)
        self._elector.resign()
        return True

    async def _be_suspended(self, why: str) -> bool:
        """Wait for a person who says how suspended metadata go on; return False when this process
        is to stop before that."""
        self._suspended = SuspendedCoordinator(
            self._net,
            self._around.store(None),
            self._around.rng(),
            why,
            self._settings.topic_defaults,
        )
        try:
            await self._suspended.start(self._address, self._settings.native_listen)
            return await self._until(self._while_elected(self._suspended.outdated.wait()))
        finally:
            await self._suspended.stop()
            self._suspended = None

    async def _until(self, work: Coroutine[Any, Any, object]) -> bool:
        """Wait for work, or for a person to do something; return False when the process is to end.

        Raises ConfigurationError.
        """
        if self._elector is None:
            return await self._process.has_ended(work)
        return await self._process.has_ended(_first(work, self._elector.failed()))

    def _while_elected(self, work: Coroutine[Any, Any, object]) -> Coroutine[Any, Any, object]:
        return work if self._elector is None else _first(work, self._elector.deposed.wait())

    def _make(self) -> Coordinator:
        settings = self._settings
        state, self._state = self._state, ClusterState()
        return Coordinator(
            self._net,
            self._around.store(self._follower),
            self._around.clock,
            self._around.rng(),
            settings.waits,
            settings.topic_defaults,
            settings.reclaim_slack_bytes,
            is_new_cluster=settings.new_cluster,
            state=state,
            may_act=_always if self._elector is None else self._elector.is_sure,
        )

    # --- what others see ------------------------------------------------------------------------

    def _show(self) -> None:
        """Show pages to monitors, and say that the process is ready. Once."""
        if self._is_shown:
            return
        self._is_shown = True
        self._process.show(
            lambda: CoordinatorPages(
                self._describe,
                lambda: self._is_lost,
                lambda: self._why_suspended,
                lambda: self._trouble,
            ).pages()
        )
        self._process.say_ready(address=self._address)

    def _describe(self) -> DescribeClusterResponse | None:
        return self._coordinator.describe() if self._is_acting and self._coordinator else None

    @property
    def _is_acting(self) -> bool:
        return self._elector is None or self._elector.elected.is_set()

    @property
    def _is_lost(self) -> bool:
        return (
            self._elector is None
            and self._coordinator is not None
            and self._coordinator.ledger.lost.is_set()
        )

    @property
    def _why_suspended(self) -> str:
        return self._coordinator.ledger.suspended if self._coordinator and self._is_acting else ""

    @property
    def _active_address(self) -> str:
        return self._elector.active_address if self._elector else ""

    @property
    def _trouble(self) -> str:
        return self._elector.trouble if self._elector else ""


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of them. Raises what it raises."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reached(address: str) -> str:
    """An address that others can call; empty where it names none."""
    try:
        host, _ = split_address(address)
    except ConfigurationError:
        return ""
    return "" if is_wildcard(host) else address


def _always() -> bool:
    return True


class CoordinatorMachine:
    """The surroundings of a real process (``Surroundings``).

    Args:
        settings: Of the process.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._folder, self._etcd = Path(settings.data), settings.etcd
        self.clock = SystemClock()

    def rng(self) -> SystemRng:
        """See ``Surroundings.rng``."""
        return SystemRng()

    async def enter(self) -> str:
        """See ``Surroundings.enter``. The identity is that of the data folder."""
        store = self.store(None)
        try:
            assert isinstance(store, EtcdStore)
            member = member_of(self._folder, SystemRng())
            await store.check()
        finally:
            await store.close()
        return member

    def ballot(self, member: str) -> EtcdBallot:
        """See ``Surroundings.ballot``."""
        return EtcdBallot(self._etcd, member)

    def follower(self, state: ClusterState) -> EtcdFollower:
        """See ``Surroundings.follower``."""
        return EtcdFollower(self._etcd, state)

    def store(self, follower: EtcdFollower | None) -> MetadataStore:
        """See ``Surroundings.store``."""
        with opening(self._folder):
            return open_store(self._folder, self._etcd, SystemRng(), follower)


if __name__ == "__main__":
    sys.exit(main())
