"""``python -m icecore_coordinator``: one coordinator process with its metadata store."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from icecore.extras import as_one_line

# gRPC's core would write a line for each call that a stranger compresses.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

with as_one_line("icecore-coordinator", "server"):
    from icecore.errors import NotCoordinatorError
    from icecore.process.log import event
    from icecore.process.server import ServerProcess, run
    from icecore.process.settings import load_from_arguments
    from icecore.process.system import SystemClock, SystemRng
    from icecore.rpc.transports import Transports
    from icecore_coordinator.config import CoordinatorSettings
    from icecore_coordinator.coordinator import Coordinator
    from icecore_coordinator.metrics import CoordinatorPages
    from icecore_coordinator.stores.metadata_store import MetadataStore
    from icecore_coordinator.stores.store_choice import open_store
    from icecore_coordinator.suspended import SuspendedCoordinator

PROGRAM = "icecore-coordinator"
_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point ``icecore-coordinator``. Return the exit status."""
    return run(PROGRAM, lambda: load_from_arguments(CoordinatorSettings, PROGRAM, argv), _serve)


async def _serve(settings: CoordinatorSettings, process: ServerProcess) -> None:
    net = Transports(insecure_bind=settings.insecure_bind)
    coordinator = _coordinator(net, settings)
    try:
        await coordinator.start(settings.listen, settings.native_listen)
        process.show(
            lambda: CoordinatorPages(
                lambda: coordinator.describe(),
                lambda: coordinator.ledger.lost.is_set(),
                lambda: coordinator.ledger.suspended,
            ).pages()
        )
        address = coordinator.address
        process.say_ready(address=address)
        while await process.has_ended(coordinator.ledger.lost.wait()):
            if not (why := coordinator.ledger.suspended):
                raise NotCoordinatorError(coordinator.ledger.why_lost)
            await coordinator.stop()
            if not await _is_adopted(net, settings, address, why, process):
                break
            coordinator = _coordinator(net, settings)
            await coordinator.start(address, settings.native_listen)
        event(_log, logging.INFO, "stopping")
    finally:
        await process.close()
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


def _store(settings: CoordinatorSettings) -> MetadataStore:
    return open_store(Path(settings.data), settings.etcd, SystemRng())


async def _is_adopted(
    net: Transports,
    settings: CoordinatorSettings,
    address: str,
    why: str,
    process: ServerProcess,
) -> bool:
    """Wait for a person who says how suspended metadata go on; return False when this process is to
    stop before that."""
    suspended = SuspendedCoordinator(net, _store(settings), SystemRng(), why)
    try:
        await suspended.start(address, settings.native_listen)
        return await process.has_ended(suspended.adopted.wait())
    finally:
        await suspended.stop()


if __name__ == "__main__":
    sys.exit(main())
