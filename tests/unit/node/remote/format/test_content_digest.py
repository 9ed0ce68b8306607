"""The content digest: golden bytes, an oracle over records, and rows in any pieces."""

import hashlib
import struct
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from icecore.codec.batch import iter_batches
from icecore.codec.columns import Record
from icecore.codec.decoding import decode
from icecore.errors import CorruptBatchError
from icecore_node.remote.format import content_digest
from icecore_node.remote.format.content_digest import ContentDigest, is_content_digest
from icecore_node.remote.format.rows import SCHEMA, rows_of
from tests.support.tiered import Source, flights, plain, source_of, undecodable

GOLDEN = Path(__file__).parent / "golden" / "content_digest.hex"


def rows(source: Source) -> pa.Table:
    parts = [
        rows_of(header, decode(run, position, header), "flights", 3)
        for run in source.runs
        for position, header in iter_batches(run)
    ]
    return pa.Table.from_batches(parts, SCHEMA)


def digest_of(table: pa.Table) -> bytes:
    digest = ContentDigest()
    for each in table.to_batches():
        digest.update(each)
    return digest.digest()


def oracle(records: list[Record], schema_ids: list[int], chunk_records: int) -> bytes:
    """As the format's description says it, a record at a time."""
    root = b"\x02" + struct.pack("<Q", len(records))
    for at in range(0, len(records), chunk_records):
        root += _chunk(records[at : at + chunk_records], schema_ids[at : at + chunk_records])
    root += struct.pack("<Q", 0) + hashlib.sha256().digest()
    return b"\x01" + hashlib.sha256(root).digest()


def _chunk(records: list[Record], schema_ids: list[int]) -> bytes:
    columns = [b""] * 16
    for each, schema_id in zip(records, schema_ids, strict=True):
        numbers = (each.offset, each.timestamp_ms, each.append_timestamp_ms, schema_id)
        for at, number in enumerate(numbers):
            columns[at] += struct.pack("<q", number)
        for at, value in ((4, each.key), (6, each.value)):
            columns[at] += struct.pack("<i", -1 if value is None else len(value))
            columns[at + 1] += value or b""
        columns[8] += struct.pack("<i", len(each.tags))
        for tag in each.tags:
            columns[9] += struct.pack("<i", len(tag.encode()))
            columns[10] += tag.encode()
        columns[11] += struct.pack("<i", len(each.headers))
        for name, content in each.headers:
            columns[12] += struct.pack("<i", len(name.encode()))
            columns[13] += name.encode()
            columns[14] += struct.pack("<i", -1 if content is None else len(content))
            columns[15] += content or b""
    hashes = b"".join(hashlib.sha256(each).digest() for each in columns)
    return hashlib.sha256(b"\x01" + struct.pack("<I", len(records)) + hashes).digest()


@pytest.mark.parametrize("batches", [0, 1, 7, 20])
@pytest.mark.parametrize("chunk_records", [64, 100, 1 << 16])
def test_it_is_what_the_description_says(
    monkeypatch: pytest.MonkeyPatch, batches: int, chunk_records: int
) -> None:
    monkeypatch.setattr(content_digest, "CHUNK_RECORDS", chunk_records)
    source = source_of(flights(batches))
    table = rows(source)
    schema_ids = table.column("schema_id").to_pylist()
    assert digest_of(table) == oracle(source.records(), schema_ids, chunk_records)


def test_golden() -> None:
    empty, some, mixed = GOLDEN.read_text().split()
    assert ContentDigest().digest().hex() == empty
    assert digest_of(rows(source_of(flights(3)))).hex() == some
    digest = ContentDigest()
    digest.update_undecodable(b"one batch")
    assert digest.digest().hex() == mixed
    assert all(is_content_digest(bytes.fromhex(each)) for each in (empty, some, mixed))


def test_pieces_do_not_matter() -> None:
    table = rows(source_of(flights(20)))
    whole = digest_of(table.combine_chunks())
    rng = Random(5)
    for _ in range(20):
        cuts = sorted({0, table.num_rows, *(rng.randrange(table.num_rows) for _ in range(6))})
        digest = ContentDigest()
        for start, end in pairwise(cuts):
            for each in table.slice(start, end - start).to_batches():
                digest.update(each)
        assert digest.digest() == whole


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (plain([b"a", b"b"]), plain([b"ab", b""])),
        (plain([b""]), plain([None])),
        (plain([b"x"], keys=[b"x"]), plain([b"x"])),
        (plain([b"x"], keys=[b""]), plain([b"x"])),
        (plain([b"x", b"x"], tags=[("a",), ()]), plain([b"x", b"x"], tags=[(), ("a",)])),
        (plain([b"x"], tags=[("ab",)]), plain([b"x"], tags=[("a", "b")])),
        (plain([b"x"], headers=[(("a", None),)]), plain([b"x"], headers=[(("a", b""),)])),
        (plain([b"x"], headers=[(("a", b"b"),)]), plain([b"x"], headers=[(("ab", b""),)])),
        (plain([b"x"], schema_id=1), plain([b"x"])),
    ],
)
def test_what_differs_has_another_digest(first: bytes, second: bytes) -> None:
    assert digest_of(rows(source_of([first]))) != digest_of(rows(source_of([second])))


def test_batches_without_rows_count_in_their_order() -> None:
    one, other = undecodable(), plain([b"x"])
    found = set()
    for order in ([one, other], [other, one], [one], []):
        digest = ContentDigest()
        for each in order:
            digest.update_undecodable(each)
        found.add(digest.digest())
    assert len(found) == 4


def test_what_is_no_row_is_refused() -> None:
    table = rows(source_of(flights(1)))
    times = pa.array([1_000_001] * table.num_rows, SCHEMA.field("timestamp").type)
    at = SCHEMA.get_field_index("timestamp")
    offsets = pa.array([None] * table.num_rows, pa.int64())
    for wrong in (
        table.set_column(at, SCHEMA.field(at), times),
        table.set_column(2, SCHEMA.field(2), offsets),
        table.drop_columns(["key"]),
    ):
        with pytest.raises(CorruptBatchError):
            digest_of(wrong)
