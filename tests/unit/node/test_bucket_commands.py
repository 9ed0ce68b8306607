"""Commands on a bucket alone: proving it, planning a restore, taking it over, Hive's list."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deltalake import DeltaTable

from icecore.errors import ObjectStoreError
from icecore.model import OFFSETS_LEFT_OUT
from icecore_node import bucket_commands
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.manifest import Manifest
from icecore_node.remote.format.stored_settings import SettingsKeeper, StoredSettings, settings_key
from icecore_node.remote.format.topic_table import TopicTable, place_of
from icecore_node.remote.marker import MARKER_KEY, Marker
from icecore_node.remote.verify.bucket import EARLIER_PREFIX, TopicObjects
from icecore_node.remote.verify.table_look import removed_paths
from tests.support.tiered import FACTS, flights, undecodable
from tests.support.tiered_folder import TieredFolder

TOPIC = str(UUID(bytes=FACTS.topic_id))
NEW_CLUSTER = b"n" * 16


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[TieredFolder]:
    executor = ThreadExecutor(reader_threads=2)
    made = TieredFolder(tmp_path / "bucket", executor)
    await made.mark()
    yield made
    executor.close()


def marker_of(cluster_id: bytes) -> bytes:
    """Return the marker of that cluster; the store is the same for all of them."""
    return Marker(cluster_id.hex(), "5" * 32).encode()


async def two(bucket: TieredFolder) -> list[Manifest]:
    """Neighbours, published; the second one has a batch that nobody can decode."""
    first = await bucket.put(flights(3), 0, 1)
    second = await bucket.put([*flights(2), undecodable()], first.facts.end_offset, 2)
    bucket.publish(first, second)
    return [first, second]


async def run(bucket: TieredFolder, command: str, *arguments: str) -> dict[str, Any]:
    """Run a command, and return its result."""
    given = bucket_commands._parser().parse_args([command, bucket.settings.url, *arguments])
    executor = ThreadExecutor(reader_threads=2)
    try:
        acts = bucket_commands.BucketCommands(given, executor)
        found: dict[str, Any] = await getattr(acts, command.replace("-", "_"))()
        json.dumps(found)
        return found
    finally:
        executor.close()


def damage(bucket: TieredFolder, key: str, position: int = 100) -> None:
    path = bucket.folder / key
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


async def test_an_intact_bucket_is_proved(bucket: TieredFolder) -> None:
    manifests = await two(bucket)
    found = await run(bucket, "verify")
    [topic] = found["topics"]
    assert (found["damaged"], found["strange"], topic["strange"]) == (0, [], [])
    assert [each["attempt"] for each in topic["copies"]] == [1, 2]
    assert all(each["is_published"] for each in topic["copies"])
    wanted = sum(each.parquet.size_bytes for each in manifests)
    assert found["read_bytes"] > wanted
    assert found["requests"] > 6


async def test_damage_is_named(bucket: TieredFolder) -> None:
    first, second = await two(bucket)
    damage(bucket, first.parquet.key)
    assert second.side is not None
    (bucket.folder / second.side.key).unlink()
    found = await run(bucket, "verify")
    problems = [each["problem"] for each in found["topics"][0]["copies"]]
    assert found["damaged"] == 2
    assert "is not what was put" in problems[0]
    assert "is not there" in problems[1]


async def test_a_damaged_manifest_is_no_copy(bucket: TieredFolder) -> None:
    first, _ = await two(bucket)
    damage(bucket, first.key)
    [topic] = (await run(bucket, "verify"))["topics"]
    assert any(first.key in each for each in topic["damage"])
    assert any("the table names it, no manifest does" in each for each in topic["damage"])


async def test_what_nobody_knows_is_strange_and_no_damage(bucket: TieredFolder) -> None:
    first, _ = await two(bucket)
    await bucket.put(flights(3), 0, 9)
    await bucket.store.put_if_absent(first.facts.key(8), b"half an upload")
    await bucket.store.put_if_absent(f"{TOPIC}/notes.txt", b"hello")
    await bucket.store.put_if_absent("elsewhere/x.parquet", b"hello")
    foreign = await bucket.put(flights(1), 5000, 3, cluster_id=b"o" * 16)
    found = await run(bucket, "verify")
    [topic] = found["topics"]
    assert found["damaged"] == 0
    assert sorted(found["strange"]) == sorted([f"{TOPIC}/notes.txt", "elsewhere/x.parquet"])
    assert any(first.facts.key(8) in each for each in topic["strange"])
    assert any(foreign.key in each and "of cluster" in each for each in topic["strange"])
    states = {each["attempt"]: each["is_published"] for each in topic["copies"]}
    assert states == {1: True, 2: True, 9: False, 3: False}


async def test_metadata_have_the_last_word(
    bucket: TieredFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two(bucket)
    known = {
        FACTS.topic_id: {(first.facts.segment_id, 1): b"x" * 32, (first.facts.segment_id, 5): b""}
    }
    monkeypatch.setattr(bucket_commands, "_published", lambda _: known)
    [topic] = (await run(bucket, "verify", "--published"))["topics"]
    damage_told = "\n".join(topic["damage"])
    assert f"{first.key}: it is not the manifest that was published" in damage_told
    assert f"segment {first.facts.segment_id}, attempt 5: published, and without" in damage_told
    assert "in the table (still), and not published" in damage_told
    assert str(second.facts.base_offset) in damage_told


async def test_a_plan_is_what_the_table_names(bucket: TieredFolder) -> None:
    first, second = await two(bucket)
    await bucket.put(flights(3), 0, 9)
    [plan] = (await run(bucket, "plan", "--topic", "flights"))["topics"]
    assert plan["problems"] == []
    assert [each["attempt"] for each in plan["segments"]] == [1, 2]
    assert (plan["attempts_max"], plan["partitions"], plan["topic"]) == (9, 4, "flights")
    assert plan["segment_ids_max"] == second.facts.segment_id
    assert plan["segments"][0]["full_digest"] == first.facts.full_digest.hex()


async def test_numbers_of_a_plan_are_above_all_of_the_bucket(bucket: TieredFolder) -> None:
    await two(bucket)
    other = UUID(bytes=b"o" * 16)
    await bucket.store.put_if_absent(f"{other}/3/{0:020d}-{70_000:020d}-1-5.parquet", b"half")
    await bucket.store.put_if_absent(f"{other}/_icecore/3/{0:020d}-{8:020d}-1-60.idx", b"half")
    await bucket.store.put_if_absent(f"{TOPIC}/0/{0:020d}-{9:020d}-1-900.txt", b"not ours")
    for asked in (("--topic", TOPIC), ("--topic", "flights")):
        [plan] = (await run(bucket, "plan", *asked))["topics"]
        assert (plan["segment_ids_max"], plan["attempts_max"]) == (70_000, 60)
        assert len(plan["segments"]) == 2
    found = await run(bucket, "plan")
    [plan], [left] = found["topics"], found["left_out"]
    assert (plan["segment_ids_max"], plan["attempts_max"]) == (70_000, 60)
    assert (left["topic_id"], left["why"]) == (other.hex, "no copy of it is published")
    [plan] = (await run(bucket, "plan", "--topic", str(other)))["topics"]
    assert (plan["segment_ids_max"], plan["attempts_max"]) == (70_000, 60)
    assert plan["problems"] == ["no copy of it is published"]


async def test_a_plan_says_what_look_ups_need(bucket: TieredFolder) -> None:
    await two(bucket)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["indexed_headers"] for each in plan["segments"]] == [(), ()]
    assert plan["partition_counts"] == ()
    settings = StoredSettings(1, json.dumps({"partitions": 5}), (2, 5))
    await SettingsKeeper().keep(bucket.store, FACTS.cluster_id, FACTS.topic_id, settings)
    manifests = [
        await bucket.put(flights(3), 0, 5, partition=1),
        replace(await bucket.put(flights(3), 0, 6, partition=2), indexed_headers=("carrier",)),
    ]
    (bucket.folder / manifests[1].key).write_bytes(manifests[1].encode())
    for each in manifests:
        bucket.publish(each)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert plan["problems"] == []
    found = {each["partition"]: each["indexed_headers"] for each in plan["segments"]}
    assert (found[1], found[2]) == ((), ("carrier",))
    assert plan["partition_counts"] == (2, 5)
    assert (await run(bucket, "verify"))["damaged"] == 0


async def test_an_empty_partition_has_a_revision_of_its_table(bucket: TieredFolder) -> None:
    await two(bucket)
    gone = await bucket.put(flights(1), 0, 5, partition=6)
    bucket.publish(gone)
    for each in (gone.key, gone.parquet.key):
        (bucket.folder / each).unlink()
    table = TopicTable(bucket.settings, FACTS.cluster_id, FACTS.topic_id, FACTS.topic)
    table.bring_to(6, 7, [], [], 1_700_000_000_000)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert plan["table_revisions"] == (0, 0, 0, 1), "nothing says that there is another partition"
    [plan] = (await run(bucket, "plan", "--partitions", "7"))["topics"]
    assert plan["table_revisions"] == (0, 0, 0, 1, 0, 0, 7)
    settings = StoredSettings(1, json.dumps({"partitions": 8}), (4, 8))
    await SettingsKeeper().keep(bucket.store, FACTS.cluster_id, FACTS.topic_id, settings)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert plan["table_revisions"] == (0, 0, 0, 1, 0, 0, 7, 0)


async def test_what_follows_the_table_counts(bucket: TieredFolder) -> None:
    first, second = await two(bucket)
    third = await bucket.put(flights(2), second.facts.end_offset, 3)
    rowless = await bucket.put([undecodable()], third.facts.end_offset, 4)
    await bucket.put(flights(1), rowless.facts.end_offset, 5)
    last = await bucket.put(flights(1), rowless.facts.end_offset, 6)  # another try
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["attempt"] for each in plan["segments"]] == [1, 2, 3, 4, 6]
    assert (plan["problems"], plan["left_out"]) == ([], [])
    [topic] = (await run(bucket, "verify"))["topics"]
    assert {each["attempt"] for each in topic["copies"] if each["is_published"]} == {1, 2, 3, 4, 6}
    assert sum("which does not name it (yet)" in each for each in topic["strange"]) == 2
    damage(bucket, last.parquet.key)
    assert (await run(bucket, "verify"))["damaged"] == 1
    assert first.facts.cluster_id == last.facts.cluster_id


async def test_what_may_be_another_record_at_its_offset_does_not_count(
    bucket: TieredFolder,
) -> None:
    _, second = await two(bucket)
    hole = await bucket.put(flights(1), second.facts.end_offset + 5, 9)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["attempt"] for each in plan["segments"]] == [1, 2]
    assert plan["problems"] == []
    assert len(plan["left_out"]) == 1 and hole.key in plan["left_out"][0]
    await bucket.store.put_if_absent(f"{EARLIER_PREFIX}/{(b'e' * 16).hex()}", b"")
    earlier = await bucket.put(flights(1), second.facts.end_offset, 8, cluster_id=b"e" * 16)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["attempt"] for each in plan["segments"]] == [1, 2]
    assert any(earlier.key in each for each in plan["left_out"])


async def test_what_is_older_than_the_table_does_not_follow_it(bucket: TieredFolder) -> None:
    first = await bucket.put(flights(2), 0, 7)
    bucket.publish(first)
    await bucket.put(flights(1), first.facts.end_offset, 6)
    emptied = await bucket.put(flights(1), 0, 8, partition=1)
    bucket.publish(emptied)
    TopicTable(bucket.settings, FACTS.cluster_id, FACTS.topic_id, FACTS.topic).bring_to(
        1, 9, [], [], 1_700_000_000_000
    )
    await bucket.put(flights(1), 0, 10, partition=2)  # its table was never committed
    [plan] = (await run(bucket, "plan"))["topics"]
    found = [(each["partition"], each["attempt"]) for each in plan["segments"]]
    assert found == [(2, 10), (FACTS.partition, 7)]


async def test_without_a_table_the_newest_copy_counts(bucket: TieredFolder) -> None:
    first = await bucket.put(flights(3), 0, 1)
    await bucket.put(flights(3), 0, 9)
    await bucket.put(flights(3), first.facts.end_offset, 4)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["attempt"] for each in plan["segments"]] == [9, 4]
    assert plan["problems"] == []


async def test_a_segment_without_rows_is_in_no_table_and_in_the_plan(bucket: TieredFolder) -> None:
    first = await bucket.put(flights(3), 0, 1)
    second = await bucket.put([undecodable()], first.facts.end_offset, 2)
    third = await bucket.put(flights(1), second.facts.end_offset, 3)
    bucket.publish(first, second, third)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["attempt"] for each in plan["segments"]] == [1, 2, 3]
    assert plan["problems"] == []


async def test_a_plan_has_the_last_settings_that_can_be_read(bucket: TieredFolder) -> None:
    await two(bucket)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert (plan["settings"], plan["left_out"]) == (None, [])
    location, topic_id = SettingsKeeper(), FACTS.topic_id
    for version in (1, 2):
        said = StoredSettings(version, json.dumps({"partitions": version}))
        await location.keep(bucket.store, FACTS.cluster_id, topic_id, said)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert plan["settings"] == {"partitions": 2}
    found = await run(bucket, "verify")
    assert (found["damaged"], found["strange"]) == (0, [])
    newest = settings_key(topic_id, 2)
    damage(bucket, newest, 5)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert (plan["settings"], plan["problems"]) == ({"partitions": 1}, [])
    assert len(plan["left_out"]) == 1 and newest in plan["left_out"][0]
    [topic] = (await run(bucket, "verify"))["topics"]
    assert len(topic["damage"]) == 1 and newest in topic["damage"][0]


async def test_holes_and_overlaps_are_named(bucket: TieredFolder) -> None:
    first = await bucket.put(flights(3), 0, 1)
    over = await bucket.put(flights(3), 100, 2)
    far = await bucket.put(flights(1), 4000, 3)
    bucket.publish(first, over, far)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert any("have the same offsets" in each for each in plan["problems"])
    hole = f"partition 3: {over.facts.end_offset}..4000"
    assert any(hole in each for each in plan["problems"])
    [behind] = (await run(bucket, "plan", "--skip-gaps"))["topics"]
    assert [each["attempt"] for each in behind["segments"]] == [3]
    assert any(hole in each for each in behind["left_out"])


@pytest.mark.parametrize("in_table", [1, 2])
async def test_offsets_that_were_left_out_are_no_hole(bucket: TieredFolder, in_table: int) -> None:
    """Behind a loss, or a restore. The table may not name yet what comes behind it."""
    first = await bucket.put(flights(3), 0, 1)
    second = await bucket.put(flights(1), first.facts.end_offset + OFFSETS_LEFT_OUT, 2)
    bucket.publish(*[first, second][:in_table])
    [plan] = (await run(bucket, "plan"))["topics"]
    assert [each["attempt"] for each in plan["segments"]] == [1, 2]
    assert (plan["problems"], plan["left_out"]) == ([], [])
    [topic] = (await run(bucket, "verify"))["topics"]
    assert not topic["damage"] and not [each for each in topic["strange"] if "offsets" in each]


async def test_a_bucket_changes_hands(bucket: TieredFolder) -> None:
    await two(bucket)
    arguments = ("--cluster", NEW_CLUSTER.hex(), "--old", FACTS.cluster_id.hex())
    taken = await run(bucket, "take-over", *arguments)
    assert taken["was_taken"]
    assert (bucket.folder / MARKER_KEY).read_bytes() == marker_of(NEW_CLUSTER)
    assert not (await run(bucket, "take-over", *arguments))["was_taken"]
    found = await run(bucket, "verify")
    assert (found["damaged"], found["topics"][0]["strange"]) == (0, [])
    assert found["earlier_clusters"] == (FACTS.cluster_id.hex(),)


async def test_only_the_cluster_that_was_shown_is_taken_over(
    bucket: TieredFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    await two(bucket)
    given = bucket_commands._parser().parse_args(
        ["take-over", bucket.settings.url, "--cluster", NEW_CLUSTER.hex(), "--old", "00" * 16]
    )
    executor = ThreadExecutor(reader_threads=1)
    with pytest.raises(bucket_commands.WrongClusterError, match="look again"):
        await bucket_commands.BucketCommands(given, executor).take_over()
    executor.close()
    assert (bucket.folder / MARKER_KEY).read_bytes() == marker_of(FACTS.cluster_id)


async def test_the_list_for_hive_is_what_the_table_names(bucket: TieredFolder) -> None:
    manifests = await two(bucket)
    for _ in range(2):
        [written] = (await run(bucket, "hive", "--topic", TOPIC))["manifests"]
    lines = (bucket.folder / TOPIC / "_symlink_format_manifest/manifest").read_text().split()
    assert lines == sorted(f"{bucket.settings.url}/{each.parquet.key}" for each in manifests)
    assert written["files"] == 2
    assert (await run(bucket, "verify"))["strange"] == []


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bucket_commands.main(["verify", "nonsense://x"]) == 1
    assert "begins with none of" in capsys.readouterr().err
    assert bucket_commands.main(["verify", f"file://{tmp_path}", "--topic", "nothing"]) == 1
    assert "nothing of topic nothing" in capsys.readouterr().err


async def late(bucket: TieredFolder) -> tuple[Manifest, Manifest, Manifest]:
    """Three copies of one partition; the upload of the first one and of the one in the middle took
    longer than that of the last, and the table was not brought up to date since."""
    first = await bucket.put(flights(2), 0, 5)
    middle = await bucket.put(flights(1), first.facts.end_offset, 1)
    last = await bucket.put(flights(3), middle.facts.end_offset, 4)
    bucket.publish(last)
    return first, middle, last


async def attempts(bucket: TieredFolder) -> list[int]:
    [plan] = (await run(bucket, "plan"))["topics"]
    assert (plan["problems"], plan["left_out"]) == ([], [])
    return [each["attempt"] for each in plan["segments"]]


async def test_uploads_that_others_overtook_count(bucket: TieredFolder) -> None:
    first, middle, last = await late(bucket)
    assert await attempts(bucket) == [5, 1, 4]
    bucket.publish(first, last)
    assert await attempts(bucket) == [5, 1, 4]
    await bucket.put(flights(1), first.facts.end_offset, 9)  # another try
    assert await attempts(bucket) == [5, 9, 4]
    [topic] = (await run(bucket, "verify"))["topics"]
    assert {each["attempt"] for each in topic["copies"] if each["is_published"]} == {5, 9, 4}
    assert middle.facts.base_offset == first.facts.end_offset


async def test_what_the_table_named_once_was_retired(bucket: TieredFolder) -> None:
    first, middle, last = await late(bucket)
    bucket.publish(first, middle, last)
    bucket.publish(middle, last)
    assert await attempts(bucket) == [1, 4]
    bucket.publish(last)
    assert await attempts(bucket) == [4]


async def test_no_clock_says_what_the_table_named(bucket: TieredFolder) -> None:
    first, middle, last = await late(bucket)
    bucket.publish(first, middle, last)
    bucket.now_ms = 4_000_000_000_000  # of whoever commits: far ahead
    bucket.publish(last)
    assert await attempts(bucket) == [4]


async def test_a_commit_that_nobody_can_read_is_named(bucket: TieredFolder) -> None:
    await late(bucket)
    topic = TopicObjects(FACTS.topic_id, commits={7: f"{TOPIC}/_delta_log/{7:020d}.json"})
    for text in (b"{", b"[]\n7", b'{"remove": 3}', b'{"remove": {}}', b"\xff"):
        (bucket.folder / topic.commits[7]).write_bytes(text)
        with pytest.raises(ObjectStoreError, match=r"00007\.json is no commit"):
            await removed_paths(bucket.store, topic)


async def test_what_came_after_all_that_the_table_named_was_retired(bucket: TieredFolder) -> None:
    gone = await bucket.put(flights(2), 0, 1)
    bucket.publish(gone)
    table = TopicTable(bucket.settings, FACTS.cluster_id, FACTS.topic_id, FACTS.topic)
    table.bring_to(FACTS.partition, 9, [], [], 1_700_000_000_000)
    await bucket.put(flights(3), gone.facts.end_offset, 2)
    assert await attempts(bucket) == [2]
    uri, options = place_of(bucket.settings, FACTS.topic_id)
    DeltaTable(uri, storage_options=dict(options)).create_checkpoint()
    assert (await run(bucket, "plan"))["topics"] == [], "it may have named it once"


async def test_a_checkpoint_hides_what_the_table_named(bucket: TieredFolder) -> None:
    await late(bucket)
    uri, options = place_of(bucket.settings, FACTS.topic_id)
    DeltaTable(uri, storage_options=dict(options)).create_checkpoint()
    [plan] = (await run(bucket, "plan"))["topics"]
    assert "is in no published copy" in plan["problems"][0], "5 is later than 4, and 1 is not"


async def test_a_late_upload_of_deleted_records_stays_away(bucket: TieredFolder) -> None:
    first, _, _ = await late(bucket)
    starts = (0, 0, 0, first.facts.end_offset)
    settings = StoredSettings(1, '{"partitions": 4}', (4,), "flights", False, starts)
    await SettingsKeeper().keep(bucket.store, FACTS.cluster_id, FACTS.topic_id, settings)
    assert await attempts(bucket) == [1, 4]
