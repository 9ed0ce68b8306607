"""Each offset of a partly tiered topic is read on exactly one side: objects or nodes."""

from hypothesis import given
from hypothesis import strategies as st

from icecore.client.types import PublishedCopy
from icecore.spark.plan import OffsetRange, Snapshot, ranges_within, spanned, within
from icecore.spark.tiered import bordered, by_files, divided, placed

TOPIC_ID = bytes(range(16))


def copy(partition: int, base: int, end: int, records: int | None = None) -> PublishedCopy:
    rows = end - base if records is None else records
    return PublishedCopy(base + 1, 0, base, 7, b"", partition, end, rows)


LENGTHS = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["here", "there", "rowless"])))


@given(st.lists(LENGTHS, min_size=1, max_size=3), st.data())
def test_each_offset_is_on_one_side(
    partitions: list[list[tuple[int, str]]], data: st.DataObject
) -> None:
    copies: list[PublishedCopy] = []
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number, segments in enumerate(partitions):
        at = 10
        for length, where in segments:
            if where != "here":
                copies.append(copy(number, at, at + length, length - (where == "rowless")))
            at += length
        bounds = st.integers(10, at)
        starts[number], ends[number] = sorted((data.draw(bounds), data.draw(bounds)))
    found = divided(TOPIC_ID, data.draw(st.permutations(copies)), starts, ends)
    taken = Snapshot("t", TOPIC_ID, spanned(found.rest))
    tasks = ranges_within(
        taken, within(taken, found.rest, starts, ends), data.draw(st.integers(0, 9))
    )
    by_key = {each.base_offset: each for each in copies}
    for number in starts:
        read = [n for one in tasks if one.partition == number for n in _offsets(one)]
        for file in found.files:
            if file.partition == number:
                read += _offsets(file)
                base = int(file.key.split("/")[2].split("-")[0])
                whole = (file.start_offset, file.end_offset) == (base, by_key[base].end_offset)
                assert file.is_whole == whole or len(partitions) > 1
        assert sorted(read) == list(range(starts[number], ends[number]))


def _offsets(one: object) -> list[int]:
    return list(range(one.start_offset, one.end_offset))  # type: ignore[attr-defined]


def test_copies_beyond_the_end_are_cut_and_of_other_partitions_left_out() -> None:
    """One was sealed and copied after the ends were asked for."""
    found = divided(TOPIC_ID, [copy(0, 0, 100), copy(0, 100, 200), copy(5, 0, 9)], {0: 0}, {0: 150})
    assert [(each.start_offset, each.end_offset, each.is_whole) for each in found.files] == [
        (0, 100, True),
        (100, 150, False),
    ]
    assert not found.rest


def test_two_copies_of_the_same_offsets_count_once() -> None:
    found = divided(TOPIC_ID, [copy(0, 0, 100), copy(0, 50, 120)], {0: 0}, {0: 130})
    assert [(each.start_offset, each.end_offset) for each in found.files] == [(0, 100), (100, 120)]
    assert found.rest == {0: [(120, 130)]}


def test_keys_are_those_of_nodes() -> None:
    (file,) = divided(TOPIC_ID, [copy(3, 40, 50)], {3: 0}, {3: 50}).files
    assert file.key == (
        "00010203-0405-0607-0809-0a0b0c0d0e0f/3/"
        "00000000000000000040-00000000000000000041-0-7.parquet"
    )


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1), min_size=1, max_size=3
    ),
    st.integers(0, 9),
    st.integers(1, 30),
)
def test_each_task_reads_in_one_place(
    partitions: list[list[tuple[int, bool]]], least: int, largest: int
) -> None:
    """Records that have objects are read from them alone, and nothing is read twice."""
    copies: list[PublishedCopy] = []
    ends: dict[int, int] = {}
    for number, segments in enumerate(partitions):
        at = 0
        for length, has_rows in segments:
            if has_rows:
                copies.append(copy(number, at, at + length))
            at += length
        ends[number] = at
    starts = dict.fromkeys(ends, 0)
    files = divided(TOPIC_ID, copies, starts, ends).files
    whole = Snapshot("t", TOPIC_ID, spanned({p: [(0, end)] for p, end in ends.items()}))
    bare = ranges_within(whole, within(whole, None, starts, ends), least)
    assert [each for each, found in placed(bare, ()) if found] == []
    cut = bordered(whole, files)
    tasks = list(placed(ranges_within(cut, within(cut, None, starts, ends), least, largest), files))
    read = [(one.partition, n) for one, _ in tasks for n in _offsets(one)]
    assert read == [(number, n) for number, end in ends.items() for n in range(end)]
    stored = {
        (each.partition, n) for each in copies for n in range(each.base_offset, each.end_offset)
    }
    for one, found in tasks:
        by_file = [(each.partition, n) for each in found for n in _offsets(each)]
        mine = [(one.partition, n) for n in _offsets(one)]
        assert by_file == (mine if stored.issuperset(mine) else [])
        assert not found or len(one) <= 1.5 * largest, "a cut moves to the border of a file near"
        assert stored.isdisjoint(mine) or found, "one of both, as ranges end where files do"


def test_a_range_that_goes_beyond_its_files_is_read_through_nodes() -> None:
    files = divided(TOPIC_ID, [copy(0, 0, 10), copy(0, 20, 30)], {0: 0}, {0: 30}).files
    planned = [OffsetRange(0, 0, 15), OffsetRange(0, 15, 30), OffsetRange(0, 21, 29)]
    assert [len(found) for _, found in placed(planned, files)] == [0, 0, 1]


def test_who_asks_for_keys_asks_nodes_unless_files_are_demanded() -> None:
    assert by_files("files-or-nodes", (), ())
    assert not by_files("files-or-nodes", (b"k",), ())
    assert not by_files("files-or-nodes", (), ("tag",))
    assert by_files("files", (b"k",), ("tag",))
    assert not by_files("nodes", (), ())
