"""Rows come back as batches that any consumer takes, with every record at its offset."""

import pyarrow as pa
import pytest

from icecore.codec.batch import Codec, LeaderFlag, iter_batches, verify_producer_crc
from icecore.codec.columns import Record
from icecore.codec.decoding import check_columns, decode
from icecore.codec.hashes import header_hashes
from icecore_node.remote.format import row_batches
from icecore_node.remote.format.row_batches import ROW_COLUMNS, batches_of
from tests.support.tiered import FACTS, Source, flights, plain, records_of, source_of, tiered


async def served(source: Source, **options: object) -> list[bytes]:
    """Return the batches of all row groups."""
    async with tiered(source, row_group_bytes=30_000) as it:
        found: list[bytes] = []
        for group in it.manifest.row_groups:
            table = await it.segment.rows(group, ROW_COLUMNS)
            assert set(table.column_names) == {*ROW_COLUMNS}
            covered = (group.base_offset, group.end_offset)
            found += batches_of(table, source.facts, covered, **options)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("codec", Codec)
async def test_every_record_comes_back(codec: Codec) -> None:
    source = source_of(flights(12))
    found = await served(source, codec=codec)
    assert records_of(found) == source.records()
    offset = source.facts.base_offset
    for raw in found:
        [(_, header)] = iter_batches(raw)
        verify_producer_crc(raw, 0, header)
        assert header.base_offset == offset
        assert header.leader_flags == LeaderFlag.COMPACTED
        assert (header.segment_id, header.epoch) == (FACTS.segment_id, FACTS.epoch)
        offset = header.end_offset
        check_columns(raw, 0, header)
    assert offset == source.facts.end_offset
    assert schemas_of(found) == schemas_of(source.runs)
    assert set(schemas_of(found)) == {0, 1, 2, 3}


def schemas_of(runs: list[bytes]) -> list[int]:
    """One per record."""
    headers = [header for run in runs for _, header in iter_batches(run)]
    return [each.schema_id for each in headers for _ in range(each.record_count)]


def iter_header(raw: bytes) -> object:
    return next(iter_batches(raw))[1]


async def test_indexed_headers_are_hashed_again() -> None:
    source = source_of(flights(4))
    found = await served(source, indexed_headers=["h"])
    for raw in found:
        [(_, header)] = iter_batches(raw)
        columns = decode(raw, 0, header)
        hashes = columns.index.header_hashes
        assert hashes is not None
        wanted = header_hashes(columns.header_tuples(), ["h"])
        assert hashes.split(hashes.items.tolist()) == [*map(tuple, wanted)]


async def test_batches_are_cut_by_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of([plain([b"x" * 400] * 100, keys=[b"k"] * 100)])
    monkeypatch.setattr(row_batches, "BATCH_BYTES", 4010)
    assert [iter_header(raw).record_count for raw in await served(source)] == [10] * 10  # type: ignore[attr-defined]
    monkeypatch.setattr(row_batches, "BATCH_RECORDS", 7)
    counts = [iter_header(raw).record_count for raw in await served(source)]  # type: ignore[attr-defined]
    assert counts == [7] * 14 + [2]
    monkeypatch.setattr(row_batches, "BATCH_BYTES", 1)
    assert len(await served(source)) == 100


async def test_gaps_of_compaction_are_covered() -> None:
    source = source_of(flights(2))
    async with tiered(source) as it:
        [group] = it.manifest.row_groups
        table = await it.segment.rows(group)
        kept = [at for at in range(table.num_rows) if at % 7 == 3]
        thin = table.take(pa.array(kept))
        found = [*batches_of(thin, source.facts, (group.base_offset, group.end_offset))]
    headers = [next(iter_batches(raw))[1] for raw in found]
    ends = [each.end_offset for each in headers]
    assert [each.base_offset for each in headers] == [group.base_offset, *ends[:-1]]
    assert ends[-1] == group.end_offset
    wanted: list[Record] = source.records()
    assert records_of(found) == [wanted[at] for at in kept]
