"""What sealed data costs who sends it and who gets it: fetched by a consumer, copied by a node.

    python -m benchmarks.sealed
    python -m benchmarks.sealed --mib 256 --rounds 5 --transport grpc

One node, one partition, records of 1 KiB in batches of 256 KiB, sealed; the node was started
again, so nothing is in its memory, and the page cache has all of it. The same bytes are read in
turns of four: fetched and copied, with the CRCs of bodies left to the reader (``left``, as
consumers and nodes ask for it) or checked by the node as well (``checked``, as all others get it).
A fetch is a consumer that takes Arrow batches; a copy is the receiving side of a copy without its
disk: it asks and checks. CPU seconds per GiB of the node and of this process, medians of the
rounds. stdout gets one JSON line; ``ratios`` are left / checked.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.lifetime import exit_with
from benchmarks.machine import cost_of, warm_memory
from icecore import Admin, Consumer, Producer
from icecore.client.connection import Connection
from icecore.client.metadata import Metadata
from icecore.client.reader import Reader
from icecore.codec import batch
from icecore.dev import LocalCluster
from icecore.model import Segment, SegmentState
from icecore.process.system import tune_process
from icecore.rpc.addresses import Transport
from icecore_node.upkeep.donor import Donor

TOPIC = "sealed"
RECORD_BYTES, BATCH_BYTES = 1 << 10, 256 << 10
SEGMENT_BYTES = 64 << 20
GIB = 1 << 30


async def fill(bootstrap: str, length_bytes: int) -> list[Segment]:
    """Produce until so much is sealed; the sealed segments."""
    count = length_bytes // RECORD_BYTES
    async with Admin(bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=1, segment_bytes=SEGMENT_BYTES)
        async with Producer(bootstrap, batch_bytes=BATCH_BYTES) as producer:
            for start in range(0, count, 4096):
                values = [b"%08d" % (start + n) + bytes(RECORD_BYTES - 8) for n in range(4096)]
                await producer.send_batch(TOPIC, values, partition=0)
        await asyncio.sleep(1.0)  # a roll that is due
        found = await admin.list_segments(TOPIC)
    return [each for each in found if each.state is SegmentState.SEALED]


async def fetch(bootstrap: str, transport: Transport, segments: list[Segment]) -> None:
    """Take all of it as Arrow batches."""
    end_offset = segments[-1].end_offset
    async with Consumer(bootstrap, TOPIC, start="earliest", transport=transport) as consumer:
        async for rows in consumer.batches():
            if rows["offset"][len(rows) - 1].as_py() + 1 >= (end_offset or 0):
                return


async def copy(
    bootstrap: str, transport: Transport, segments: list[Segment], *, is_checked: bool
) -> None:
    """Ask for all of it as a copier does, and check it."""
    async with Connection(bootstrap, transport=transport) as connection:
        metadata = Metadata(connection)
        await metadata.topic(TOPIC, timeout_s=10)
        address = metadata.view.address(segments[0].replicas[0])
        assert address is not None
        for segment in segments:
            at, end_offset = segment.base_offset, segment.end_offset or 0
            donor = Donor(connection.net, address, metadata.view.cluster_id, segment, end_offset)
            while at < end_offset:
                donor._wants_check = is_checked
                data = await donor.next(at)
                for position, header in batch.iter_batches(data):
                    batch.verify_producer_crc(data, position, header)
                    at = header.end_offset
            donor.close()


async def measured(
    work: Callable[[], Awaitable[None]], pid: int, length_bytes: int
) -> dict[str, float]:
    """CPU seconds per GiB of both sides, and MB/s."""
    node_s, began_s, began = cost_of(pid).cpu_s, time.process_time(), time.perf_counter()
    await work()
    took_s = time.perf_counter() - began
    ours_s, node_s = time.process_time() - began_s, cost_of(pid).cpu_s - node_s
    per_gib = GIB / length_bytes
    mb_s = length_bytes / took_s / 1e6
    return {"sender": node_s * per_gib, "receiver": ours_s * per_gib, "mb_s": mb_s}


async def compare(
    cluster: LocalCluster, segments: list[Segment], rounds: int, transport: Transport
) -> dict[str, dict[str, float]]:
    """Medians by case. Of the first round of all nothing counts."""
    length_bytes = sum(each.length_bytes for each in segments)
    pid = cluster.pids["node-1"]
    ask_for_check = property(lambda _: True, lambda *_: None)
    leave_it = property(lambda _: False, lambda *_: None)
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds + 1):
        for is_checked in (True, False) if number % 2 else (False, True):
            how = "checked" if is_checked else "left"

            async def take(is_checked: bool = is_checked) -> None:
                Reader.wants_check = ask_for_check if is_checked else leave_it  # type: ignore[assignment]
                await fetch(cluster.bootstrap, transport, segments)

            async def ask(is_checked: bool = is_checked) -> None:
                await copy(cluster.bootstrap, transport, segments, is_checked=is_checked)

            for name, work in (("fetch", take), ("copy", ask)):
                found = await measured(work, pid, length_bytes)
                if number:
                    runs.setdefault(f"{name}_{how}", []).append(found)
    return {
        name: {each: round(statistics.median(run[each] for run in found), 3) for each in found[0]}
        for name, found in sorted(runs.items())
    }


def ratios(cases: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Left / checked."""
    return {
        name: {
            each: round(cases[f"{name}_left"][each] / cases[f"{name}_checked"][each], 2)
            for each in cases[f"{name}_left"]
        }
        for name in ("fetch", "copy")
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", choices=("auto", "grpc"), default="auto")
    given: Any = parser.parse_args()
    tune_process()
    warm_memory(64 << 20)
    settings = {"tail_cache_bytes": 1, "scrub_bytes_per_s": 0}
    with (
        tempfile.TemporaryDirectory(prefix="icecore-sealed-", dir=Path.cwd()) as folder,
        LocalCluster(Path(folder) / "c", nodes=1, node_settings=settings) as cluster,
    ):
        segments = asyncio.run(fill(cluster.bootstrap, given.mib << 20))
        cluster.stop_node(1)
        cluster.start_node(1)
        cases = asyncio.run(compare(cluster, segments, given.rounds, given.transport))
    sealed_mib = sum(each.length_bytes for each in segments) >> 20
    found = {"mib": sealed_mib, "cpu_s_per_gib": cases, "ratios": ratios(cases)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    exit_with(main)
