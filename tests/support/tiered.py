"""A sealed segment in batches, and a tiered copy of it in a store: for tests of tiering."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from icecore.codec import batch, record
from icecore.codec.batch import Codec
from icecore.codec.columns import Record
from icecore.codec.decoding import decode
from icecore.errors import CorruptBatchError
from icecore.model import Epoch, Generation, SegmentId
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import Manifest, SegmentFacts, StoredObject
from icecore_node.remote.format.parquet_object import EncodedObject, ParquetEncoder, raw_batches
from icecore_node.remote.store.object_store import ObjectStore
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.support import poison

FACTS = SegmentFacts(
    cluster_id=bytes(range(16)),
    topic_id=bytes(range(100, 116)),
    topic="flights",
    partition=3,
    segment_id=SegmentId(77),
    generation=Generation(1),
    epoch=Epoch(5),
    base_offset=0,
    end_offset=0,
    seal_digest=b"s" * 32,
    full_digest=b"\x01" + b"f" * 32,
)


@dataclass
class Source:
    """A sealed segment: its batches, in runs, and its records."""

    facts: SegmentFacts
    runs: list[bytes]

    def records(self) -> list[Record]:
        """Return the records of all batches that can be decoded."""
        return records_of(self.runs)

    def encoder(self, **options: Any) -> ParquetEncoder:
        return ParquetEncoder(self.facts, **options)


def stamped(raw: bytes, base: int, append_timestamp_ms: int) -> bytes:
    """As it lies in the segment."""
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=FACTS.segment_id,
        epoch=FACTS.epoch,
        base_offset=base,
        append_timestamp_ms=append_timestamp_ms,
        high_watermark=0,
        prev_header_crc32c=0,
    )
    return header + raw[batch.HEADER_LENGTH :]


def source_of(raws: Sequence[bytes], base: int = 1000, batches_per_run: int = 3) -> Source:
    """A segment of these batches, one behind the other."""
    offset, found = base, list[bytes]()
    for at, raw in enumerate(raws):
        found.append(stamped(raw, offset, 1_700_000_000_000 + at // 2))
        offset = batch.parse_header(found[-1]).end_offset
    runs = [
        b"".join(found[at : at + batches_per_run]) for at in range(0, len(found), batches_per_run)
    ]
    return Source(replace(FACTS, base_offset=base, end_offset=offset), runs)


def flights(batches: int, count: int = 50, seed: int = 1, **options: Any) -> list[bytes]:
    """Batches with everything that a record may have."""
    rng = Random(seed)
    return [_flights(rng, count, at, **options) for at in range(batches)]


def _flights(rng: Random, count: int, at: int, **options: Any) -> bytes:
    def maybe(make: Callable[[], Any], otherwise: Any) -> list[Any]:
        return [make() if rng.random() < 0.8 else otherwise for _ in range(count)]

    return record.encode_columns(
        values=maybe(lambda: rng.randbytes(rng.randrange(200)), None),
        timestamps_ms=[rng.randrange(-(10**12), 10**12) for _ in range(count)],
        keys=maybe(lambda: b"N%d" % rng.randrange(30), None),
        tags=maybe(lambda: ("UA", f"gate {rng.randrange(5)}", "ü"), ()),
        headers=maybe(lambda: (("h", rng.randbytes(3)), ("", None), ("h", b"")), ()),
        codec=Codec(at % 3),
        schema_id=at // 3,
        **options,
    )


def plain(values: Sequence[bytes | None], **columns: Any) -> bytes:
    return record.encode_columns(values=values, timestamps_ms=[7] * len(values), **columns)


def undecodable() -> bytes:
    """A batch whose CRCs are right."""
    return poison.garbage(Codec.ZSTD)


def records_of(runs: Iterable[bytes]) -> list[Record]:
    """Return the records that can be decoded, in the order of the batches."""
    found: list[Record] = []
    for run in runs:
        for position, header in batch.iter_batches(run):
            try:
                found += decode(run, position, header).to_records()
            except CorruptBatchError:
                continue
    return found


@dataclass
class Tiered:
    """A tiered copy in a store that tests may damage."""

    source: Source
    bucket: SimBucket
    store: ObjectStore
    manifest: Manifest
    segment: CopyReader
    executor: ThreadExecutor


def encoded(source: Source, **options: Any) -> tuple[bytes, EncodedObject]:
    encoder = source.encoder(**options)
    data = b"".join(encoder.pieces(source.runs))
    return data, encoder.encoded()


def manifest_of(source: Source, made: EncodedObject, side: bytes, attempt: int = 4) -> Manifest:
    facts = source.facts
    side_object = StoredObject(
        key=facts.key(attempt, ".batches"),
        size_bytes=len(side),
        sha256=hashlib.sha256(side).digest(),
    )
    return Manifest(
        facts=facts,
        attempt=attempt,
        content_digest=made.content_digest,
        records=made.records,
        parquet=made.stored(facts.key(attempt)),
        footer_start=made.footer_start,
        footer_sha256=made.footer_sha256,
        row_groups=made.row_groups,
        side=side_object if side else None,
        raw_batches=made.raw_batches,
    )


@asynccontextmanager
async def tiered(source: Source, **options: Any) -> AsyncIterator[Tiered]:
    """The segment, put into a simulated store."""
    bucket, executor = SimBucket(), ThreadExecutor(reader_threads=2)
    store = SimObjectStore(bucket, None)
    data, made = await asyncio.to_thread(encoded, source, **options)
    side = b"".join(raw_batches(source.runs, made.raw_batches))
    manifest = manifest_of(source, made, side)
    await store.put_if_absent(manifest.parquet.key, data)
    if manifest.side is not None:
        await store.put_if_absent(manifest.side.key, side)
    yield Tiered(source, bucket, store, manifest, CopyReader(store, manifest, executor), executor)
    executor.close()
