"""A plan says what was deleted: topics, names that were given again, records below a log start."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.stored_settings import SettingsKeeper, StoredSettings
from icecore_node.remote.format.topic_table import TopicTable
from tests.support.tiered import FACTS, flights
from tests.support.tiered_folder import TieredFolder
from tests.unit.node.test_bucket_commands import run

OTHER = b"o" * 16
LIVE = StoredSettings(1, json.dumps({"partitions": 5}), (5,), "flights", False, (0, 0, 0, 12))


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[TieredFolder]:
    executor = ThreadExecutor(reader_threads=2)
    made = TieredFolder(tmp_path / "bucket", executor)
    await made.mark()
    yield made
    executor.close()


async def say(bucket: TieredFolder, settings: StoredSettings, topic_id: bytes) -> None:
    await SettingsKeeper().keep(bucket.store, FACTS.cluster_id, topic_id, settings)


async def two_topics(bucket: TieredFolder) -> None:
    """Two topics have one name; the first one has the newer copy."""
    bucket.publish(await bucket.put(flights(3), 0, 7))
    bucket.publish(await bucket.put(flights(3), 0, 2, topic_id=OTHER))


def ids(found: dict[str, Any]) -> list[list[str]]:
    return [[each["topic_id"] for each in found[name]] for name in ("topics", "left_out")]


async def test_a_deleted_topic_is_left_out(bucket: TieredFolder) -> None:
    await two_topics(bucket)
    await say(bucket, LIVE, OTHER)
    await say(bucket, StoredSettings(2, "{}", name="flights", is_deleted=True), FACTS.topic_id)
    first, other = FACTS.topic_id.hex(), OTHER.hex()
    assert ids(await run(bucket, "plan")) == [[other], [first]]
    assert ids(await run(bucket, "plan", "--with-deleted")) == [[other], [first]]
    uuid = str(UUID(bytes=FACTS.topic_id))
    found = await run(bucket, "plan", "--topic", uuid)
    assert ids(found) == [[first], []] and found["topics"][0]["is_deleted"]
    assert ids(await run(bucket, "plan", "--topic", "flights")) == [[other], [first]]


async def test_a_sweeper_at_a_deleted_topic_stops_nobody(bucket: TieredFolder) -> None:
    """It takes table, manifests and rows in any order, and what says it last."""
    await two_topics(bucket)
    await say(bucket, StoredSettings(2, "{}", name="flights", is_deleted=True), OTHER)
    folder = bucket.folder / str(UUID(bytes=OTHER))
    logs = [*(folder / "_delta_log").glob("*.json")]
    for each in logs:
        each.write_bytes(b"{")
    assert ids(await run(bucket, "plan")) == [[FACTS.topic_id.hex()], [OTHER.hex()]]
    found = await run(bucket, "plan", "--with-deleted")
    assert ids(found) == [[FACTS.topic_id.hex()], [OTHER.hex()]]
    assert "its table can't be read" in found["left_out"][0]["why"]
    assert (await run(bucket, "verify"))["damaged"] == 0
    for each in logs:
        each.unlink()
    manifests = [*folder.rglob("*.manifest.json")]
    assert len(manifests) == 1
    for each in (*manifests, *folder.rglob("*.parquet")):
        each.unlink()
        found = await run(bucket, "plan", "--with-deleted")
        assert ids(found) == [[FACTS.topic_id.hex()], [OTHER.hex()]]
    assert (await run(bucket, "verify"))["damaged"] == 0


async def test_a_bucket_that_says_nothing_is_restored_as_ever(bucket: TieredFolder) -> None:
    await two_topics(bucket)
    found = await run(bucket, "plan")
    assert ids(found) == [[FACTS.topic_id.hex()], [OTHER.hex()]]
    [plan] = found["topics"]
    assert (plan["log_starts"], plan["is_deleted"], plan["problems"]) == ((), False, [])


async def test_a_plan_has_log_starts_and_the_name_of_now(bucket: TieredFolder) -> None:
    bucket.publish(await bucket.put(flights(3), 0, 7))
    await say(bucket, StoredSettings(2, LIVE.text, (5,), "older", False, LIVE.log_starts), OTHER)
    settings = StoredSettings(2, LIVE.text, (5,), "older", False, LIVE.log_starts)
    await say(bucket, settings, FACTS.topic_id)
    [plan] = (await run(bucket, "plan", "--topic", "older"))["topics"]
    assert (plan["topic"], plan["log_starts"]) == ("older", (0, 0, 0, 12))


async def test_a_topic_whose_records_are_all_deleted_comes_back_empty(
    bucket: TieredFolder,
) -> None:
    bucket.publish(await bucket.put(flights(3), 0, 7))
    table = TopicTable(bucket.settings, FACTS.cluster_id, FACTS.topic_id, FACTS.topic)
    table.bring_to(FACTS.partition, 7, [], [], 1_700_000_000_000)
    found = await run(bucket, "plan")
    assert ids(found) == [[], [FACTS.topic_id.hex()]], "nothing says how many partitions it had"
    await say(bucket, LIVE, FACTS.topic_id)
    [plan] = (await run(bucket, "plan"))["topics"]
    assert (plan["problems"], plan["segments"], plan["log_starts"]) == ([], [], (0, 0, 0, 12))
    assert plan["table_revisions"] == (0, 0, 0, 7, 0)


async def test_an_inventory_has_every_topic_and_what_a_sweeper_left_is_no_problem(
    bucket: TieredFolder,
) -> None:
    """Whoever puts metadata together needs both of one name, and whether one is deleted."""
    await two_topics(bucket)
    await say(bucket, LIVE, OTHER)
    await say(bucket, StoredSettings(2, "{}", name="flights", is_deleted=True), FACTS.topic_id)
    found = {each["topic_id"]: each for each in (await run(bucket, "inventory"))["topics"]}
    gone, live = found[FACTS.topic_id.hex()], found[OTHER.hex()]
    assert [each["is_deleted"] for each in (gone, live)] == [True, False]
    assert [len(each["segments"]) for each in (gone, live)] == [1, 1]
    folder = bucket.folder / str(UUID(bytes=FACTS.topic_id))
    for each in (folder / "_delta_log").glob("*.json"):
        each.write_bytes(b"{")
    [gone] = [each for each in (await run(bucket, "inventory"))["topics"] if each["is_deleted"]]
    assert (gone["problems"], gone["segments"]) == ([], [])
    assert "is deleted, and not all of it is there" in gone["left_out"][0]
