"""One replica of segment 7 with everything around it faked: what the tests of a role start from."""

from types import SimpleNamespace
from typing import Any, cast

from icecore.errors import IcecoreError
from icecore_node.context import NodeContext, Peers, ProducerFences
from icecore_node.identity.identity import Identity
from icecore_node.io.io_pool import LogIo
from icecore_node.io.tail_cache import TailCache
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import AppendRequest, LogTail
from icecore_replication.checked import Checked
from icecore_replication.producers import ProducerTable
from tests.conformance.log_builder import LogBuilder


class Worker:
    """Keeps appends until somebody says that they are durable."""

    def __init__(self) -> None:
        self.queue: list[tuple[AppendRequest, Any]] = []

    def worker_for(self, *_: object) -> "Worker":
        return self

    def append(self, request: AppendRequest, owner: Any) -> None:
        self.queue.append((request, owner))

    async def probe(self) -> None:
        """All that is queued is done as far as the test wants."""

    def sync(self) -> None:
        """All of them reach the disk, as one group."""
        queue, self.queue = self.queue, []
        if queue:
            request, owner = queue[-1]
            owner.on_appended(request.tail, None)

    def fail(self, error: IcecoreError) -> None:
        """None of them does."""
        queue, self.queue = self.queue, []
        queue[-1][1].on_appended(None, error)


class Calls:
    """Notes what it is called with, by method; stands for any protocol."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of this name."""
        return [given for called, *given in self.calls if called == name]  # type: ignore[misc]


class Clock:
    """Goes where the test wants it."""

    wall_ms = 0

    def monotonic_ms(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return self.wall_ms


def _raise(_: object, broken: AssertionError) -> None:
    raise broken


def context(worker: Worker, **changes: Any) -> NodeContext:
    """Return the context of node 1 in incarnation 11."""
    identity, cache = Identity(1), TailCache(1 << 20)
    identity.register(b"", incarnation=11, coordinator_epoch=1)
    fields: dict[str, Any] = {
        "identity": identity,
        "clock": Clock(),
        "cache": cache,
        "log_io": LogIo(cast(Any, None), cast(Any, worker), cache),
        "peers": Peers(),
        "producer_fences": ProducerFences(),
        "settings": SimpleNamespace(replica_lag_ms_max=10_000.0),
        "checked": lambda core: Checked(core, check_every_steps=1),
        "fail_stop": _raise,
        **changes,
    }
    return cast(NodeContext, SimpleNamespace(**fields))


def replica(shared: NodeContext, log: LogBuilder, tail: LogTail | None = None) -> Replica:
    """An intact one; empty unless a tail of the log is given."""
    start = tail or log.tails[0]
    return Replica(shared.log_io, log.identity, start, ProducerTable(), life=Life.IDLE)
