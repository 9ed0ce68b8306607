"""A tiered segment gives what was sealed, by ranged reads, and nothing else."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from icecore.codec.batch import iter_batches
from icecore.errors import OffsetOutOfRangeError
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format import parquet_object
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import RawBatch, TieredDamageError, parse_manifest
from icecore_node.remote.store.object_store import (
    ByteRange,
    ObjectMissingError,
    ObjectTooShortError,
)
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.support.tiered import Tiered, flights, source_of, tiered, undecodable

RAWS = [*flights(6), undecodable(), undecodable(), *flights(4, seed=2)]
SMALL = 20_000


class CountingStore(SimObjectStore):
    """Remembers what was asked for."""

    def __init__(self, bucket: SimBucket) -> None:
        super().__init__(bucket, None)
        self.asked: list[tuple[str, ByteRange]] = []

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        self.asked += [(key.rpartition(".")[2], each) for each in ranges]
        return await super().get_ranges(key, ranges)


async def test_every_offset_is_found_and_read() -> None:
    source = source_of(RAWS)
    records = {each.offset: each for each in source.records()}
    async with tiered(source, row_group_bytes=SMALL) as it:
        facts, seen = source.facts, 0
        while seen + facts.base_offset < facts.end_offset:
            part = it.segment.part_at(facts.base_offset + seen)
            assert part.base_offset == facts.base_offset + seen
            assert it.segment.part_at(part.end_offset - 1) == part
            seen = part.end_offset - facts.base_offset
            if isinstance(part, RawBatch):
                assert await it.segment.raw(part) in b"".join(source.runs)
                continue
            table = await it.segment.rows(part)
            values = table.column("value").to_pylist()
            for offset, value in zip(table.column("offset").to_pylist(), values, strict=True):
                assert records.pop(offset).value == value
    assert not records


async def test_offsets_of_others() -> None:
    async with tiered(source_of(RAWS)) as it:
        for offset in (-1, 0, 999, it.manifest.facts.end_offset):
            with pytest.raises(OffsetOutOfRangeError):
                it.segment.part_at(offset)


async def test_only_what_is_needed_is_read() -> None:
    executor = ThreadExecutor(reader_threads=1)
    async with tiered(source_of(RAWS), row_group_bytes=SMALL) as it:
        store = CountingStore(it.bucket)
        segment = CopyReader(store, it.manifest, executor)
        groups, manifest = it.manifest.row_groups, it.manifest
        await segment.rows(groups[2])
        await segment.rows(groups[1])
        await segment.raw(manifest.raw_batches[0])
        assert store.asked == [
            ("parquet", (manifest.footer_start, manifest.parquet.size_bytes)),
            ("parquet", (groups[2].start, groups[2].end)),
            ("parquet", (groups[1].start, groups[1].end)),
            ("batches", (manifest.raw_batches[0].start, manifest.raw_batches[0].end)),
        ]
    executor.close()


async def test_what_was_put_is_proved_with_every_byte_read() -> None:
    async with tiered(source_of(RAWS), row_group_bytes=SMALL) as it:
        proved = await it.segment.verify()
        manifest = it.manifest
        assert manifest.side is not None
        footer = manifest.parquet.size_bytes - manifest.footer_start
        size = manifest.parquet.size_bytes + manifest.side.size_bytes
        assert (proved.records, proved.length_bytes) == (500, size + footer)


@pytest.mark.parametrize("raws", [[], [undecodable()]])
async def test_segments_without_rows_are_proved(raws: list[bytes]) -> None:
    async with tiered(source_of(raws)) as it:
        assert (await it.segment.verify()).records == 0


async def test_no_altered_byte_is_served_or_passes() -> None:
    async with tiered(source_of(RAWS), row_group_bytes=SMALL) as it:
        keys = [it.manifest.parquet.key, it.manifest.side.key]  # type: ignore[union-attr]
        for key in keys:
            size = len(it.bucket.objects[key])
            for position in [*range(0, size, max(1, size // 40)), size - 1]:
                it.bucket.alter(key, position)
                with pytest.raises(TieredDamageError):
                    await _fresh(it).verify()
                await _served_or_refused(it, key, position)
                it.bucket.alter(key, position)
        await _fresh(it).verify()


def _fresh(it: Tiered) -> CopyReader:
    return CopyReader(it.store, it.manifest, it.executor)


async def _served_or_refused(it: Tiered, key: str, position: int) -> None:
    """A read of the damaged byte fails; a read elsewhere is right."""
    segment, manifest = _fresh(it), it.manifest
    is_side = key.endswith(".batches")
    for each in manifest.row_groups:
        is_hit = each.start <= position < each.end or position >= manifest.footer_start
        if is_hit and not is_side:
            with pytest.raises(TieredDamageError):
                await segment.rows(each)
        else:
            assert (await segment.rows(each)).num_rows == each.records
    for batch in manifest.raw_batches if is_side else ():
        if batch.start <= position < batch.end:
            with pytest.raises(TieredDamageError):
                await segment.raw(batch)


async def test_an_object_that_is_cut_or_gone() -> None:
    async with tiered(source_of(RAWS), row_group_bytes=SMALL) as it:
        key = it.manifest.parquet.key
        whole = it.bucket.objects[key]
        it.bucket.objects[key] = whole[:-1]
        with pytest.raises(TieredDamageError, match="bytes, not"):
            await it.segment.verify()
        with pytest.raises(ObjectTooShortError):
            await _fresh(it).rows(it.manifest.row_groups[0])
        it.bucket.objects[key] = whole + b"x"
        with pytest.raises(TieredDamageError, match="bytes, not"):
            await it.segment.verify()
        it.bucket.remove(key)
        with pytest.raises(ObjectMissingError):
            await it.segment.verify()


async def test_a_good_object_of_another_segment() -> None:
    async with tiered(source_of(flights(6))) as it, tiered(source_of(flights(6, seed=9))) as other:
        key = it.manifest.parquet.key
        it.bucket.objects[key] = other.bucket.objects[key]
        with pytest.raises(TieredDamageError):
            await it.segment.verify()


async def test_other_records_under_right_hashes() -> None:
    """The encoder has lost or changed records: only the content digest tells."""
    async with tiered(source_of(flights(6))) as it:
        sealed = replace(it.manifest, content_digest=b"\x01" + bytes(32))
        segment = CopyReader(it.store, sealed, it.executor)
        with pytest.raises(TieredDamageError, match="other records than were sealed"):
            await segment.verify()


async def test_a_stranger_s_file_under_right_hashes_is_no_crash() -> None:
    async with tiered(source_of(flights(6))) as it:
        key, [group] = it.manifest.parquet.key, it.manifest.row_groups
        whole = it.bucket.objects[key]
        junk = bytes(group.end - group.start)
        it.bucket.objects[key] = whole[: group.start] + junk + whole[group.end :]
        forged = replace(group, sha256=hashlib.sha256(junk).digest())
        manifest = replace(it.manifest, row_groups=(forged,))
        segment = CopyReader(it.store, manifest, it.executor)
        with pytest.raises(TieredDamageError):
            await segment.rows(forged)


async def test_a_copy_in_the_segment_s_own_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches as they lie, in parts that can be read alone, proved like rows are."""
    monkeypatch.setattr(parquet_object, "RAW_BYTES", SMALL)
    source = source_of(RAWS)
    async with tiered(source, as_rows=False) as it:
        facts, parts = it.manifest.facts, it.manifest.raw_batches
        segment = CopyReader(it.store, it.manifest, it.executor)
        assert parse_manifest(it.manifest.encode()) == it.manifest
        assert not it.manifest.row_groups and len(parts) > 3
        found, offset = b"", facts.base_offset
        while offset < facts.end_offset:
            part = segment.part_at(offset)
            assert isinstance(part, RawBatch)
            data = await segment.raw(part)
            headers = [header for _, header in iter_batches(data)]
            assert part.base_offset == headers[0].base_offset == offset
            assert part.max_append_timestamp_ms == headers[-1].append_timestamp_ms
            found, offset = found + data, part.end_offset
        assert found == b"".join(source.runs)
        assert (await segment.verify()).records == 0
        side = it.manifest.side
        assert side is not None
        it.bucket.alter(side.key, 7)
        with pytest.raises(TieredDamageError):
            await segment.verify()
