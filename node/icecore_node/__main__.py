"""``python -m icecore_node``: one storage node as a process, on real clock, disk and network."""

import asyncio
import contextlib
import logging
import os
import signal
import sys

from icecore.extras import as_one_line

# gRPC's core would write a line for each call that a stranger compresses.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with as_one_line("icecore-node", "server"):
    import uvloop

    from icecore.errors import ConfigurationError, IcecoreError
    from icecore.process.log import event, set_up
    from icecore.process.memory import MemoryReturn
    from icecore.process.settings import load_from_arguments
    from icecore.process.system import (
        SystemClock,
        SystemRng,
        boot_id,
        open_standard_streams,
        raise_descriptor_limit,
        tune_process,
    )
    from icecore.rpc.transports import Transports
    from icecore_node import metrics as node_metrics
    from icecore_node import offline
    from icecore_node.config import NodeSettings
    from icecore_node.io.executor import ThreadExecutor
    from icecore_node.metrics import NodeMetrics
    from icecore_node.node import Node
    from icecore_node.ports import RemotePorts
    from icecore_node.remote.ports import TierPorts
    from icecore_node.sampling import sample
    from icecore_node.storage.data_dirs import DataDirs, check_layout
    from icecore_node.storage.data_folder import DataFolder
    from icecore_node.storage.disks import Disks
    from icecore_node.storage.engines import make_store
    from icecore_node.storage.files.descriptors import DescriptorBudget
    from icecore_node.storage.replica_store import ReplicaStore
    from icecore_node.storage.segment_engine.segment_log import LogSettings

COLD_NICENESS = 10
"""Niceness of threads that read object storage: scans of history leave the processors to producers
and to readers of new records."""

_log = logging.getLogger(__name__)


async def serve(settings: NodeSettings) -> None:
    """Run a node until SIGTERM or SIGINT; raises when it can't start or can't go on."""
    settings.check_addresses()
    budget = _budget(settings)
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
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    memory = MemoryReturn()
    memory.start()
    starting = loop.create_task(_start(node))
    stop = loop.create_task(stopping.wait())
    endpoint = None
    try:
        await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        starting.result()
        metrics.show(lambda: sample(node.context, node.replicas, node.data.inflight_bytes))
        if settings.metrics_listen:
            endpoint = node_metrics.start(
                metrics,
                settings.metrics_listen,
                node.condition.why_not_live,
                node.condition.why_not_ready,
                insecure_bind=settings.insecure_bind,
            )
        print(_ready_line(node), flush=True)
        await asyncio.wait((node.ended, stop), return_when=asyncio.FIRST_COMPLETED)
        if not node.ended.done():
            await node.leave()
        if node.ended.done():
            node.ended.result()
    finally:
        starting.cancel()
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError, IcecoreError):
            await starting
        if endpoint is not None:
            endpoint.stop()
        await memory.stop()
        await node.stop()
        dirs.close()
        folder.close()
        event(_log, logging.INFO, "stopped", node_id=settings.node_id)


def _open_folders(settings: NodeSettings, budget: DescriptorBudget) -> tuple[DataFolder, DataDirs]:
    check_layout(settings.data, settings.data_dirs, settings.index_dir)
    syncfs, threads = settings.syncfs, settings.io_workers
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


def _budget(settings: NodeSettings) -> DescriptorBudget:
    limit = raise_descriptor_limit(settings.descriptors_min)
    return DescriptorBudget.of(limit, settings.descriptors_reserve)


def _ready_line(node: Node) -> str:
    identity = node.context.identity
    line = f"icecore-node ready node_id={identity.node_id} address={identity.address}"
    return f"{line} native_address={identity.native_address}" if identity.native_address else line


async def _start(node: Node) -> None:
    await node.start()
    await node.until_counted_on()


def main() -> None:
    """Entry point ``icecore-node``; with a command of ``offline.py`` first it starts no node."""
    open_standard_streams()
    if sys.argv[1:2] and sys.argv[1] in offline.COMMANDS:
        offline.main(sys.argv[1:])
        return
    tune_process()
    try:
        settings = load_from_arguments(NodeSettings, "icecore-node")
        set_up(settings.log_level, settings.log_format)
        uvloop.run(serve(settings))
    except IcecoreError as error:
        sys.exit(f"icecore-node: {error}")


if __name__ == "__main__":
    main()
