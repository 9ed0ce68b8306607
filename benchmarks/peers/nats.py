"""Three NATS servers on this machine with JetStream, where a partition is a replicated stream.

The binary comes with the extra ``bench``, from its wheel. Each server is a process of its own,
known by pid only; data and logs live in the folder that is given and end with it.
"""

import asyncio
import contextlib
import shutil
import sysconfig
import zlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.cluster import Missing, NotStarted
from benchmarks.harness.cases import IN_FLIGHT_BYTES, RECORD_BYTES, Case
from benchmarks.peers.processes import HOST, Processes, free_ports

if TYPE_CHECKING:
    from nats.js import JetStreamContext

SERVERS = 3
START_S = 60.0
TRY_S, PAUSE_S = 2.0, 0.2
AT_A_TIME = 16
STREAMS_MAX = 256

_CONFIG = """server_name: {name}
listen: "{host}:{port}"
max_pending: 512MB  # of one connection: or a consumer of many streams is cut off as too slow
jetstream {{
  store_dir: "{data}"
  max_buffered_msgs: {buffered}  # per stream: what the client has in flight is the limit
{sync}}}
cluster {{
  name: bench
  listen: "{host}:{route_port}"
  routes: [{routes}]
}}
"""
_SYNC = {"sync": "  sync_interval: always\n", "async": ""}


def missing() -> str:
    """Return the programs and packages that this machine lacks to run NATS; empty when there are
    none."""
    absent = [] if binary() else ["nats-server"]
    try:
        import nats  # noqa: F401
    except ImportError:
        absent.append("nats-py")
    return f"{', '.join(absent)} (pip install -e '.[bench]')" if absent else ""


def binary() -> str | None:
    """The server: beside this interpreter, where its wheel puts it, or anywhere on the path."""
    return shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which(
        "nats-server"
    )


def stream_names(topic: str, partitions: int) -> list[str]:
    """The streams of a topic, by partition; the subject of each is its name."""
    return [f"{topic}-{partition}" for partition in range(partitions)]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: clients of NATS choose the subject themselves."""
    return zlib.crc32(key) % partitions


def config_texts(
    folder: Path, ports: Mapping[str, int], route_ports: Mapping[str, int], flush: str
) -> dict[str, str]:
    """Return the configuration of each server, by its name."""
    routes = ", ".join(f'"nats://{HOST}:{port}"' for port in route_ports.values())
    return {
        name: _CONFIG.format(
            name=name,
            host=HOST,
            port=port,
            route_port=route_ports[name],
            routes=routes,
            data=folder / f"data-{name}",
            buffered=IN_FLIGHT_BYTES // min(RECORD_BYTES),
            sync=_SYNC[flush],
        )
        for name, port in ports.items()
    }


class Nats:
    """The servers. Use as a context manager.

    When a record is flushed is a setting of the servers, so they start anew when a topic wants it
    otherwise than the one before.

    Args:
        folder: For data, logs and configuration; need not exist.
    """

    name = "nats"
    nodes = SERVERS
    warm_s = 3.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports: dict[str, int] = {}
        self._route_ports: dict[str, int] = {}
        self._processes = Processes(folder)
        self._flush = ""
        self._partitions: dict[str, int] = {}

    @property
    def bootstrap(self) -> str:
        """Addresses of all servers."""
        return ",".join(f"nats://{HOST}:{port}" for port in self._ports.values())

    @property
    def pids(self) -> dict[str, int]:
        """By name, of all servers."""
        return self._processes.pids

    def __enter__(self) -> Self:
        if absent := missing():
            raise Missing(absent)
        self._folder.mkdir(parents=True, exist_ok=True)
        names = [f"server-{number}" for number in range(1, SERVERS + 1)]
        free = free_ports(2 * SERVERS)
        self._ports = dict(zip(names, free[:SERVERS], strict=True))
        self._route_ports = dict(zip(names, free[SERVERS:], strict=True))
        try:
            self._start("sync")
        except BaseException:
            self._processes.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.stop()

    def lacks(self, case: Case) -> str:
        """See ``System``: its only acknowledgement is that of a majority."""
        if case.acks != "all":
            return f"acks={case.acks}"
        if case.partitions > STREAMS_MAX:
            return f"room for {case.partitions:,} streams: each has a Raft group of its own"
        return ""

    def create_topic(self, topic: str, partitions: int, rf: int, flush: str) -> None:
        """A stream per partition; ``flush`` is ``sync`` or ``async``."""
        if flush != self._flush:
            self._restart(flush)
        asyncio.run(self._create_streams(topic, partitions, rf))
        self._partitions[topic] = partitions

    def delete_topic(self, topic: str) -> None:
        """Its files are gone when this returns."""
        asyncio.run(self._delete_streams(topic, self._partitions.pop(topic)))

    def hold(self) -> bool:
        """See ``System``."""
        self._processes.hold()
        return True

    def go_on(self) -> None:
        """See ``System``: each stream has a leader again soon."""
        self._processes.go_on()
        asyncio.run(self._wait_until_up())

    def _restart(self, flush: str) -> None:
        if self._partitions:
            raise ValueError(f"these topics would change as well: {', '.join(self._partitions)}")
        self._processes.stop()
        self._start(flush)

    def _start(self, flush: str) -> None:
        texts = config_texts(self._folder, self._ports, self._route_ports, flush)
        for name, text in texts.items():
            config = self._folder / f"{name}.conf"
            config.write_text(text)
            self._processes.start(name, [str(binary()), "-c", str(config)])
        self._flush = flush
        asyncio.run(self._wait_until_up())

    async def _wait_until_up(self) -> None:
        """Until a stream can have as many replicas as there are servers."""
        from nats.errors import Error

        try:
            async with asyncio.timeout(START_S):
                while not self._processes.have_ended():
                    with contextlib.suppress(OSError, Error):
                        # A request that comes before there is a leader is not answered at all.
                        async with self._connected(TRY_S) as streams:
                            await streams.add_stream(
                                name="probe", subjects=["probe"], num_replicas=SERVERS
                            )
                            await streams.delete_stream("probe")
                            return
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            pass
        raise NotStarted(f"NATS did not start: {self._processes.complaint()}")

    async def _create_streams(self, topic: str, partitions: int, rf: int) -> None:
        at_a_time = asyncio.Semaphore(AT_A_TIME)
        async with self._connected() as streams:

            async def create(name: str) -> None:
                async with at_a_time:
                    await streams.add_stream(name=name, subjects=[name], num_replicas=rf)

            await asyncio.gather(*(create(name) for name in stream_names(topic, partitions)))

    async def _delete_streams(self, topic: str, partitions: int) -> None:
        async with self._connected() as streams:
            for name in stream_names(topic, partitions):
                await streams.delete_stream(name)

    @contextlib.asynccontextmanager
    async def _connected(self, timeout_s: float = START_S) -> "AsyncIterator[JetStreamContext]":
        import nats

        async def ignore(error: Exception) -> None:
            """Ignore the error: those that count are raised as well. By default each refused
            connection is logged."""

        connection = await nats.connect(
            self.bootstrap.split(","), allow_reconnect=False, error_cb=ignore
        )
        try:
            yield connection.jetstream(timeout=timeout_s)
        finally:
            await connection.close()
