"""Measures an upload as a node does it, from a sealed replica on disk to a proved copy. Also
measures the merging of many such copies into one.

``python -m benchmarks.tier_uploads [--mib 64] [--format parquet] [--merge N] [--s3]``: one line of
JSON; with ``--merge`` of the merger of ``N`` segments that have that much together. The order
goes through the node's handler: batches are read from a replica (on a simulated disk, which is
memory) with CRCs and full digest checked, encoded, put with the index, read back and proved. MiB
are those of payloads before compression; CPU is that of this process, all threads.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.tiering import segment_of
from icecore.model import Segment, SegmentId
from icecore.topic_settings import TIER_FORMATS
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.opening import open_tier
from icecore_node.remote.store.obstore_store import StoreSettings
from tests.support.minio import running_minio
from tests.support.s3 import BUCKET, PASSWORD, REGION, USER
from tests.support.upload_setup import SEGMENT, BucketMemo, UploadNode


async def measure(settings: StoreSettings, mib: int, format_: str) -> dict[str, Any]:
    """One upload."""
    executor = ThreadExecutor(reader_threads=4)
    node = UploadNode(open_tier(settings, executor, BucketMemo()))
    node.run_on(executor)
    await node.ready()
    segment = sealed(node, SEGMENT, mib)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = await node.upload(segment, 1, format_)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert not result.error.reason, result.error
    executor.close()
    return {
        "format": format_,
        "mib": mib,
        "stored_mib": round(result.copy.length_bytes / (1 << 20), 1),
        "segment_mib": round(segment.length_bytes / (1 << 20), 1),
        "mib_s": round(mib / wall_s, 1),
        "cpu_s_per_gib": round(cpu_s * 1024 / mib, 2),
    }


def sealed(node: UploadNode, segment_id: SegmentId, mib: int) -> Segment:
    """A segment with its index."""
    _, runs = segment_of(mib)
    node.begin(segment_id)
    for run in runs:
        node.append(segment_id, [], raw=run)
    node.seal(segment_id)
    while node.store.index.maintain():
        pass
    return node.segment(segment_id)


async def measure_merge(settings: StoreSettings, mib: int, count: int) -> dict[str, Any]:
    """One merger of so many uploads."""
    executor = ThreadExecutor(reader_threads=4)
    node = UploadNode(open_tier(settings, executor, BucketMemo()))
    node.run_on(executor)
    await node.ready()
    sources = []
    for at in range(count):
        segment = sealed(node, SegmentId(SEGMENT + at), mib // count)
        result = await node.upload(segment, at + 1)
        assert not result.error.reason, result.error
        sources.append((segment, result.copy))
    merged = sources[-1][0].changed(
        segment_id=SegmentId(SEGMENT + count),
        base_offset=sources[0][0].base_offset,
        full_digest=b"",
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = await node.merge(merged, sources, count + 1)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert not result.error.reason, result.error
    executor.close()
    before = sum(copy.length_bytes for _, copy in sources)
    return {
        "sources": count,
        "mib": mib,
        "before_mib": round(before / (1 << 20), 1),
        "after_mib": round(result.copy.length_bytes / (1 << 20), 1),
        "mib_s": round(mib / wall_s, 1),
        "stored_mib_s": round(before / (1 << 20) / wall_s, 1),
        "cpu_s_per_gib": round(cpu_s * 1024 / mib, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--format", choices=TIER_FORMATS, default=TIER_FORMATS[0])
    parser.add_argument("--merge", type=int, default=0, metavar="N")
    parser.add_argument("--s3", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = StoreSettings(url=f"file://{folder}/tier")
        if given.s3:
            os.environ |= {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD}
            server = stack.enter_context(running_minio(folder))
            settings = StoreSettings(
                url=f"s3://{BUCKET}/bench", region=REGION, endpoint=server.endpoint
            )
        if given.merge:
            print(json.dumps(asyncio.run(measure_merge(settings, given.mib, given.merge))))
        else:
            print(json.dumps(asyncio.run(measure(settings, given.mib, given.format))))


if __name__ == "__main__":
    main()
