"""``python -m icecore_coordinator``: one coordinator process with the embedded metadata store."""

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore.process.settings import check_listen, load_from_arguments
from icecore.process.system import SystemClock, SystemRng, raise_descriptor_limit, tune_process
from icecore.rpc.transports import Transports
from icecore_coordinator.config import CoordinatorSettings, Timing
from icecore_coordinator.coordinator import Coordinator
from icecore_coordinator.stores.sqlite_store import SqliteStore

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit status."""
    try:
        settings = load_from_arguments(CoordinatorSettings, "icecore-coordinator", argv)
        for address in filter(None, (settings.listen, settings.native_listen)):
            check_listen(address, insecure_bind=settings.insecure_bind)
        logging.basicConfig(
            level=settings.log_level,
            format="ts=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s",
        )
        tune_process()
        raise_descriptor_limit(settings.descriptors_min)
        return uvloop.run(_serve(settings))
    except IcecoreError as error:
        print(f"icecore-coordinator: {error.message}", file=sys.stderr)
        return 1


async def _serve(settings: CoordinatorSettings) -> int:
    net = Transports(insecure_bind=settings.insecure_bind)
    store = SqliteStore(Path(settings.data) / "metadata.sqlite3")
    timing = Timing(
        heartbeat_ms=settings.heartbeat_ms,
        lease_ms=settings.lease_ms,
        recovery_wait_ms=settings.recovery_wait_ms,
        lost_replica_grace_ms=settings.lost_replica_grace_ms,
    )
    coordinator = Coordinator(
        net, store, SystemClock(), SystemRng(), timing, settings.topic_defaults
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        await coordinator.start(settings.listen, settings.native_listen)
        print(f"icecore-coordinator ready address={coordinator.address}", flush=True)
        lost = asyncio.ensure_future(coordinator.run())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((lost, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if lost.done():
            lost.result()
        lost.cancel()
        event(_log, logging.INFO, "stopping")
        return 0
    finally:
        await coordinator.stop()
        await net.close()


if __name__ == "__main__":
    sys.exit(main())
