"""``python -m icecore_coordinator``: one coordinator process with the embedded metadata store."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from icecore.extras import as_one_line

# gRPC's core would write a line for each call that a stranger compresses.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with as_one_line("icecore-coordinator", "server"):
    import uvloop

    from icecore.errors import IcecoreError, NotCoordinatorError
    from icecore.process.log import event, set_up
    from icecore.process.memory import MemoryReturn
    from icecore.process.settings import check_listen, load_from_arguments
    from icecore.process.status_page import StatusServer
    from icecore.process.system import (
        SystemClock,
        SystemRng,
        open_standard_streams,
        raise_descriptor_limit,
        tune_process,
    )
    from icecore.rpc.transports import Transports
    from icecore_coordinator.config import CoordinatorSettings
    from icecore_coordinator.coordinator import Coordinator
    from icecore_coordinator.metrics import CoordinatorPages
    from icecore_coordinator.stores.sqlite_store import FILE_NAME, SqliteStore
    from icecore_coordinator.suspended import SuspendedCoordinator

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    open_standard_streams()
    try:
        settings = load_from_arguments(CoordinatorSettings, "icecore-coordinator", argv)
        for address in filter(
            None, (settings.listen, settings.native_listen, settings.metrics_listen)
        ):
            check_listen(address, insecure_bind=settings.insecure_bind)
        set_up(settings.log_level, settings.log_format)
        tune_process()
        raise_descriptor_limit(settings.descriptors_min)
        return uvloop.run(_serve(settings))
    except IcecoreError as error:
        print(f"icecore-coordinator: {error.message}", file=sys.stderr)
        return 1


async def _serve(settings: CoordinatorSettings) -> int:
    net = Transports(insecure_bind=settings.insecure_bind)
    coordinator = _coordinator(net, settings)
    status: StatusServer | None = None
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    memory = MemoryReturn()
    memory.start()
    try:
        await coordinator.start(settings.listen, settings.native_listen)
        if settings.metrics_listen:
            pages = CoordinatorPages(
                lambda: coordinator.describe(),
                lambda: coordinator.ledger.lost.is_set(),
                lambda: coordinator.ledger.suspended,
            )
            status = StatusServer(
                pages.pages(), settings.metrics_listen, insecure_bind=settings.insecure_bind
            )
        address = coordinator.address
        print(f"icecore-coordinator ready address={address}", flush=True)
        while await _ends(coordinator.run(), stopping):
            if not (why := coordinator.ledger.suspended):
                raise NotCoordinatorError(coordinator.ledger.why_lost)
            await coordinator.stop()
            if not await _is_adopted(net, settings, address, why, stopping):
                break
            coordinator = _coordinator(net, settings)
            await coordinator.start(address, settings.native_listen)
        event(_log, logging.INFO, "stopping")
        return 0
    finally:
        if status is not None:
            # On a thread: a scrape that is under way asks this very loop.
            await asyncio.to_thread(status.stop)
        await memory.stop()
        await coordinator.stop()
        await net.close()


def _coordinator(net: Transports, settings: CoordinatorSettings) -> Coordinator:
    return Coordinator(
        net,
        _store(settings),
        SystemClock(),
        SystemRng(),
        settings.waits,
        settings.topic_defaults,
        settings.reclaim_slack_bytes,
        is_new_cluster=settings.new_cluster,
    )


def _store(settings: CoordinatorSettings) -> SqliteStore:
    return SqliteStore(Path(settings.data) / FILE_NAME)


async def _ends(work: Coroutine[Any, Any, object], stopping: asyncio.Event) -> bool:
    """Wait for the end of ``work``; return False when this process is to stop before it."""
    ended, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    is_ended = ended.done()
    for task in (ended, stopped):
        task.cancel()
    await asyncio.gather(ended, stopped, return_exceptions=True)
    return is_ended


async def _is_adopted(
    net: Transports,
    settings: CoordinatorSettings,
    address: str,
    why: str,
    stopping: asyncio.Event,
) -> bool:
    """Wait for a person who says how suspended metadata go on; return False when this process is to
    stop before that."""
    suspended = SuspendedCoordinator(net, _store(settings), SystemRng(), why)
    try:
        await suspended.start(address, settings.native_listen)
        return await _ends(suspended.adopted.wait(), stopping)
    finally:
        await suspended.stop()


if __name__ == "__main__":
    sys.exit(main())
