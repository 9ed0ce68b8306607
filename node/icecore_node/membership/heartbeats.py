"""Heartbeats: one stream to the coordinator, on which it also says what this node is to do.

They prove that the I/O workers turn, not just the loop: a heartbeat goes out only after every
worker answered a probe, so a node whose disk stalls loses its lease (R49).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from icecore.errors import (
    FencedError,
    IcecoreError,
    NotCoordinatorError,
    RequestTimeoutError,
    SupersededError,
    WrongClusterError,
)
from icecore.model import INVENTORY_WANTED, CoordinatorEpoch
from icecore.process.log import event
from icecore.rpc.messages import message_of
from icecore.rpc.ports import ClientStream, Received
from icecore.v1 import common_pb2, coordinator_pb2
from icecore_node.context import NodeContext, end_task
from icecore_node.identity.identity import Lease
from icecore_node.identity.node_report import InitialReport, NodeReport
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.membership.disk_report import DiskReport

_log = logging.getLogger(__name__)


class StoreReport(Protocol):
    """The object store of the node, as heartbeats tell of it."""

    @property
    def usable_id(self) -> bytes:
        """Identity of the store while it may be used; empty = none, or one without an id."""
        ...

    @property
    def refusal(self) -> str:
        """Return why it may not be used, until a person acts; empty = nothing is wrong."""
        ...


class Heartbeats:
    """All streams of this process, one after the other."""

    def __init__(
        self,
        context: NodeContext,
        coordinator: CoordinatorLink,
        *,
        lease: Lease,
        report: NodeReport,
        disk_report: DiskReport,
        standing: Callable[[], InitialReport],
        on_update: Callable[[coordinator_pb2.HeartbeatResponse], None],
        on_refused: Callable[[IcecoreError], Awaitable[None]],
        store: StoreReport | None = None,
    ) -> None:
        """
        Args:
            context: The node.
            coordinator: Opens streams to the coordinator.
            lease: Renewed by answered heartbeats.
            report: Contents of the next heartbeat.
            disk_report: Fills in the part of heartbeats that describes the disk.
            standing: Returns the state for the first heartbeat of each stream.
            on_update: Called with every message of the coordinator.
            on_refused: Called with each error that broke a stream.
            store: Says which object store may be used now.
        """
        self._context = context
        self._coordinator = coordinator
        self._lease = lease
        self._report = report
        self._disk_report = disk_report
        self._standing = standing
        self._on_update = on_update
        self._on_refused = on_refused
        self._store = store
        self._interval_ms = 500
        self._draining = False
        self._leaving = False
        self._heartbeat_now = asyncio.Event()
        self.heard = asyncio.Event()
        """Set by every message of the coordinator, and when the stream breaks."""
        self.is_connected = False
        """Whether the coordinator has answered on the stream that is open now."""
        self.was_heard = False
        """Whether the coordinator ever answered a heartbeat: then our incarnation counted."""
        self._last_told = ""
        """Why the stream broke last, as it was told."""
        self.may_leave = False
        """Whether the coordinator needs this draining node no longer."""

    def set_times(self, *, interval_ms: int, lease_ms: int) -> None:
        """Set the interval of heartbeats and the length of the lease; 0 = unchanged."""
        self._interval_ms = interval_ms or self._interval_ms
        self._lease.length_ms = lease_ms or self._lease.length_ms

    def announce(self, *, leaving: bool = False) -> None:
        """Say at once that this node wants to stop, and when ``leaving``, that it does now."""
        self._draining, self._leaving = True, leaving
        self._heartbeat_now.set()

    async def run(self) -> None:
        """Keep a heartbeat stream open until cancelled.

        Raises:
            SupersededError: Another incarnation of this node counts: the process must end.
            WrongClusterError: The first coordinator that was found is another cluster's.
        """
        while True:
            address, stream = self._coordinator.address, self._coordinator.open_heartbeats()
            try:
                await self._converse(stream)
            except SupersededError:
                raise
            except IcecoreError as error:
                self._note_broken(error)
                await self._on_refused(error)
                self._coordinator.turn_from(address, error)
            finally:
                stream.cancel()
            await asyncio.sleep(self._context.settings.timing.heartbeat_retry_ms / 1000)

    def _note_broken(self, error: IcecoreError) -> None:
        """Say why the stream broke.

        A node that has heard its own coordinator goes on serving, whatever speaks at that address
        now: neither another cluster's coordinator nor an older copy may order anything (R94).

        Raises WrongClusterError when no coordinator was heard before.
        """
        if isinstance(error, WrongClusterError) and not self.was_heard:
            raise error
        is_wrong = isinstance(error, WrongClusterError | FencedError)
        is_wrong |= INVENTORY_WANTED in error.metadata
        why = f"{'wrong' if is_wrong else 'broken'}: {error.message}"
        is_new, self._last_told = why != self._last_told, why
        if is_wrong and is_new:
            event(_log, logging.CRITICAL, "wrong_coordinator", error=error)
        elif is_new:  # not each of ten tries a second
            event(_log, logging.INFO, "heartbeats_broken", error=error)

    async def _converse(self, stream: ClientStream) -> None:
        self._report.begin(self._standing())
        self._disk_report.begin()
        writer = asyncio.get_running_loop().create_task(self._heartbeat(stream))
        writer.add_done_callback(lambda _: stream.cancel())  # no heartbeats, no stream
        try:
            while (body := await self._read(stream)) is not None:
                update = coordinator_pb2.HeartbeatResponse.FromString(bytes(body))
                highest = self._context.identity.coordinator_epoch
                if update.coordinator_epoch < highest:
                    # It may live on for as long as it has nothing to change (R36).
                    raise NotCoordinatorError(
                        f"coordinator epoch {update.coordinator_epoch} is older than {highest}; "
                        "if no newer coordinator runs: icecore-node reset-coordinator-epoch"
                    )
                self._context.identity.check_revision(
                    CoordinatorEpoch(update.coordinator_epoch), update.metadata_revision
                )
                self._context.identity.hear_store(update.store_id, update.forgotten_store_id)
                self.is_connected = self.was_heard = True
                self.may_leave = update.may_leave
                self._lease.renew(update.sequence)
                self._on_update(update)
                self.heard.set()
        finally:
            self.is_connected = False
            self.heard.set()
            await end_task(writer)

    async def _read(self, stream: ClientStream) -> Received | None:
        """The next message. A coordinator that stands still breaks no stream, and holds up nobody
        when there are others.

        Raises:
            RequestTimeoutError: It has been silent for half a lease.
        """
        if "," not in self._context.settings.coordinator:
            return await stream.read()
        silent_ms = self._lease.length_ms / 2
        try:
            async with asyncio.timeout(silent_ms / 1000):
                return await stream.read()
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"the coordinator at {self._coordinator.address} has said nothing for"
                f" {silent_ms:g} ms"
            ) from error

    async def _heartbeat(self, stream: ClientStream) -> None:
        while True:
            self._heartbeat_now.clear()
            heartbeat = await self._next()
            try:
                await stream.write(heartbeat.SerializeToString())
            except IcecoreError:
                return  # the reader sees the same break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._heartbeat_now.wait()
            await self._context.pool.probe()

    async def _next(self) -> coordinator_pb2.HeartbeatRequest:
        """All that is to be said now; the lease counts from here."""
        context = self._context
        sequence = self._lease.heartbeat()
        news = self._report.take()
        used, free = await context.executor.run_first(context.disks.space)
        disks = await context.executor.run_first(context.disks.usage)
        heartbeat = coordinator_pb2.HeartbeatRequest(
            cluster_id=context.identity.cluster_id,
            node_id=context.identity.node_id,
            incarnation=context.identity.incarnation,
            sequence=sequence,
            led=[
                coordinator_pb2.LedHighWatermark(
                    segment_id=segment_id,
                    high_watermark=log.high_watermark,
                    length_bytes=log.length_bytes,
                )
                for segment_id, log in news.led.items()
            ],
            draining=self._draining,
            leaving=self._leaving,
            unknown_segment_ids=news.unknown,
            diverged_segment_ids=news.diverged,
            fenced_segment_ids=news.fenced,
            deleted_segment_ids=news.deleted,
            vanished_segment_ids=news.vanished,
            wall_clock_ms=context.clock.now_ms(),
            read_only=self._report.read_only,
            crowded_segment_ids=self._report.crowded,
            metadata_revision=context.identity.metadata_revision,
            disk_id=context.identity.disk_id,
            store_id=self._store.usable_id if self._store is not None else b"",
            store_problem=self._store.refusal if self._store is not None else "",
            disks=[message_of(common_pb2.DiskUsage, each) for each in disks],
        )
        self._disk_report.measured(heartbeat, used, free)  # after what was deleted was taken
        await self._disk_report.fill(heartbeat)
        return heartbeat
