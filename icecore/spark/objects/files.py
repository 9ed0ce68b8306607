"""Reads tiered records in a Python process of Spark: whole row groups of Parquet objects, in order.

A row group is found by counting rows, because each row has the next offset. Checksums of pages are
compared. A read runs ahead of Spark in a thread, and asks for some MiB of the wanted columns at
once.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icecore.errors import ConfigurationError, StorageError
from icecore.spark.objects.store import SparkStore
from icecore.spark.reading import BATCH_ROWS
from icecore.spark.tiered import TieredFile

TAIL_BYTES: Final = 64 << 10
"""So much of an object the library reads to find its footer."""
UNIT_BYTES: Final = 16 << 20
"""Decoded columns of the row groups that are asked for at once."""


class FileRows(NamedTuple):
    """Rows of an object, and the offset that follows them."""

    rows: pa.RecordBatch
    next_offset: int


class Unit(NamedTuple):
    """Neighbouring row groups that are read at once, and the offset of their first row."""

    row_groups: tuple[int, ...]
    base_offset: int


def units(
    file: TieredFile, groups: Sequence[tuple[int, int]], limit_bytes: int = UNIT_BYTES
) -> list[Unit]:
    """Choose the row groups with wanted rows, and those that are read together.

    Args:
        file: The object, and what is wanted of it.
        groups: Of each row group: its rows, and the bytes of the wanted columns.
        limit_bytes: Of one unit; one row group may be larger.
    """
    found: list[Unit] = []
    at, size_bytes = file.base_offset, 0
    for number, (rows, group_bytes) in enumerate(groups):
        if at < file.end_offset and at + rows > file.start_offset:
            size_bytes += group_bytes
            if not found or size_bytes > limit_bytes:
                found.append(Unit((number,), at))
                size_bytes = group_bytes
            else:
                found[-1] = Unit((*found[-1].row_groups, number), found[-1].base_offset)
        at += rows
    return found


def read_files(
    url: str,
    files: Sequence[TieredFile],
    names: Sequence[str],
    keys: Sequence[bytes] = (),
    tags: Sequence[str] = (),
) -> Iterator[FileRows]:
    """The wanted rows of these objects, in their order.

    Args:
        url: Prefix of their keys, as Spark names it.
        files: Which.
        names: Columns.
        keys: Only rows with one of these keys, if there are any.
        tags: Only rows with one of these tags, if there are any.

    Raises:
        FileNotFoundError: An object is gone.
        ConfigurationError: The store refuses.
        StorageError: An object is damaged.
    """
    store = SparkStore(url)
    asked = [*names, *(["key"] if keys else ()), *(["tags"] if tags else ())]
    pool = ThreadPoolExecutor(1, "icecore-files")
    rows = (each for file in files for each in _read(store, file, [*dict.fromkeys(asked)]))
    try:
        pending = pool.submit(next, rows, None)
        while (found := pending.result()) is not None:
            pending = pool.submit(next, rows, None)
            yield found if not keys and not tags else _filtered(found, names, keys, tags)
    finally:
        pool.shutdown(cancel_futures=True)


def _filtered(
    found: FileRows, names: Sequence[str], keys: Sequence[bytes], tags: Sequence[str]
) -> FileRows:
    import pyarrow.compute as pc

    rows = found.rows
    if keys:
        rows = rows.filter(pc.is_in(rows.column("key"), value_set=pa.array(keys, pa.binary())))
    if tags:
        lists = rows.column("tags")
        hits = pc.is_in(lists.flatten(), value_set=pa.array(tags, pa.string()))
        chosen = pc.list_parent_indices(lists).filter(hits).unique()
        rows = rows.take(chosen)
    return FileRows(rows.select(list(names)), found.next_offset)


def _read(store: SparkStore, file: TieredFile, names: Sequence[str]) -> Iterator[FileRows]:
    with store.open(file.key) as opened:
        parquet = _footer(store, file, opened)
        groups = _groups(parquet.metadata, names)
        for unit in units(file, groups):
            _check_place(file, parquet.metadata, unit)
            at = unit.base_offset
            try:
                for rows in parquet.iter_batches(
                    BATCH_ROWS, row_groups=unit.row_groups, columns=list(names), use_threads=False
                ):
                    start, at = at, at + rows.num_rows
                    low, high = max(start, file.start_offset), min(at, file.end_offset)
                    if low < high:
                        yield FileRows(rows.slice(low - start, high - low), high)
            except (OSError, pa.ArrowException) as error:
                part = _extent(parquet.metadata, unit)
                raise _blamed(store, file, part, error) from error


def _footer(store: SparkStore, file: TieredFile, opened: pa.NativeFile) -> Any:
    """The object's metadata; those of an object that has other rows are refused."""
    if not opened.size():
        raise _damaged(file, "it is empty")
    try:
        parquet = pq.ParquetFile(opened, pre_buffer=True, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise _blamed(store, file, (-TAIL_BYTES, TAIL_BYTES), error) from error
    if parquet.metadata.num_rows != file.rows:
        raise _damaged(file, f"it has {parquet.metadata.num_rows} rows instead of {file.rows}")
    return parquet


def _groups(metadata: Any, names: Sequence[str]) -> list[tuple[int, int]]:
    """Rows of each row group, and bytes of these columns."""
    schema = metadata.schema
    wanted = [n for n in range(len(schema)) if schema.column(n).path.split(".")[0] in names]
    found: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size_bytes = sum(group.column(n).total_uncompressed_size for n in wanted)
        found.append((group.num_rows, size_bytes))
    return found


def _check_place(file: TieredFile, metadata: Any, unit: Unit) -> None:
    """Refuse an object of other offsets: rows are found by counting."""
    group = metadata.row_group(unit.row_groups[0])
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "offset":
            least = column.statistics.min if column.statistics else None
            if least not in (None, unit.base_offset):
                raise _damaged(file, f"it has offset {least} in place of {unit.base_offset}")


def _extent(metadata: Any, unit: Unit) -> tuple[int, int]:
    """Return the position of these row groups in the object, and their length, in bytes."""
    groups = [metadata.row_group(number) for number in unit.row_groups]
    columns = [each.column(number) for each in groups for number in range(each.num_columns)]
    starts = [each.dictionary_page_offset or each.data_page_offset for each in columns]
    return min(starts), sum(each.total_compressed_size for each in columns)


def _blamed(
    store: SparkStore, file: TieredFile, part: tuple[int, int], error: Exception
) -> Exception:
    """Tell an object that is damaged from a store that fails: can these of its bytes be had?"""
    try:
        with store.open(file.key) as again:
            start = max(0, part[0] if part[0] >= 0 else again.size() + part[0])
            again.seek(start)
            left = part[1]
            while left > 0 and (found := again.read(min(left, UNIT_BYTES))):
                left -= len(found)
    except FileNotFoundError as missing:
        return missing
    except ConfigurationError as refused:
        return refused
    except OSError as failure:
        return store.refused(failure)
    return _damaged(file, " ".join(str(error).split()))


def _damaged(file: TieredFile, why: str) -> StorageError:
    return StorageError(
        f"the object {file.key} is damaged: {why}. Restore it from a version that the store keeps; "
        "`icecore tier verify` names all that is damaged. With tiered=nodes a node that has the "
        "segment serves it"
    )
