"""Stop nodes cleanly (SIGTERM) under load: producers must not notice.

Stalls are measured and printed. The bounds asserted are generous, because the machine may be shared
with anything; what is meant is 500 ms.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pytest

from icecore import Admin, Consumer, Producer
from icecore.client.produce.batches import SendHandle
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from tests.cluster.traffic import Log, create, leaders, read_all
from tests.support.clusters import Healed
from tests.support.forked import servers_are_executed

TOPIC = "t"
ACKS = ("all", "quorum", "leader")
PARTITIONS = 8
LOAD = 40
"""Records of each partition, at 50 a second, before and after a stop."""
PAUSE_S = 0.02
STALL_MS_MAX = 10_000.0
STOP_S_MAX = 25.0
WAIT_MS = 60_000
"""Length of all waits that a clean stop must not need. It is far above the bounds, which so tell a
needless wait from a slow machine."""

# Short waits would hide one in vain: they come from the environment, before the settings below.
pytestmark = pytest.mark.default_timing


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Healed]:
    """Three nodes on which waiting in vain takes a minute, and whose interpreters end cleanly."""
    healed = Healed(
        tmp_path_factory.mktemp("clean-stop"),
        node_settings={"leave_wait_ms": WAIT_MS, "replica_lag_ms_max": WAIT_MS},
        coordinator_settings={"lease_ms": WAIT_MS},
        stop_timeout_s=1.5 * WAIT_MS / 1000,
    )
    with servers_are_executed():
        yield healed
        healed.end()


@pytest.fixture
def cluster(patient: Healed) -> Iterator[LocalCluster]:
    yield patient.get()
    patient.heal()


class SteadyLoad:
    """A record per partition every 20 ms at ``acks``; runs while the context is entered."""

    def __init__(self, bootstrap: str, acks: str = "all", topic: str = TOPIC) -> None:
        self._topic = topic
        self._producer = Producer(bootstrap, acks=acks, linger_ms=0)  # type: ignore[arg-type]
        self._tasks: list[asyncio.Task[None]] = []
        self._notes: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.acked: Log = defaultdict(list)
        self.errors: list[IcecoreError] = []
        self.latencies_ms: list[float] = []
        self.gaps_ms: dict[int, float] = defaultdict(float)
        self._last_ack_s: dict[int, float] = {}

    async def __aenter__(self) -> Self:
        await self._producer.start()
        self._tasks = [asyncio.create_task(self._send(each)) for each in range(PARTITIONS)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.stop()
        await self._producer.close()

    async def stop(self) -> None:
        """Send no more; returns when every record has its outcome, ``acked`` by offset.

        Answers to two requests in flight may come in either order; offsets follow the sending."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*self._notes)
        for log in self.acked.values():
            log.sort()
            numbers = [int(value.split()[1]) for _, value in log]
            assert numbers == sorted(numbers)

    async def grow(self, records: int) -> None:
        """Wait for so many more acks of every partition."""
        wanted = {each: len(self.acked[each]) + records for each in range(PARTITIONS)}
        async with asyncio.timeout(60):
            while any(  # noqa: ASYNC110 - other processes decide
                len(self.acked[each]) < count for each, count in wanted.items()
            ):
                await asyncio.sleep(0.05)

    async def _send(self, partition: int) -> None:
        number = 0
        while not self._stopping:
            value = b"%d %d" % (partition, number)
            number += 1
            handle = await self._producer.send_wait(self._topic, value, partition=partition)
            note = asyncio.create_task(self._note(partition, value, handle, time.monotonic()))
            self._notes.add(note)
            note.add_done_callback(self._notes.discard)
            await asyncio.sleep(PAUSE_S)

    async def _note(self, partition: int, value: bytes, handle: SendHandle, sent_s: float) -> None:
        try:
            where = await handle
        except IcecoreError as error:
            self.errors.append(error)
            return
        now = time.monotonic()
        self.latencies_ms.append((now - sent_s) * 1000)
        gap_ms = (now - self._last_ack_s.get(partition, now)) * 1000
        self.gaps_ms[partition] = max(self.gaps_ms[partition], gap_ms)
        self._last_ack_s[partition] = now
        self.acked[partition].append((where.offset, value))

    def take_stall_ms(self) -> float:
        """The largest gap between two acks of a partition since the last call."""
        largest = max(self.gaps_ms.values(), default=0.0)
        self.gaps_ms.clear()
        return largest


async def stop_node(cluster: LocalCluster, node_id: int) -> float:
    """SIGTERM; it ends by itself. Returns how long that took, in seconds."""
    began = time.monotonic()
    await asyncio.to_thread(cluster.stop_node, node_id)
    process = cluster.node(node_id).process
    assert process is not None and process.returncode == 0, cluster.node(node_id).log_tail()
    return time.monotonic() - began


async def read_along(reader: Consumer, seen: Log) -> None:
    async for record in reader:
        assert record.value is not None
        seen[record.partition].append((record.offset, record.value))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what a task has read so far
            await asyncio.sleep(0.05)


async def busiest(cluster: LocalCluster, *topics: str) -> int:
    nodes = [node for topic in topics for node in await leaders(cluster.bootstrap, topic)]
    return max(set(nodes), key=nodes.count)


async def until_whole(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        for _ in range(300):
            described = await admin.describe_cluster()
            if not described.under_replicated and described.min_copies == 3:
                return
            await asyncio.sleep(0.2)
    raise AssertionError(described)


async def test_clean_stop_of_one_node_goes_unnoticed(cluster: LocalCluster) -> None:
    """Whatever producers wait for: each of them has a topic of its own, named like its acks."""
    async with contextlib.AsyncExitStack() as stack:
        loads = {}
        for acks in ACKS:
            await create(cluster.bootstrap, acks, partitions=PARTITIONS)
            load = SteadyLoad(cluster.bootstrap, acks, topic=acks)
            loads[acks] = await stack.enter_async_context(load)
        for load in loads.values():
            await load.grow(LOAD)
        before_ms = {acks: load.take_stall_ms() for acks, load in loads.items()}
        victim = await busiest(cluster, *ACKS)
        took_s = await stop_node(cluster, victim)
        for acks in ACKS:
            assert victim not in await leaders(cluster.bootstrap, acks)
        for load in loads.values():
            await load.grow(LOAD)
        stall_ms = {acks: load.take_stall_ms() for acks, load in loads.items()}
    print(f"{stall_ms=} {before_ms=} stop_s={took_s:.2f}")
    assert took_s < STOP_S_MAX
    for acks, load in loads.items():
        assert load.errors == []
        assert stall_ms[acks] < STALL_MS_MAX
        assert await read_all(cluster.bootstrap, acks) == load.acked


async def test_rolling_restart_under_load_goes_unnoticed(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=PARTITIONS, segment_bytes=64 << 10)
    async with SteadyLoad(cluster.bootstrap) as load, Consumer(cluster.bootstrap, TOPIC) as reader:
        seen: Log = defaultdict(list)
        reading = asyncio.create_task(read_along(reader, seen))
        await load.grow(LOAD)
        load.take_stall_ms()
        for node_id in cluster.addresses:
            took_s = await stop_node(cluster, node_id)
            stop_ms = load.take_stall_ms()
            await asyncio.to_thread(cluster.start_node, node_id)
            await load.grow(10)
            print(
                f"node={node_id} stop_s={took_s:.2f} stall_ms={stop_ms:.0f} "
                f"start_stall_ms={load.take_stall_ms():.0f}"
            )
        await until_whole(cluster)
        print(f"roll_up_stall_ms={load.take_stall_ms():.0f} records={len(load.latencies_ms)}")
        await load.stop()
        await until(lambda: reading.done() or seen == load.acked)
        assert not reading.done()
        reading.cancel()
    assert load.errors == []
    assert max(load.latencies_ms) < STALL_MS_MAX
    assert await read_all(cluster.bootstrap, TOPIC) == load.acked


async def test_nodes_without_records_hand_over_too(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=PARTITIONS)
    victim = await busiest(cluster, TOPIC)
    assert await stop_node(cluster, victim) < STOP_S_MAX
    nodes = await leaders(cluster.bootstrap, TOPIC)
    assert victim not in nodes and 0 not in nodes


async def test_stop_of_the_whole_cluster_waits_for_nobody(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=PARTITIONS)
    async with SteadyLoad(cluster.bootstrap) as load:
        await load.grow(10)
    began = time.monotonic()
    assert await asyncio.to_thread(cluster.stop) == []
    took_s = time.monotonic() - began
    print(f"stop_s={took_s:.2f}")
    assert took_s < STOP_S_MAX
    await asyncio.to_thread(cluster.start)
    assert await read_all(cluster.bootstrap, TOPIC) == load.acked


async def test_stop_without_a_coordinator_waits_for_nobody(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=PARTITIONS)
    cluster.kill_coordinator()
    assert await stop_node(cluster, 1) < STOP_S_MAX
