"""Sealed segments become a table that other programs read, in a local folder and in S3.

The way is the one of production: encode, put, prove what is stored, publish. What is read with no
process of ours must be the source's records, each once.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import RemoveAction

from icecore.codec.columns import Record
from icecore.errors import ConflictError, InvalidRequestError, ObjectStoreError
from icecore.tier_records import topic_folder
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format import topic_table
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import Manifest
from icecore_node.remote.format.parquet_object import raw_batches
from icecore_node.remote.format.rows import SCHEMA
from icecore_node.remote.format.table_file import TableFile, table_file
from icecore_node.remote.format.topic_table import TopicTable
from icecore_node.remote.store.object_store import (
    ObjectDeniedError,
    ObjectStore,
    ObjectStoreBusyError,
    ObjectStoreSetupError,
)
from icecore_node.remote.store.obstore_store import ObstoreStore, StoreSettings
from tests.conformance.topic_table_suite import OpenTable, TopicTableConformance, commit
from tests.simulation.object_store import SimBucket
from tests.simulation.topic_table import SimTopicTable
from tests.support.s3_servers import SERVERS
from tests.support.tiered import (
    FACTS,
    Source,
    encoded,
    flights,
    manifest_of,
    source_of,
    undecodable,
)

NOW_MS = 1_700_000_000_000
PARTITION = FACTS.partition
Row = tuple[int, bytes | None, bytes | None, tuple[str, ...]]


class TestDeltaInAFolder(TopicTableConformance):
    """The table of production."""

    @pytest.fixture
    def open_table(self, tmp_path: Path) -> OpenTable:
        settings = StoreSettings(url=f"file://{tmp_path}/tier")
        return lambda cluster_id, topic_id: TopicTable(settings, cluster_id, topic_id, "flights")

    @pytest.mark.parametrize("revision", [5, 6], ids=["told-again", "next"])
    def test_objects_of_other_programs_leave_it(
        self, open_table: OpenTable, tmp_path: Path, revision: int
    ) -> None:
        """One appended rows, and made one object of several."""
        table = open_table(FACTS.cluster_id, FACTS.topic_id)
        assert commit(table, 0, 5, ["0/a", "0/b"])
        assert commit(table, 12, 5, ["12/a"])
        found = DeltaTable(f"{tmp_path}/tier/{topic_folder(FACTS.topic_id)}")
        gone = RemoveAction("0/a", data_change=False, deletion_timestamp=NOW_MS, size=1000)
        found.create_write_transaction([gone], mode="append", schema=SCHEMA)
        made = encoded(source_of(flights(1)))[0]
        rows = pyarrow.parquet.read_table(pa.BufferReader(made))
        write_deltalake(found, rows, mode="append")
        assert len(table.files()) == 3
        assert not commit(table, 0, 4, [])  # a late order knows nothing of it
        assert commit(table, 0, revision, ["0/a", "0/b"])
        assert table.files() == ["0/a", "0/b", "12/a"]
        assert not commit(table, 0, revision, ["0/a", "0/b"])
        assert not commit(table, 12, 5, ["12/a"])

    def test_each_commit_is_durable_before_it_is_answered(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []
        monkeypatch.setattr(topic_table, "sync_path", lambda _, key: synced.append(key))
        monkeypatch.setattr(topic_table, "CHECKPOINT_COMMITS", 3)
        table = TopicTable(
            StoreSettings(url=f"file://{tmp_path}/tier"), FACTS.cluster_id, FACTS.topic_id, "t"
        )
        for revision in (1, 2, 3, 3):
            table.bring_to(0, revision, [], [], NOW_MS)
        names = [key.rpartition("/_delta_log/")[2] for key in synced]
        made, first, second, third = (f"{version:020d}.json" for version in range(4))
        checkpoint = f"{2:020d}.checkpoint.parquet"
        assert names[:5] == [made, first, checkpoint, second, "_last_checkpoint"]
        assert names[5:] == [third, "_last_checkpoint"], "nothing that was durable already"


class TestSimulated(TopicTableConformance):
    """The simulator's."""

    @pytest.fixture
    def open_table(self) -> OpenTable:
        bucket = SimBucket()
        return lambda cluster_id, topic_id: SimTopicTable(bucket, None, cluster_id, topic_id)


class Place:
    """A store with a table in it, and whoever tiers into them."""

    def __init__(self, settings: StoreSettings, executor: ThreadExecutor) -> None:
        self.settings = settings
        self.store: ObjectStore = ObstoreStore(settings, executor)
        self._executor = executor
        self.table = TopicTable(settings, FACTS.cluster_id, FACTS.topic_id, "flights")

    async def put(self, source: Source, attempt: int = 1) -> Manifest:
        """Everything of a segment but the metadata."""
        data, made = encoded(source, row_group_bytes=20_000)
        side = b"".join(raw_batches(source.runs, made.raw_batches))
        manifest = manifest_of(source, made, side, attempt)

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(data), 50_000):
                yield data[at : at + 50_000]

        await self.store.put_stream(manifest.parquet.key, pieces())
        if manifest.side is not None:
            await self.store.put_if_absent(manifest.side.key, side)
        await CopyReader(self.store, manifest, self._executor).verify()
        await self.store.put_if_absent(manifest.key, manifest.encode())
        return manifest

    def publish(self, manifests: Sequence[Manifest], revision: int) -> bool:
        files = [each for each in map(table_file, manifests) if each is not None]
        paths = [each.path for each in files]
        return self.table.bring_to(PARTITION, revision, paths, files, NOW_MS)


@pytest.fixture
async def place(store_settings: StoreSettings) -> AsyncIterator[Place]:
    executor = ThreadExecutor(reader_threads=2)
    yield Place(store_settings, executor)
    executor.close()


def segments(count: int) -> list[Source]:
    """One behind the other, with batches that nobody can decode between the others."""
    found: list[Source] = []
    base = 0
    for at in range(count):
        source = source_of([*flights(4, seed=at), undecodable(), *flights(2, seed=-at)], base)
        found.append(source)
        base = source.facts.end_offset
    return found


def rows_of(records: Sequence[Record]) -> list[Row]:
    return [(each.offset, each.key, each.value, each.tags) for each in records]


def source_rows(sources: Sequence[Source]) -> list[Row]:
    return sorted(row for each in sources for row in rows_of(each.records()))


_READ = """
import json, sys, polars
uri, options = json.loads(sys.argv[1])
rows = polars.read_delta(uri, storage_options=options).select("offset", "key", "value", "tags")
hexed = lambda value: None if value is None else value.hex()
print(json.dumps([(o, hexed(k), hexed(v), t) for o, k, v, t in rows.rows()]))
"""


def polars_rows(place: Place) -> list[Row]:
    """In a process of its own, as a stranger reads it."""
    settings = place.settings
    options = {**settings.options(), "allow_http": "true"} if settings.endpoint else {}
    uri = f"{settings.url}/{topic_folder(FACTS.topic_id)}"
    command = [sys.executable, "-c", _READ, json.dumps([uri, options])]
    out = subprocess.run(command, capture_output=True, timeout=60, check=True, env=os.environ)

    def value(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    rows = json.loads(out.stdout)
    return sorted((at, value(key), value(content), tuple(tags)) for at, key, content, tags in rows)


async def test_other_programs_read_what_is_published(place: Place) -> None:
    sources = segments(4)
    manifests = [await place.put(each) for each in sources]
    assert place.table.files() == []
    assert place.publish(manifests[:2], revision=1)
    assert polars_rows(place) == source_rows(sources[:2])
    assert place.publish(manifests, revision=2)
    assert polars_rows(place) == source_rows(sources)
    assert place.publish(manifests[1:], revision=3)
    assert polars_rows(place) == source_rows(sources[1:])
    paths = [each.parquet.key.partition("/")[2] for each in manifests[1:]]
    assert place.table.files() == sorted(paths)


async def test_calls_that_repeat_or_come_late_change_nothing(place: Place) -> None:
    manifests = [await place.put(each) for each in segments(3)]
    assert place.publish(manifests[:2], revision=5)
    assert not place.publish(manifests[:2], revision=5)
    assert not place.publish(manifests, revision=4)
    assert not place.publish([], revision=5)
    assert len(place.table.files()) == 2
    assert place.publish(manifests[:2], revision=7)  # nothing differs, and 6 is late from now on
    assert not place.publish(manifests, revision=6)
    assert len(place.table.files()) == 2


async def test_whoever_died_between_is_caught_up_with(place: Place) -> None:
    """Metadata went on three times and nobody told the table; another attempt replaced one."""
    first, second, third = segments(3)
    manifests = [await place.put(first), await place.put(second), await place.put(third)]
    assert place.publish(manifests[:1], revision=1)
    again = await place.put(second, attempt=2)
    assert place.publish([again, manifests[2]], revision=9)
    assert polars_rows(place) == source_rows([second, third])


async def test_two_at_once(place: Place) -> None:
    """Each revision by two callers, all partitions together: no hole, no duplicate."""
    source = segments(1)[0]
    manifest = await place.put(source)
    made = table_file(manifest)
    assert made is not None
    place.table.bring_to(9, 1, [], [], NOW_MS)

    def drive(partition: int) -> None:
        path = made.path.replace(f"{PARTITION}/", f"{partition}/", 1)
        for revision in (1, 2, 3):
            files = [replace(made, path=path)] if revision != 2 else []
            paths = [each.path for each in files]
            for _ in range(50):
                try:
                    place.table.bring_to(partition, revision, paths, files, NOW_MS)
                    break
                except ConflictError:
                    continue
            else:
                raise AssertionError("never came through")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(drive, [0, 0, 1, 1, 2, 2]))
    paths = [path.partition("/")[0] for path in place.table.files()]
    assert paths == ["0", "1", "2"]


async def test_a_table_of_somebody_else(place: Place) -> None:
    manifest = await place.put(segments(1)[0])
    place.publish([manifest], revision=1)
    other = TopicTable(place.settings, b"another cluster.", FACTS.topic_id, "flights")
    with pytest.raises(ObjectStoreError, match="is a table of"):
        other.bring_to(PARTITION, 2, [], [], NOW_MS)
    with pytest.raises(ObjectStoreError, match="is a table of"):
        other.files()
    assert len(place.table.files()) == 1
    recreated = TopicTable(place.settings, FACTS.cluster_id, bytes(16), "flights")
    assert recreated.files() == []


async def test_a_checkpoint_keeps_files_and_revisions(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_table, "CHECKPOINT_COMMITS", 3)
    with pytest.raises(ObjectStoreError, match="no table"):
        place.table.checkpoint()
    source = segments(1)[0]
    manifest = await place.put(source)
    for revision in range(1, 8):
        assert place.publish([manifest] if revision % 2 else [], revision)
    folder = f"{topic_folder(FACTS.topic_id)}/_delta_log"
    found = [each.key async for each in place.store.list(folder)]
    assert sum(key.endswith(".checkpoint.parquet") for key in found) >= 2
    place.table.checkpoint()
    assert not place.publish([], revision=6)
    assert polars_rows(place) == source_rows([source])


@pytest.mark.parametrize("s3_server", SERVERS, indirect=True)
async def test_a_store_that_is_away_or_refuses(
    s3: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(settings: StoreSettings) -> TopicTable:
        return TopicTable(settings, FACTS.cluster_id, FACTS.topic_id, "flights")

    with pytest.raises(ObjectStoreBusyError, match="endpoint"):
        table(replace(s3, endpoint="http://127.0.0.1:1")).bring_to(3, 1, [], [], NOW_MS)
    with pytest.raises(ObjectStoreSetupError, match="bucket does not exist"):
        table(replace(s3, url="s3://no-such-bucket/x")).bring_to(3, 1, [], [], NOW_MS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "somebody-else")
    with pytest.raises(ObjectDeniedError, match="credentials"):
        table(s3).bring_to(3, 1, [], [], NOW_MS)


def _file(path: str) -> TableFile:
    return TableFile(path, 1, 1, {}, {})


def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    settings = StoreSettings(url=f"file://{tmp_path}")
    table = TopicTable(settings, FACTS.cluster_id, FACTS.topic_id, "flights")
    with pytest.raises(InvalidRequestError, match="partition 3"):
        table.bring_to(3, 1, ["4/a.parquet"], [_file("4/a.parquet")], NOW_MS)
    with pytest.raises(InvalidRequestError, match="twice"):
        table.bring_to(3, 1, ["3/a", "3/a"], [_file("3/a")], NOW_MS)
    assert list(tmp_path.iterdir()) == []


async def test_duckdb_polars_and_pyarrow_agree(tmp_path: Path) -> None:
    executor = ThreadExecutor(reader_threads=2)
    place = Place(StoreSettings(url=f"file://{tmp_path}"), executor)
    sources = segments(3)
    place.publish([await place.put(each) for each in sources], revision=1)
    await place.put(source_of(flights(2), base=10**6))  # uploaded, and never published
    folder = tmp_path / topic_folder(FACTS.topic_id)
    (folder / str(PARTITION) / "strange.parquet").write_bytes(b"not ours")
    wanted = source_rows(sources)
    files = [str(folder / path) for path in place.table.files()]
    found = duckdb.sql(f'select "offset", key, value, tags from read_parquet({files})').fetchall()
    assert sorted((at, key, value, tuple(tags)) for at, key, value, tags in found) == wanted
    rows = pyarrow.dataset.dataset(files).to_table(columns=["offset", "key", "value", "tags"])
    assert sorted((*row.values(),)[:3] for row in rows.to_pylist()) == [row[:3] for row in wanted]
    table = polars.read_delta(str(folder))
    assert sorted(table.select("offset", "key", "value").rows()) == [row[:3] for row in wanted]
    # Readers that skip objects by their statistics lose nothing.
    some = wanted[len(wanted) // 2 :]
    scan = polars.scan_delta(str(folder)).filter(polars.col("offset") >= some[0][0])
    assert scan.select(polars.len()).collect().item() == len(some)
    executor.close()


def test_values_that_readers_skip_by() -> None:
    source = segments(1)[0]
    made = table_file(manifest_of(source, encoded(source)[1], b""))
    assert made is not None
    assert (made.lowest["offset"], made.highest["offset"]) == (0, 302)
    times = [each.timestamp_ms for each in source.records()]
    assert str(made.lowest["timestamp"]).startswith("19") and max(times) > 0
    assert str(made.lowest["timestamp"]).endswith("Z")
    empty = source_of([undecodable()])
    assert table_file(manifest_of(empty, encoded(empty)[1], b"")) is None
