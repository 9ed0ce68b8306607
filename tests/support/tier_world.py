"""The coordinator's workers of object storage with nodes that answer as a test says, and a ledger
without a store."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, cast

from icecore.errors import IcecoreError, ObjectStoreError
from icecore.rpc.convert import error_to_proto
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.remote.tiering import TieringScheduler
from tests.support.cluster_states import ALL, Cluster, commit
from tests.support.tier_states import COPY, tiered_topic

REQUESTS: dict[str, Any] = {
    "Upload": pb.UploadRequest,
    "CommitTables": pb.CommitTablesRequest,
    "Sweep": pb.SweepRequest,
    "VerifyCopies": pb.VerifyCopiesRequest,
}


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.now)

    def monotonic_ms(self) -> float:
        return self.now


class TierWorld:
    """Three nodes with an object store, one topic with ``tier=on``."""

    def __init__(self, state: Cluster | None = None) -> None:
        self.state = state or tiered_topic()
        self.state.coordinator_epoch = 1
        self.clock = Clock()
        self.lost = asyncio.Event()
        self.asked: list[tuple[int, Any]] = []
        """(node id, request), in order."""
        self.fails: dict[int, IcecoreError] = {}
        """The error that a node answers for every item, by node id."""
        self.breaks: dict[int, IcecoreError] = {}
        """The error that a call to a node ends with, by node id."""
        self.holds: asyncio.Event | None = None
        """The event that answers to uploads wait for; None = they do not wait."""
        self.store_ids: dict[int, bytes] = {}
        """Identity of the object store that a node has, if it says one, by node id."""
        self.gone: set[int] = set()
        """Attempts whose objects are not in the object store."""
        self.named: set[int] = set()
        """Attempts that the tables name: nobody reads their manifests to commit."""
        self.alerts: list[str] = []
        self.waits: dict[str, Callable[[], bool]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.listeners: list[Callable[[Change], None]] = []
        self.timing = Timing(tier_reader_grace_ms=100, tier_closed_keep_ms=1_000)
        self.restarted()

    def restarted(self) -> None:
        """The workers of the next coordinator."""
        self.listeners.clear()
        ports = SimpleNamespace(
            ledger=self,
            calls=NodeCalls(cast(Any, self), self.state),
            live=self.state.live,
            copies=CopyReports(),
            clock=self.clock,
            timing=self.timing,
            alerts=SimpleNamespace(raise_alert=self._raise_alert),
        )
        self.tiering = TieringScheduler(cast(Any, ports), self._spawn)
        self.local = self.tiering.local
        self.local.start()

    def _raise_alert(
        self, _: object, __: object, why: str, waits: Callable[[], bool] = lambda: True
    ) -> None:
        self.alerts.append(why)
        self.waits[why] = waits

    def alerts_that_hold(self) -> list[str]:
        """Return the alerts that an operator still sees."""
        return [why for why, waits in self.waits.items() if waits()]

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def uploads(self) -> None:
        """Begin what is due, and wait until all of it has ended."""
        await self.tiering.begin()
        await asyncio.gather(*self.tasks)
        self.tasks.clear()

    def asked_for(self, kind: type[Any]) -> list[tuple[int, Any]]:
        """The calls of one kind."""
        return [each for each in self.asked if isinstance(each[1], kind)]

    # --- as a ledger ----------------------------------------------------------------------------

    async def decide(self, decision: Callable[[ClusterState], Change]) -> Change:
        change = decision(self.state)
        if change.puts or change.deletes:
            self.commit(change)
        return change

    def commit(self, change: Change) -> None:
        """As if somebody had decided it."""
        commit(self.state, change)
        for listener in self.listeners:
            listener(change)

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        self.listeners.append(listener)

    async def decide_each(
        self, items: Iterable[Any], decision: Callable[[ClusterState, Any], Change]
    ) -> list[Change | IcecoreError]:
        found: list[Change | IcecoreError] = []
        for item in items:
            try:
                found.append(await self.decide(lambda state, each=item: decision(state, each)))  # type: ignore[misc]
            except IcecoreError as error:
                found.append(error)
        return found

    # --- as the network -------------------------------------------------------------------------

    async def call(self, address: str, method: str, body: bytes, *, timeout_s: float) -> bytes:
        assert timeout_s > 0
        node_id = int(address.removeprefix("n").partition(":")[0])
        request = REQUESTS[method.rpartition("/")[2]].FromString(body)
        self.asked.append((node_id, request))
        if isinstance(request, pb.UploadRequest) and self.holds is not None:
            await self.holds.wait()
        if node_id in self.breaks:
            raise self.breaks[node_id]
        answer = self._answer(request, self.fails.get(node_id))
        answer.incarnation = ALL[node_id]
        answer.store_id = self.store_ids.get(node_id, b"")
        return cast(bytes, answer.SerializeToString())

    def _lost(self, attempts: set[int]) -> Any:
        """The error of a node that looks for these copies; None = they are there."""
        found = sorted(attempts & self.gone)
        return error_to_proto(ObjectStoreError(f"{found[0]} is not there")) if found else None

    def _answer(self, request: Any, error: IcecoreError | None) -> Any:
        told = error_to_proto(error) if error else None
        if isinstance(request, pb.CommitTablesRequest):
            [table] = request.partitions
            unread = {each.attempt for each in table.segments} - self.named
            lost = self._lost(unread)
            if not (told or lost):
                self.named |= unread
            empty = pb.CommitTablesResponse().errors.add()
            return pb.CommitTablesResponse(errors=[told or lost or empty], missing=[bool(lost)])
        if isinstance(request, pb.SweepRequest):
            empty = pb.SweepResponse().errors.add()
            return pb.SweepResponse(
                errors=[told or empty for _ in request.attempts],
                topic_errors=[told or empty for _ in request.gone_topic_ids],
                mark_errors=[told or empty for _ in request.to_mark],
            )
        if isinstance(request, pb.VerifyCopiesRequest):
            empty = pb.VerifyCopiesResponse().errors.add()
            found = [self._lost({each.copy.attempt}) for each in request.copies]
            return pb.VerifyCopiesResponse(
                errors=[told or each or empty for each in found],
                missing=[each is not None for each in found],
            )
        copies = [
            pb.UploadedCopy(error=told)
            if told
            else pb.UploadedCopy(
                copy=pb.TierCopy(
                    attempt=each.attempt,
                    manifest_sha256=COPY.manifest_sha256,
                    content_digest=COPY.content_digest,
                    length_bytes=COPY.length_bytes,
                    records=COPY.records * max(1, len(each.sources)),
                    tier_format=each.tier_format,
                ),
                source_digests=[COPY.content_digest for _ in each.sources],
            )
            for each in request.segments
        ]
        return pb.UploadResponse(results=copies)
