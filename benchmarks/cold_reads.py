"""Measures reads of segments that lie in object storage alone, as a node reads them.

    python -m benchmarks.cold_reads [--segments 100] [--mib 32] [--local]

A MinIO of its own (``tests/support/minio.py``), or with ``--local`` a folder. One large segment for
fetches of one batch and a scan, and many small ones, each with its index object, for look-ups of a
key. Nothing is cached when a figure called *cold* is taken; of *warm* look-ups manifests and
indexes are. Scans are held against reading the same objects with the same library and doing
nothing with them: row groups as they lie, which clients that decode Parquet are given, and the same
with their decoding into Arrow in this process, too; batches made of them, for all others; and a
copy in the segment's own format. One JSON line; CPU is that of this process.
"""

import argparse
import asyncio
import hashlib
import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.harness.figures import latency_ms
from benchmarks.tiering import segment_of
from icecore.codec import batch, row_group
from icecore.codec.arrow import TOPIC_COLUMNS
from icecore.codec.hashes import key_hash
from icecore.codec.index_entries import batch_entries
from icecore.codec.selection import Selection
from icecore.model import Segment, SegmentId, SegmentState
from icecore.process.system import SystemClock
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2, data_pb2
from icecore_node.context import Tasks
from icecore_node.io.executor import ThreadExecutor
from icecore_node.metrics import NodeMetrics
from icecore_node.remote.format.manifest import (
    Manifest,
    RawBatch,
    RowGroup,
    SegmentFacts,
    StoredObject,
)
from icecore_node.remote.format.parquet_object import ParquetEncoder, raw_batches
from icecore_node.remote.read.admission import Admission
from icecore_node.remote.read.cache import RemoteCache
from icecore_node.remote.read.descriptions import Descriptions
from icecore_node.remote.read.disk_cache import DiskCache
from icecore_node.remote.read.reading import RemoteParts, RemoteReading
from icecore_node.remote.read.remote_log import RemoteLog
from icecore_node.remote.read.tally import Tally
from icecore_node.remote.store.obstore_store import ObstoreStore, StoreSettings
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query.log_search import LogSearch
from icecore_node.serving.remote_segments import view_of_remote
from icecore_node.storage.files.file_system import OsFileSystem
from icecore_node.storage.index.entries import Entries, sorted_entries
from icecore_node.storage.segment_engine.sealed_index import (
    Points,
    SealedFacts,
    write_sealed_index,
)
from icecore_node.timing import NodeTiming
from tests.support.minio import running_minio
from tests.support.s3 import BUCKET, PASSWORD, REGION, USER

LARGE: Final = SegmentId(1)
AS_STORED: Final = SegmentId(1_000_000)
"""The same records in a copy in the segment's own format."""
FETCHES: Final = 100
LOOKS: Final = 15
SCANS: Final = 9
TOGETHER: Final = 16
"""Segments whose first steps a query makes at once."""


@dataclass
class World:
    """The stored segments, and their metadata."""

    store: ObstoreStore
    files: OsFileSystem
    manifests: dict[int, Manifest]

    async def describe(self, segment_id: SegmentId, _: int = 0) -> coordinator_pb2.DescribedCopy:
        """As the coordinator would."""
        manifest = self.manifests[segment_id]
        facts = manifest.facts
        segment = Segment(
            segment_id=facts.segment_id,
            topic_id=facts.topic_id,
            topic=facts.topic,
            partition=facts.partition,
            state=SegmentState.SEALED,
            epoch=facts.epoch,
            generation=facts.generation,
            base_offset=facts.base_offset,
            end_offset=facts.end_offset,
            is_tiered=True,
        )
        copy = coordinator_pb2.TierCopy(
            attempt=manifest.attempt, manifest_sha256=hashlib.sha256(manifest.encode()).digest()
        )
        return coordinator_pb2.DescribedCopy(segment=convert.segment_to_proto(segment), copy=copy)

    def reading(self, executor: ThreadExecutor, *, on_disk: bool = False) -> RemoteReading:
        """Return the cold reading of a node that has just started, with nothing in its caches."""
        clock = SystemClock()
        disk = DiskCache(self.files, 1 << 30) if on_disk else None
        return RemoteReading(
            RemoteParts(
                store=self.store,
                descriptions=Descriptions(self.describe, clock, NodeTiming()),
                cache=RemoteCache(disk, 64 << 20, executor),
                admission=Admission(clock),
                executor=executor,
                tasks=Tasks(_raise),
                metrics=NodeMetrics(),
            )
        )


def _raise(error: BaseException) -> None:
    raise error


# --- what is stored -------------------------------------------------------------------------------


def with_id(raw: bytes, segment_id: SegmentId) -> bytes:
    """A batch as another segment's leader would have stamped it."""
    header = batch.parse_header(raw)
    stamped, _ = batch.stamp(
        raw,
        0,
        header,
        segment_id=segment_id,
        epoch=header.epoch,
        base_offset=header.base_offset,
        append_timestamp_ms=header.append_timestamp_ms,
        high_watermark=0,
        prev_header_crc32c=0,
    )
    return stamped + raw[batch.HEADER_LENGTH :]


def index_of(files: OsFileSystem, facts: SegmentFacts, runs: list[bytes]) -> bytes:
    """The index file of a segment, which a node makes after the seal."""
    hashes, ordinals = list[bytes](), list[bytes]()
    for run in runs:
        for position, header in batch.iter_batches(run):
            body = position + batch.HEADER_LENGTH
            first = header.base_offset - facts.base_offset
            end = position + header.batch_length
            found = batch_entries(run[position:body], run[body:end], first)
            assert found is not None
            hashes.append(found.hashes)
            ordinals.append(found.ordinals)
    entries = sorted_entries(
        Entries(np.frombuffer(b"".join(hashes), "<u8"), np.frombuffer(b"".join(ordinals), "<u4"))
    )
    nothing = np.empty(0, np.int64)
    sealed = SealedFacts(
        cluster_id=facts.cluster_id,
        topic_id=facts.topic_id,
        partition=facts.partition,
        segment_id=facts.segment_id,
        generation=facts.generation,
        epoch=facts.epoch,
        base_offset=facts.base_offset,
        end_offset=facts.end_offset,
        seal_digest=facts.seal_digest,
        min_timestamp_ms=0,
        max_timestamp_ms=1,
    )
    name = f"{facts.segment_id}.idx"
    file = files.open(name, create=True)
    points = Points(nothing, nothing, nothing)
    write_sealed_index(file, sealed, [entries], len(entries.hashes), points, b"")
    data = file.pread(file.size(), 0)
    file.close()
    files.unlink(name)
    return data


async def upload(
    world: World, facts: SegmentFacts, runs: list[bytes], *, as_rows: bool = True
) -> None:
    """One copy."""
    encoder = ParquetEncoder(facts, as_rows=as_rows)
    data = b"".join(encoder.pieces(runs))
    made = encoder.encoded()
    index = index_of(world.files, facts, runs)
    side = b"".join(raw_batches(runs, made.raw_batches))

    def stored(suffix: str, content: bytes) -> StoredObject:
        sha256 = hashlib.sha256(content).digest()
        return StoredObject(key=facts.key(1, suffix), size_bytes=len(content), sha256=sha256)

    stored_index = stored(".idx", index)
    stored_side = stored(".batches", side) if side else None
    manifest = Manifest(
        facts=facts,
        attempt=1,
        content_digest=made.content_digest,
        records=made.records,
        parquet=made.stored(facts.key(1)),
        footer_start=made.footer_start,
        footer_sha256=made.footer_sha256,
        row_groups=made.row_groups,
        index=stored_index,
        side=stored_side,
        raw_batches=made.raw_batches,
    )
    objects = {manifest.parquet.key: data, stored_index.key: index}
    if stored_side is not None:
        objects[stored_side.key] = side
    for key, content in {**objects, manifest.key: manifest.encode()}.items():
        await world.store.put_if_absent(key, content)
    world.manifests[facts.segment_id] = manifest


async def fill(world: World, segments: int, mib: int) -> None:
    """The large segment, and small ones of a MiB before compression."""
    facts, runs = segment_of(mib)
    await upload(world, facts, runs)
    theirs = [with_id(each, AS_STORED) for each in runs]
    await upload(world, replace(facts, segment_id=AS_STORED), theirs, as_rows=False)
    _, small = segment_of(1)
    for number in range(segments):
        segment_id = SegmentId(LARGE + 1 + number)
        theirs = [with_id(each, segment_id) for each in small]
        end = batch.parse_header(theirs[-1]).end_offset
        await upload(world, replace(facts, segment_id=segment_id, end_offset=end), theirs)


# --- figures --------------------------------------------------------------------------------------


async def fetches(world: World, executor: ThreadExecutor) -> dict[str, float]:
    """One batch each, at offsets of row groups that are not in a cache; manifest and footer are."""
    rng, took_s = Random(2), list[float]()
    facts = world.manifests[LARGE].facts
    reading = world.reading(executor)
    for _ in range(FETCHES + 5):
        offset = rng.randrange(facts.end_offset)
        reading._parts.cache.forget(lambda key: isinstance(key, tuple) and len(key) == 3)
        began_s = time.perf_counter()
        await reading.read(LARGE, offset, 1)
        took_s.append(time.perf_counter() - began_s)
    return latency_ms(took_s[5:])


async def look_up(reading: RemoteReading, world: World, key: bytes) -> tuple[int, Tally]:
    """A key in all small segments, as a query does it; how many records, and what it took."""
    selection = Selection(keys=frozenset([key]))
    tally = Tally()
    tally.begin()

    async def search(segment_id: SegmentId) -> int:
        log: RemoteLog = await reading.open_log(segment_id)
        segment = await reading.describe(segment_id)
        view = view_of_remote(log, segment, log.quiet(selection))
        looking = LogSearch(view, selection, (segment.base_offset, segment.end_offset))
        found = 0
        while not looking.is_done:
            sink = await reading.step(log, looking.try_step, _sink)
            found += sink.count
        reading.close_log(log)
        return found

    numbers = [each for each in world.manifests if each not in (LARGE, AS_STORED)]
    found = 0
    for at in range(0, len(numbers), TOGETHER):
        found += sum(
            await asyncio.gather(*(search(SegmentId(n)) for n in numbers[at : at + TOGETHER]))
        )
    return found, tally


def _sink() -> PlainSink:
    return PlainSink(data_pb2.QueryPartitionResult(), 1000, 1 << 20, is_first=True)


async def look_ups(world: World, executor: ThreadExecutor) -> dict[str, Any]:
    """Measure look-ups of keys that no segment has, cold and then warm: the requests it takes to
    know that."""
    found: dict[str, Any] = {}
    for name in ("cold", "warm"):
        took_s, requests, length, cpu_s = list[float](), 0, 0, time.process_time()
        reading = world.reading(executor)
        if name == "warm":
            await look_up(reading, world, b"warm")
        for number in range(LOOKS):
            if name == "cold":
                reading = world.reading(executor)
            key = b"nobody %d" % number
            assert key_hash(key)
            began_s = time.perf_counter()
            count, tally = await look_up(reading, world, key)
            took_s.append(time.perf_counter() - began_s)
            assert count == 0
            requests, length = requests + tally.requests, length + tally.length_bytes
        found |= {f"lookup_{name}_{each}": value for each, value in latency_ms(took_s).items()}
        found[f"lookup_{name}_requests"] = round(requests / LOOKS, 1)
        found[f"lookup_{name}_bytes"] = round(length / LOOKS)
        found[f"lookup_{name}_cpu_ms"] = round((time.process_time() - cpu_s) * 1000 / LOOKS, 1)
    return found


async def scan(
    world: World,
    executor: ThreadExecutor,
    segment_id: SegmentId,
    name: str,
    *,
    as_row_groups: bool = False,
    decodes: bool = False,
) -> dict[str, float]:
    """All of a large segment in order, and the same objects raw, by turns; medians."""
    manifest = world.manifests[segment_id]
    side = manifest.side
    key = manifest.parquet.key if side is None else side.key
    size = manifest.parquet.size_bytes if side is None else side.size_bytes
    parts: list[RowGroup | RawBatch] = [*manifest.row_groups, *manifest.raw_batches]
    took_s, raw_s, used_s, length = list[float](), list[float](), list[float](), 0
    for _ in range(SCANS):
        reading = world.reading(executor)
        cpu_s, began_s = time.process_time(), time.perf_counter()
        offset = length = 0
        while offset < manifest.facts.end_offset:
            found, offset = await reading.read(
                segment_id, offset, 4 << 20, as_row_groups=as_row_groups
            )
            length += sum(map(len, found))
            if decodes:
                await executor.run(_decode, b"".join(found))
        took_s.append(time.perf_counter() - began_s)
        used_s.append(time.process_time() - cpu_s)
        began_s = time.perf_counter()
        for part in parts:
            await world.store.get_ranges(key, [(part.start, part.end)])
        raw_s.append(time.perf_counter() - began_s)
    took, raw = median(took_s), median(raw_s)
    return {
        f"{name}_object_mib_s": round(size / took / (1 << 20), 2),
        f"{name}_answer_mib_s": round(length / took / (1 << 20), 2),
        f"{name}_cpu_s": round(median(used_s), 3),
        f"{name}_raw_object_mib_s": round(size / raw / (1 << 20), 2),
        f"{name}_to_raw": round(raw / took, 3),
    }


def _decode(frames: bytes) -> None:
    """As a client in another process does."""
    for position, header in batch.iter_batches(frames):
        batch.verify_producer_crc(frames, position, header)
        row_group.decode(frames, position, header).record_batch("t", 0, TOPIC_COLUMNS)


async def measure(settings: StoreSettings, folder: Path, segments: int, mib: int) -> dict[str, Any]:
    """All figures."""
    executor = ThreadExecutor(reader_threads=2)
    (folder / "data").mkdir()
    world = World(ObstoreStore(settings, executor), OsFileSystem(folder / "data"), {})
    await fill(world, segments, mib)
    figures: dict[str, Any] = {"segments": segments, "mib": mib}
    figures |= {f"fetch_{each}": value for each, value in (await fetches(world, executor)).items()}
    figures |= await look_ups(world, executor)
    figures |= await scan(world, executor, LARGE, "scan", as_row_groups=True)
    figures |= await scan(world, executor, LARGE, "scan_decoded", as_row_groups=True, decodes=True)
    figures |= await scan(world, executor, LARGE, "scan_as_batches")
    figures |= await scan(world, executor, AS_STORED, "scan_as_stored")
    executor.close()
    world.files.close()
    return figures


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=100)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--local", action="store_true", help="a folder in the place of MinIO")
    parser.add_argument("--folder", type=Path, help="where data go for the moment")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        settings = StoreSettings(url=f"file://{folder}/store")
        if not options.local:
            os.environ |= {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD}
            endpoint = stack.enter_context(running_minio(folder / "minio")).endpoint
            settings = StoreSettings(url=f"s3://{BUCKET}/x", region=REGION, endpoint=endpoint)
        figures = asyncio.run(measure(settings, folder, options.segments, options.mib))
        print(json.dumps({"figures": figures}))


if __name__ == "__main__":
    main()
