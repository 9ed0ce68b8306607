"""Rows of objects, found by counting; an object that is damaged is told apart from one that can't
be had."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.objects import store
from icecore.spark.objects.files import read_files, units
from icecore.spark.tiered import TieredFile

BASE, ROWS, GROUP = 100, 1_000, 64


def wanted(start: int, end: int) -> TieredFile:
    return TieredFile("topic/0/a.parquet", 0, start, end, BASE, ROWS)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=12),
    st.integers(1, 120),
    st.data(),
)
def test_units_have_what_is_wanted(
    groups: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    rows = sum(count for count, _ in groups)
    start = data.draw(st.integers(BASE, BASE + rows - 1))
    end = data.draw(st.integers(start + 1, BASE + rows))
    file = TieredFile("a", 0, start, end, BASE, rows)
    found = units(file, groups, limit)
    chosen = [number for unit in found for number in unit.row_groups]
    firsts = [BASE + sum(count for count, _ in groups[:number]) for number in range(len(groups))]
    ends = [first + count for first, (count, _) in zip(firsts, groups, strict=True)]
    assert chosen == [n for n in range(len(groups)) if firsts[n] < end and ends[n] > start]
    for unit in found:
        assert unit.base_offset == firsts[unit.row_groups[0]]
        size_bytes = sum(groups[number][1] for number in unit.row_groups)
        assert size_bytes <= limit or len(unit.row_groups) == 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix with one object; nothing is remembered of other tests."""
    monkeypatch.setattr(store, "_refused", {})
    numbers = range(BASE, BASE + ROWS)
    table = pa.table(
        {
            "offset": pa.array(numbers, pa.int64()),
            "key": pa.array([b"k%d" % (n % 10) for n in numbers], pa.binary()),
            "value": pa.array([b"%064d" % n for n in numbers], pa.binary()),
            "tags": pa.array([["a", "a"] if n % 3 == 0 else ["b"] for n in numbers]),
        }
    )
    path = tmp_path / "topic" / "0" / "a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(
        table,
        path,
        row_group_size=GROUP,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    return tmp_path


def offsets(
    folder: Path, file: TieredFile, **filters: Sequence[bytes] | Sequence[str]
) -> list[int]:
    found: list[int] = []
    at = file.start_offset
    for each in read_files(folder.as_uri(), [file], ["offset"], **filters):  # type: ignore[arg-type]
        assert each.rows.schema.names == ["offset"]
        assert at < each.next_offset <= file.end_offset
        at = each.next_offset
        found += each.rows.column("offset").to_pylist()
    assert at == file.end_offset
    return found


@pytest.mark.parametrize(("start", "end"), [(100, 1_100), (163, 165), (164, 228), (1_099, 1_100)])
def test_rows_are_found_by_counting(folder: Path, start: int, end: int) -> None:
    assert offsets(folder, wanted(start, end)) == list(range(start, end))


def test_only_rows_with_a_key_and_a_tag(folder: Path) -> None:
    found = offsets(folder, wanted(150, 900), keys=(b"k3", b"k6"), tags=("a", "c"))
    assert found == [n for n in range(150, 900) if n % 10 in (3, 6) and n % 3 == 0]
    assert offsets(folder, wanted(150, 160), tags=("c",)) == []


def altered(path: Path) -> None:
    whole = path.read_bytes()
    at = whole.index(b"%064d" % 700)
    path.write_bytes(whole[: at + 40] + b"7" + whole[at + 41 :])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def other_rows(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def other_offsets(path: Path) -> None:
    table = pq.read_table(path)
    later = pa.array(range(BASE + 7, BASE + 7 + ROWS), pa.int64())
    pq.write_table(table.set_column(0, "offset", later), path)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (altered, "CRC"),
        (cut, "damaged"),
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b"text"), "damaged"),
        (other_rows, "999 rows instead of 1000"),
        (other_offsets, "offset 107 in place of 100"),
    ],
)
def test_damage_is_an_error_that_names_the_object(
    folder: Path, damage: Callable[[Path], object], why: str
) -> None:
    damage(folder / "topic/0/a.parquet")
    with pytest.raises(StorageError, match=why) as raised:
        list(read_files(folder.as_uri(), [wanted(100, 1_100)], ["value"]))
    assert "topic/0/a.parquet" in raised.value.message
    assert "icecore tier verify" in raised.value.message


def test_rows_before_the_damage_come(folder: Path) -> None:
    """Those of earlier units: whoever goes on elsewhere knows where."""
    altered(folder / "topic/0/a.parquet")
    assert offsets(folder, wanted(100, 164)) == list(range(100, 164))


def test_an_object_that_is_gone_is_no_damage(folder: Path) -> None:
    (folder / "topic/0/a.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        list(read_files(folder.as_uri(), [wanted(100, 1_100)], ["value"]))


def test_a_store_that_nobody_can_open_says_what_to_type(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="ftp://") as raised:
        list(read_files("ftp://somewhere", [wanted(100, 101)], ["value"]))
    assert "tiered=nodes" in raised.value.message
