"""Measures tiering: a segment to Parquet, the proof of it, remote reads of single row groups.

``python -m benchmarks.tiering [--mib 64] [--group-mib 4] [--s3]``: one JSON line. Without ``--s3``
the store is a local folder; with it a MinIO that this program starts (``tests/support/minio.py``).
CPU is that of this process, all threads; a server's own is not in it.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from icecore.codec import batch, record
from icecore.codec.batch import Codec, iter_batches
from icecore.codec.decoding import decode
from icecore.model import Epoch, Generation, SegmentId
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.content_digest import ContentDigest
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import Manifest, SegmentFacts
from icecore_node.remote.format.parquet_object import ParquetEncoder
from icecore_node.remote.format.row_batches import batches_of
from icecore_node.remote.format.rows import rows_of
from icecore_node.remote.store.obstore_store import ObstoreStore, StoreSettings
from tests.support.minio import running_minio
from tests.support.s3 import BUCKET, PASSWORD, REGION, USER

BATCH_RECORDS = 1500
READS = 300
_AIRPORTS = [f"{a}{b}{c}" for a in "ABCDE" for b in "KLMNO" for c in "XYZ"]

FACTS = SegmentFacts(
    cluster_id=bytes(16),
    topic_id=bytes(range(16)),
    topic="flights",
    partition=0,
    segment_id=SegmentId(1),
    generation=Generation(0),
    epoch=Epoch(1),
    base_offset=0,
    end_offset=0,
    seal_digest=bytes(32),
    full_digest=b"",
)


def event(rng: Random, at: int) -> bytes:
    """About as long, and as compressible, as a departure in the demo."""
    return json.dumps(
        {
            "flight": rng.randrange(9000),
            "origin": rng.choice(_AIRPORTS),
            "dest": rng.choice(_AIRPORTS),
            "delay": rng.randrange(-20, 300),
            "air_time": rng.randrange(20, 700),
            "distance": rng.randrange(80, 5000),
            "tail": f"N{rng.randrange(4000):05d}",
            "at": 1_357_000_000 + at,
        }
    ).encode()


def segment_of(mib: int) -> tuple[SegmentFacts, list[bytes]]:
    """Batches as producers send them, LZ4, one run each."""
    rng, runs, size, offset = Random(1), list[bytes](), 0, 0
    while size < mib << 20:
        numbers = range(offset, offset + BATCH_RECORDS)
        raw = record.encode_columns(
            values=[event(rng, at) for at in numbers],
            timestamps_ms=[1_357_000_000_000 + 60 * at for at in numbers],
            keys=[b"N%05d" % rng.randrange(4000) for _ in numbers],
            tags=[(rng.choice(("UA", "AA", "DL")), rng.choice(("EWR", "JFK"))) for _ in numbers],
            codec=Codec.LZ4,
        )
        header = batch.parse_header(raw)
        stamped, _ = batch.stamp(
            raw,
            0,
            header,
            segment_id=FACTS.segment_id,
            epoch=FACTS.epoch,
            base_offset=offset,
            append_timestamp_ms=1_700_000_000_000 + len(runs),
            high_watermark=0,
            prev_header_crc32c=0,
        )
        runs.append(stamped + raw[batch.HEADER_LENGTH :])
        size += header.uncompressed_length + header.index_length
        offset += BATCH_RECORDS
    return replace(FACTS, end_offset=offset), runs


class Costs:
    """Figures by name."""

    def __init__(self, mib: float) -> None:
        self.figures: dict[str, float] = {}
        self._mib = mib

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """MiB/s of wall time, and CPU seconds per GiB, of what is done inside."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        self.figures[f"{name}_mib_s"] = round(self._mib / wall_s, 1)
        self.figures[f"{name}_cpu_s_per_gib"] = round(cpu_s * 1024 / self._mib, 2)

    def quantiles(self, name: str, seconds: Sequence[float]) -> None:
        """In milliseconds."""
        ordered = sorted(seconds)
        self.figures[f"{name}_p50_ms"] = round(1000 * statistics.median(ordered), 2)
        self.figures[f"{name}_p99_ms"] = round(1000 * ordered[int(len(ordered) * 0.99)], 2)


def digest_alone(runs: Sequence[bytes]) -> Callable[[], bytes]:
    """The digest over rows that are decoded already."""
    rows = [
        rows_of(header, decode(run, position, header), "flights", 0)
        for run in runs
        for position, header in iter_batches(run)
    ]

    def run() -> bytes:
        digest = ContentDigest()
        for each in rows:
            digest.update(each)
        return digest.digest()

    return run


async def measure(settings: StoreSettings, mib: int, group_mib: float) -> dict[str, Any]:
    """One segment, there and back."""
    facts, runs = segment_of(mib)
    executor = ThreadExecutor(reader_threads=2)
    store = ObstoreStore(settings, executor)
    costs = Costs(mib)
    digest = digest_alone(runs)
    with costs.of("digest"):
        digest()
    del digest
    encoder = ParquetEncoder(facts, row_group_bytes=int(group_mib * (1 << 20)))
    with costs.of("encode"):
        data = b"".join(encoder.pieces(runs))
    made = encoder.encoded()
    key = facts.key(1)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 1 << 20):
            yield data[at : at + (1 << 20)]

    with costs.of("put"):
        await store.put_stream(key, pieces())
    manifest = Manifest(
        facts=facts,
        attempt=1,
        content_digest=made.content_digest,
        records=made.records,
        parquet=made.stored(key),
        footer_start=made.footer_start,
        footer_sha256=made.footer_sha256,
        row_groups=made.row_groups,
    )
    segment = CopyReader(store, manifest, executor)
    with costs.of("verify"):
        await segment.verify()
    await remote_reads(store, segment, executor, costs)
    executor.close()
    stored = sum(map(len, runs)) / (1 << 20)
    return {
        "store": settings.url.partition(":")[0],
        "group_mib": group_mib,
        "mib": mib,
        "segment_mib": round(stored, 1),
        "object_mib": round(len(data) / (1 << 20), 1),
        "row_groups": len(made.row_groups),
        "row_group_kib": round(made.size_bytes / len(made.row_groups) / 1024),
        "footer_kib": round((made.size_bytes - made.footer_start) / 1024, 1),
        "manifest_kib": round(len(manifest.encode()) / 1024, 1),
        **costs.figures,
    }


async def remote_reads(
    store: ObstoreStore, segment: CopyReader, executor: ThreadExecutor, costs: Costs
) -> None:
    """Measure reads of single row groups: as bytes, as rows, and as batches that a fetch would
    answer."""
    rng, manifest = Random(2), segment.manifest
    bytes_s, rows_s, batches_s = list[float](), list[float](), list[float]()
    for _ in range(READS):
        group = rng.choice(manifest.row_groups)
        covered = (group.base_offset, group.end_offset)
        begin = time.perf_counter()
        await store.get_ranges(manifest.parquet.key, [(group.start, group.end)])
        bytes_s.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        table = await segment.rows(group)
        rows_s.append(time.perf_counter() - begin)
        await executor.run(lambda t, c: list(batches_of(t, manifest.facts, c)), table, covered)
        batches_s.append(time.perf_counter() - begin)
    costs.quantiles("read_bytes", bytes_s)
    costs.quantiles("read_rows", rows_s)
    costs.quantiles("read_batches", batches_s)


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--group-mib", type=float, default=4)
    parser.add_argument("--s3", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = StoreSettings(url=f"file://{folder}/store")
        if options.s3:
            os.environ |= {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD}
            endpoint = stack.enter_context(running_minio(folder / "minio")).endpoint
            settings = StoreSettings(url=f"s3://{BUCKET}/x", region=REGION, endpoint=endpoint)
        print(json.dumps(asyncio.run(measure(settings, options.mib, options.group_mib))))


if __name__ == "__main__":
    main()
