"""``python -m icecore_node``: one storage node as a process, on real clock, disk and network."""

import asyncio
import logging
import os
import sys

from icecore.extras import as_one_line

# gRPC's core would write a line for each call that a stranger compresses.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with as_one_line("icecore-node", "server"):
    from icecore.errors import ConfigurationError
    from icecore.process.log import event
    from icecore.process.server import ServerProcess, run
    from icecore.process.settings import load_from_arguments
    from icecore.process.status_page import Pages
    from icecore.process.system import (
        SystemClock,
        SystemRng,
        boot_id,
        open_standard_streams,
        opening,
    )
    from icecore.rpc.transports import Transports
    from icecore_node import offline
    from icecore_node.config import NodeSettings
    from icecore_node.io.executor import ThreadExecutor
    from icecore_node.membership.condition import Condition
    from icecore_node.metrics import NodeMetrics, pages
    from icecore_node.node import Node
    from icecore_node.ports import RemotePorts
    from icecore_node.remote.ports import TierPorts
    from icecore_node.sampling import sample
    from icecore_node.storage.data_dirs import DataDirs, check_layout
    from icecore_node.storage.data_folder import DataFolder
    from icecore_node.storage.disks import Disks
    from icecore_node.storage.engines import make_store
    from icecore_node.storage.files.open_files import DescriptorBudget
    from icecore_node.storage.replica_store import ReplicaStore
    from icecore_node.storage.segment_engine.segment_log import LogSettings

PROGRAM = "icecore-node"
COLD_NICENESS = 10
"""Niceness of threads that read object storage: scans of history leave the processors to producers
and to readers of new records."""

TURN_S = 1.0

_log = logging.getLogger(__name__)


async def serve(settings: NodeSettings, process: ServerProcess) -> None:
    """Run a node until a signal or its end; raises when it can't start or can't go on."""
    budget = DescriptorBudget.of(process.descriptor_limit, settings.descriptors_reserve)
    folder, dirs = _open_folders(settings, budget)
    disks = Disks(folder.control, dirs.disks, settings.disk_limits)
    metrics = NodeMetrics()
    executor = ThreadExecutor()
    node = Node(
        settings,
        clock=SystemClock(),
        rng=SystemRng(),
        net=Transports(insecure_bind=settings.insecure_bind),
        executor=executor,
        disks=disks,
        store=_store(settings, folder, disks, budget),
        folder=folder,
        metrics=metrics,
        tier=_tier(settings, folder, executor),
        remote=_remote(settings, folder),
    )
    try:
        # From here on, so that a monitor sees a start that takes long, and why.
        process.show(lambda: _pages(metrics, node.condition))
        if not await process.has_ended(_start(node)):
            return
        metrics.show(lambda: sample(node.context, node.replicas, node.data.inflight_bytes))
        process.say_ready(**_addresses(node))
        if not await process.has_ended(asyncio.wait((node.ended,))):
            await node.leave()
        if node.ended.done():
            node.ended.result()
    finally:
        await process.close()
        await node.stop()
        dirs.close()
        folder.close()
        event(_log, logging.INFO, "stopped", node_id=settings.node_id)


def _open_folders(settings: NodeSettings, budget: DescriptorBudget) -> tuple[DataFolder, DataDirs]:
    syncfs, threads = settings.syncfs, settings.io_workers
    with opening(settings.data):
        check_layout(settings.data, settings.data_dirs, settings.index_dir)
        folder = DataFolder.open(
            settings.data,
            settings.node_id,
            syncfs=syncfs,
            sync_threads=threads,
            index_files_max=budget.index_files_max,
            index_dir=settings.index_dir,
        )
    try:
        dirs = DataDirs.open(settings.data_dirs, folder, syncfs=syncfs, sync_threads=threads)
    except BaseException:
        folder.close()
        raise
    return folder, dirs


def _store(
    settings: NodeSettings, folder: DataFolder, disks: Disks, budget: DescriptorBudget
) -> ReplicaStore:
    return make_store(
        folder.files,
        folder.index,
        folder.control,
        folder.cluster_id,
        LogSettings(
            group_bytes_max=settings.group_bytes_max,
            allocation_step_bytes=settings.preallocate_bytes,
            recycle_bytes_max=settings.recycle_bytes_max,
            open_files_max=budget.segment_files_max,
            recent_entries_bytes_max=settings.index_memory_bytes,
            descriptors_reserve=settings.descriptors_reserve,
            memory_engine_bytes=settings.memory_engine_bytes,
            io_workers=settings.io_workers,
        ),
        boot_id(),
        disks,
        folder.log_database,
    )


def _tier(settings: NodeSettings, folder: DataFolder, executor: ThreadExecutor) -> TierPorts | None:
    """Raises ConfigurationError for a setting that is wrong, or a library that is missing."""
    if not settings.tier_url:
        return None
    try:
        from icecore_node.remote.opening import open_tier
        from icecore_node.remote.store import obstore_store
    except ImportError as error:
        raise ConfigurationError(
            f"tier_url needs more libraries ({error}): pip install 'icecore[tier]'"
        ) from error
    return open_tier(
        obstore_store.StoreSettings(
            url=settings.tier_url,
            region=settings.tier_region,
            endpoint=settings.tier_endpoint,
            request_timeout_ms=settings.tier_request_timeout_ms,
        ),
        executor,
        folder.control.known_buckets.at(settings.tier_url),
    )


def _remote(settings: NodeSettings, folder: DataFolder) -> RemotePorts | None:
    if not settings.tier_url:
        return None
    return RemotePorts(ThreadExecutor(reader_threads=2, niceness=COLD_NICENESS), folder.files)


def _pages(metrics: NodeMetrics, probes: Condition) -> Pages:
    return pages(metrics, probes.why_not_live, probes.why_not_ready, probes.why_not_started)


def _addresses(node: Node) -> dict[str, object]:
    identity = node.context.identity
    native = {"native_address": identity.native_address} if identity.native_address else {}
    return {"node_id": identity.node_id, "address": identity.address, **native}


async def _start(node: Node) -> None:
    turning = asyncio.get_running_loop().create_task(_turn(node.condition))
    try:
        await node.start()
        await node.until_counted_on()
    finally:
        turning.cancel()


async def _turn(condition: Condition) -> None:
    """Tell that the loop turns until the node's own tick does."""
    while True:
        condition.turned()
        await asyncio.sleep(TURN_S)


def main() -> int:
    """Entry point ``icecore-node``; with a command of ``offline.py`` first it starts no node.
    Return the exit status."""
    if sys.argv[1:2] and sys.argv[1] in offline.COMMANDS:
        open_standard_streams()
        offline.main(sys.argv[1:])
        return 0
    return run(PROGRAM, lambda: load_from_arguments(NodeSettings, PROGRAM), serve)


if __name__ == "__main__":
    sys.exit(main())
