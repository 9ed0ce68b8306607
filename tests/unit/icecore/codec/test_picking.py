"""One record out of a batch is the one that all of them hold, and one selection decides alike."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import batch, record
from icecore.codec.batch import Codec, Compacted
from icecore.codec.columns import BatchColumns, Record
from icecore.codec.decoding import decode_index
from icecore.codec.hashes import header_hash, key_hash, tag_hash
from icecore.codec.picking import BatchPicks, ColumnPicks, key_hashes_of
from icecore.codec.selection import Selection
from icecore.errors import CorruptBatchError
from tests.support import rotation

KEYS = (None, b"", b"a", b"\xff\xfe")
TAGS = ("", "x", "ü" * 40)
HEADERS = (("h", b"1"), ("h", None), ("ü", b""))
RECORDS = st.lists(
    st.builds(
        Record,
        value=st.sampled_from((None, b"", b"value")),
        key=st.sampled_from(KEYS),
        timestamp_ms=st.integers(-5, 5),
        tags=st.lists(st.sampled_from(TAGS), max_size=3).map(tuple),
        headers=st.lists(st.sampled_from(HEADERS), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=20,
)
SELECTIONS = st.builds(
    Selection,
    keys=st.frozensets(st.sampled_from(KEYS[1:]), max_size=2),
    tags_any=st.frozensets(st.sampled_from(TAGS), max_size=2),
    tags_all=st.frozensets(st.sampled_from(TAGS), max_size=2),
    tags_none=st.frozensets(st.sampled_from(TAGS), max_size=2),
    headers=st.frozensets(st.sampled_from((("h", b"1"), ("ü", b""), ("no", b""))), max_size=2),
    from_timestamp_ms=st.one_of(st.none(), st.integers(-5, 0)),
    to_timestamp_ms=st.one_of(st.none(), st.integers(1, 5)),
)


def stored(records: list[Record], codec: Codec, *, is_compacted: bool) -> bytes:
    """As a leader, or a compaction, stamps it at offset 100."""
    hashes = [[number] * (number % 3) for number in range(len(records))]
    raw = record.encode_columns(
        values=[each.value for each in records],
        keys=[each.key for each in records],
        timestamps_ms=[each.timestamp_ms for each in records],
        tags=[each.tags for each in records],
        headers=[each.headers for each in records],
        header_hashes=hashes if any(each.headers for each in records) else None,
        codec=codec,
        offset_deltas=[3 * at for at in range(len(records))] if is_compacted else None,
    )
    header, _ = batch.stamp(
        raw,
        0,
        batch.parse_header(raw),
        segment_id=1,
        epoch=1,
        base_offset=100,
        append_timestamp_ms=7,
        high_watermark=0,
        prev_header_crc32c=0,
        compacted=Compacted(200) if is_compacted else None,
    )
    return header + raw[batch.HEADER_LENGTH :]


def columns_of(raw: bytes) -> BatchColumns:
    return record.decode(raw, 0, batch.parse_header(raw))


@given(RECORDS, st.sampled_from(Codec), st.booleans())
def test_one_record_is_what_all_records_are(
    records: list[Record], codec: Codec, is_compacted: bool
) -> None:
    raw = stored(records, codec, is_compacted=is_compacted)
    columns = columns_of(raw)
    every = columns.to_records()
    hashes = [[number] * (number % 3) for number in range(len(records))]
    picks = BatchPicks(b"before" + raw, 6, batch.parse_header(raw))
    for each in (picks, ColumnPicks(columns)):
        assert len(each) == len(records)
        assert each.records_at(range(len(columns))) == every
        assert each.columns_at(range(len(columns))).to_records() == every
        assert each.columns_at(range(0, len(columns), 2)).to_records() == every[::2]
        assert [each.offset_at(at) for at in range(len(columns))] == columns.offsets.tolist()
        got = [each.header_hashes_at(at) for at in range(len(columns))]
        assert got == (hashes if columns.index.header_hashes is not None else [[]] * len(every))
    picks = BatchPicks(raw, 0, batch.parse_header(raw))
    assert [picks.records_at([at])[0] for at in range(len(columns))] == every
    if columns.index.key_hashes is not None:
        found = key_hashes_of(raw, 0, batch.parse_header(raw))
        assert list(found) == columns.index.key_hashes.tolist()
    asked = np.arange(99, 205)
    assert picks.places_of(asked) == list(range(len(every)))


def mangled(raw: bytes, seed: int) -> bytes:
    """With bytes of the body changed, and checksums that are right again."""
    rng, copy = random.Random(seed), bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        copy[rng.randrange(batch.HEADER_LENGTH, len(copy))] = rng.choice([0, 1, 0x7F, 0xFF])
    batch.refresh_crcs(copy)
    return bytes(copy)


@settings(max_examples=rotation.examples(400))
@given(RECORDS, st.booleans(), st.integers(0, 1 << 20))
def test_nothing_outside_of_the_batch_is_ever_looked_at(
    records: list[Record], is_compacted: bool, seed: int
) -> None:
    """Wrong bytes under right checksums are refused, or read as something within the batch."""
    raw = mangled(stored(records, Codec.NONE, is_compacted=is_compacted), seed)
    header = batch.parse_header(raw)
    try:
        every: list[Record] | None = record.decode(raw, 0, header).to_records()
    except CorruptBatchError:
        every = None
    for at_once in (1, len(records)):
        places = range(len(records))
        try:
            picks = BatchPicks(raw, 0, header)
            got = [
                each
                for at in places[::at_once]
                for each in picks.records_at(places[at : at + at_once])
            ]
        except CorruptBatchError:
            assert every is None
            continue
        if every is not None:
            assert got == every
        for each in got:
            assert all(part in raw for part in (each.key or b"", each.value or b""))


@given(RECORDS, SELECTIONS)
def test_a_selection_decides_alike_of_records_batches_and_headers(
    records: list[Record], selection: Selection
) -> None:
    raw = stored(records, Codec.NONE, is_compacted=False)
    header, columns = batch.parse_header(raw), columns_of(raw)
    wanted = [selection.wants(each) for each in columns.to_records()]
    assert selection.matches(columns).tolist() == wanted
    may = selection.may_match(decode_index(raw, 0, header)).tolist()
    assert all(may[at] for at, is_wanted in enumerate(wanted) if is_wanted)
    if any(wanted):
        assert selection.may_be_in(header)


@given(RECORDS, SELECTIONS)
def test_who_is_wanted_has_a_hash_of_each_condition(
    records: list[Record], selection: Selection
) -> None:
    for each in filter(selection.wants, records):
        hashes = {tag_hash(tag.encode()) for tag in each.tags}
        hashes |= {header_hash(name, value) for name, value in each.headers if value is not None}
        hashes |= set() if each.key is None else {key_hash(each.key)}
        for group in selection.conditions(frozenset({"h", "ü", "no"})):
            assert not hashes.isdisjoint(group)


def test_headers_give_hashes_only_where_all_of_them_are_indexed() -> None:
    selection = Selection(headers=frozenset({("h", b"1"), ("i", b"1")}))
    assert selection.conditions(frozenset({"h"})) == ()
    assert len(selection.conditions(frozenset({"h", "i"}))[0]) == 2


@given(RECORDS, SELECTIONS)
def test_columns_decide_as_each_record_does(records: list[Record], selection: Selection) -> None:
    raw = stored(records, Codec.NONE, is_compacted=False)
    every = columns_of(raw).to_records()
    columns = BatchPicks(raw, 0, batch.parse_header(raw)).columns_at(range(len(every)))
    wanted = [at for at, each in enumerate(every) if selection.wants(each)]
    assert list(selection.places_in(columns)) == wanted
    assert list(selection.unwanted(every)) == [each for each in every if not selection.wants(each)]


def test_a_dictionary_with_many_tags_gives_those_that_are_used() -> None:
    records = [Record(b"", tags=(f"tag-{at}", "all")) for at in range(100)]
    raw = stored(records, Codec.NONE, is_compacted=False)
    columns = BatchPicks(raw, 0, batch.parse_header(raw)).columns_at([7, 90])
    assert sorted(columns.tag_names) == ["all", "tag-7", "tag-90"]
    assert [each.tags for each in columns.to_records()] == [("tag-7", "all"), ("tag-90", "all")]
