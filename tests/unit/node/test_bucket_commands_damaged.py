"""One damaged thing of a bucket costs one topic, and a lost marker costs none."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from deltalake import DeltaTable

from icecore.errors import ConfigurationError, ObjectStoreError
from icecore_node import bucket_commands
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.format.stored_settings import (
    StoredSettings,
    settings_key,
    settings_object,
)
from icecore_node.remote.format.topic_table import description_of
from icecore_node.remote.marker import MARKER_KEY, parse_marker
from icecore_node.remote.store.object_store import ObjectDeniedError
from icecore_node.remote.verify.bucket import EARLIER_PREFIX, Bucket, TopicObjects
from icecore_node.remote.verify.table_look import damage_of_log
from tests.support.tiered import FACTS, flights
from tests.support.tiered_folder import TieredFolder
from tests.unit.node.test_bucket_commands import NEW_CLUSTER, run

OTHER = b"o" * 16
OWNER = FACTS.cluster_id.hex()


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[TieredFolder]:
    """Two topics; the table of the first one has three commits behind the one that made it."""
    executor = ThreadExecutor(reader_threads=2)
    made = TieredFolder(tmp_path / "bucket", executor)
    await made.mark()
    copies = []
    for attempt in (1, 2, 3):
        base = copies[-1].facts.end_offset if copies else 0
        copies.append(await made.put(flights(3), base, attempt))
        made.publish(*copies)
    made.publish(await made.put(flights(3), 0, 4, topic_id=OTHER, topic="other"))
    yield made
    executor.close()


def log_of(bucket: TieredFolder) -> Path:
    return bucket.folder / str(UUID(bytes=FACTS.topic_id)) / "_delta_log"


def commit(version: int) -> str:
    return f"{version:020d}.json"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00" * 40)


def of_topics(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["topic"]: each for each in found["topics"]}


@pytest.mark.parametrize("spoil", [Path.unlink, cut, empty, garbage])
@pytest.mark.parametrize("version", [0, 2])
async def test_a_damaged_commit_costs_one_topic(
    bucket: TieredFolder, spoil: Callable[[Path], object], version: int
) -> None:
    spoil(log_of(bucket) / commit(version))
    plans = of_topics(await run(bucket, "plan"))
    [problem] = plans["flights"]["problems"]
    assert "its table can't be read" in problem and "move that folder out" in problem
    assert (plans["other"]["problems"], len(plans["other"]["segments"])) == ([], 1)
    reports = of_topics(await run(bucket, "verify"))
    [damage] = reports["flights"]["damage"]
    assert "the table can't be read" in damage
    assert (reports["flights"]["has_table"], reports["other"]["damaged"]) == (True, 0)
    with pytest.raises(ObjectStoreError, match="flights: its table can't be read"):
        await run(bucket, "hive")
    log_of(bucket).rename(bucket.folder.parent / "aside")  # as the problem says
    plans = of_topics(await run(bucket, "plan"))
    assert [each["attempt"] for each in plans["flights"]["segments"]] == [1, 2, 3]
    assert plans["flights"]["problems"] == []


@pytest.mark.parametrize("spoil", [Path.unlink, cut, empty, garbage])
async def test_a_damaged_checkpoint_costs_one_topic(
    bucket: TieredFolder, spoil: Callable[[Path], object]
) -> None:
    DeltaTable(str(log_of(bucket).parent)).create_checkpoint()
    [checkpoint] = log_of(bucket).glob("*.checkpoint.parquet")
    spoil(checkpoint)
    plans = of_topics(await run(bucket, "plan"))
    assert "its table can't be read" in plans["flights"]["problems"][0]
    assert plans["other"]["problems"] == []


async def test_commits_before_a_checkpoint_are_not_missed(bucket: TieredFolder) -> None:
    DeltaTable(str(log_of(bucket).parent)).create_checkpoint()
    for each in log_of(bucket).glob("*.json"):
        each.unlink()
    plan = of_topics(await run(bucket, "plan"))["flights"]
    assert (plan["problems"], len(plan["segments"])) == ([], 3)


async def test_a_commit_that_a_listing_passed_by_is_no_damage(
    bucket: TieredFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the listing of a local folder to which a node is writing."""
    listed = bucket_commands.read_bucket

    async def without(*given: Any, **named: Any) -> Bucket:
        found = await listed(*given, **named)
        del found.topics[FACTS.topic_id].commits[1]
        return found

    monkeypatch.setattr(bucket_commands, "read_bucket", without)
    plan = of_topics(await run(bucket, "plan"))["flights"]
    assert (plan["problems"], len(plan["segments"])) == ([], 3)


def test_what_a_listing_says_of_a_log() -> None:
    def damage(commits: list[int], checkpoint: int = -1, empty: int = -1) -> str:
        found = TopicObjects(b"t" * 16, checkpoint=checkpoint, empty_commits={empty})
        found.commits = dict.fromkeys(commits, "")
        return damage_of_log(found)

    assert damage([]) == damage([0, 1, 2]) == damage([], 5) == damage([3, 4, 5, 6], 4) == ""
    assert damage([1, 2]) == "commit 0 is missing"
    assert damage([0, 2]) == "commit 1 is missing"
    assert damage([7], 5) == "commit 6 is missing"
    assert damage([0, 1], empty=1) == "commit 1 is empty"
    assert damage([5, 6], 5, empty=5) == ""


async def test_a_store_that_refuses_is_no_damage(
    bucket: TieredFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ObjectDeniedError("no")

    monkeypatch.setattr(bucket_commands, "look_at_table", refuse)
    with pytest.raises(ObjectDeniedError):
        await run(bucket, "plan")


async def test_a_bucket_changes_hands_but_for_a_damaged_table(bucket: TieredFolder) -> None:
    commit_0 = log_of(bucket) / commit(0)
    whole = commit_0.read_bytes()
    cut(commit_0)
    arguments = ("--cluster", NEW_CLUSTER.hex(), "--old", OWNER)
    taken = await run(bucket, "take-over", *arguments)
    assert taken["was_taken"] and [*taken["tables_left"]] == [FACTS.topic_id.hex()]
    assert (await run(bucket, "plan"))["other_tables"] == []
    commit_0.write_bytes(whole)
    found = await run(bucket, "plan")
    assert found["other_tables"] == [FACTS.topic_id.hex()]
    assert all(not each["problems"] for each in found["topics"])
    taken = await run(bucket, "take-over", *arguments)
    assert (taken["was_taken"], taken["tables_left"]) == (False, {})
    assert (await run(bucket, "plan"))["other_tables"] == []


@pytest.mark.parametrize("is_marked", [False, True], ids=["no-marker", "a-node-was-there"])
async def test_a_bucket_without_its_marker_is_adopted(
    bucket: TieredFolder, is_marked: bool
) -> None:
    stranger = b"s" * 16
    bucket.publish(
        await bucket.put(flights(1), 0, 5, topic_id=b"z" * 16, topic="z", cluster_id=stranger)
    )
    (bucket.folder / MARKER_KEY).unlink()
    if is_marked:
        await bucket.mark(NEW_CLUSTER, "6" * 32)
    for each in (await run(bucket, "plan"))["topics"]:
        [problem] = each["problems"]
        named = stranger.hex() if each["topic"] == "z" else OWNER
        assert f"--adopt {named}" in problem and "gone for good" in problem
    plans = of_topics(await run(bucket, "plan", "--adopt", OWNER))
    assert plans["flights"]["problems"] == plans["other"]["problems"] == []
    assert len(plans["flights"]["segments"]) == 3 and plans["z"]["problems"]
    claim = ("--cluster", NEW_CLUSTER.hex(), "--adopt", OWNER)
    taken = await run(bucket, "take-over", *claim)
    assert taken["was_taken"] is not is_marked
    marker = parse_marker((bucket.folder / MARKER_KEY).read_bytes())
    assert (marker.cluster_id, len(marker.store_id)) == (NEW_CLUSTER.hex(), 32)
    found = await run(bucket, "plan")
    plans = of_topics(found)
    assert plans["flights"]["problems"] == plans["other"]["problems"] == []
    assert found["other_tables"] == [(b"z" * 16).hex()], "the stranger keeps what it has"
    assert found["earlier_clusters"] == (OWNER,)


async def test_only_clusters_that_left_copies_are_adopted(bucket: TieredFolder) -> None:
    with pytest.raises(ConfigurationError, match=f"copies are 4 of {OWNER}"):
        await run(bucket, "plan", "--adopt", "ab" * 16)


@pytest.mark.parametrize("says", ["settings", "table"])
async def test_a_cluster_that_restored_a_bucket_owns_it_without_a_copy_of_its_own(
    bucket: TieredFolder, says: str
) -> None:
    """The marker is lost while that cluster lives. All copies are of the one before it, whose
    copies everybody may take who comes after it."""
    living = b"l" * 16
    earlier = bucket.folder / EARLIER_PREFIX / OWNER
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(b"{}")
    if says == "settings":
        stored = StoredSettings(1, "{}", name="flights")
        await bucket.store.put_if_absent(
            settings_key(FACTS.topic_id, 1), settings_object(living, FACTS.topic_id, stored)
        )
    else:
        DeltaTable(str(log_of(bucket).parent)).alter.set_table_description(
            description_of(living, FACTS.topic_id)
        )
    (bucket.folder / MARKER_KEY).unlink()
    await bucket.mark(NEW_CLUSTER, "6" * 32)
    for adopted in [(), ("--adopt", OWNER)]:
        plans = of_topics(await run(bucket, "plan", *adopted))
        [problem] = plans["flights"]["problems"]
        assert f"cluster {living.hex()} has taken the topic over" in problem
        assert f"gone for good: --adopt {living.hex()}" in problem
        assert not plans["other"]["problems"]
    adopted = ("--adopt", living.hex())
    assert not of_topics(await run(bucket, "plan", *adopted))["flights"]["problems"]
    await run(bucket, "take-over", "--cluster", NEW_CLUSTER.hex(), *adopted)
    assert not of_topics(await run(bucket, "plan"))["flights"]["problems"]
