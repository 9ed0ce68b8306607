"""The same questions before and after a restore: what was there is there, and nothing else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from icecore_node.remote.format.stored_settings import FOLDER, parse_settings
from tests.cluster.test_restore import ready, take_over
from tests.support.restore_questions import Sent, answers, different, send, until_whole
from tests.support.tier_places import (
    Place,
    run_cli,
    run_json,
    seal,
    tiering,
    until,
    until_tiered,
)

GRACE_MS = 600_000
"""Objects of what is gone stay for so long: nothing is hidden by a sweep."""


def cluster_of(folder: Path, place: Place) -> LocalCluster:
    return LocalCluster(
        folder,
        1,
        node_settings=place.settings(),
        coordinator_settings={"tier_reader_grace_ms": GRACE_MS},
    )


async def create(admin: Admin, topic: str, partitions: int = 1, **settings: object) -> bytes:
    """A topic that object storage alone keeps: its id."""
    created = await admin.create_topic(
        topic,
        partitions=partitions,
        replication_factor=1,
        tier="on",
        local_retention_ms=0,
        **settings,  # type: ignore[arg-type]
    )
    return created.topic_id


async def tiered(admin: Admin, *topics: str) -> None:
    for topic in topics:
        await admin.roll_topic(topic)
    for topic in topics:
        await until_tiered(admin, topic, is_remote=True)


async def until_told(admin: Admin, *topics: str) -> None:
    """Wait until the tables of live topics, and by that their settings, are up to date."""

    async def is_so() -> bool:
        found = [await tiering(admin, topic) for topic in topics]
        return not any(each.stale_tables for each in found)

    await until(is_so)


def says_deleted(bucket: Path, topic_id: bytes) -> bool:
    """Return whether the newest settings in the bucket say that the topic is deleted."""
    stored = sorted((bucket / str(UUID(bytes=topic_id)) / FOLDER).glob("*.json"))
    return bool(stored and parse_settings(stored[-1].read_bytes(), topic_id).get("is_deleted"))


async def until_deleted(bucket: Path, *topic_ids: bytes) -> None:
    async def is_so() -> bool:
        return all(says_deleted(bucket, each) for each in topic_ids)

    await until(is_so)


async def alter(address: str, admin: Admin, topic: str) -> None:
    """Alter what reads depend on: indexed headers, the format, partitions, merged segments."""
    await send(address, Sent(topic, 0, 40))
    await tiered(admin, topic)
    await admin.alter_topic(topic, tier_format="segment")
    await send(address, Sent(topic, 40, 30))
    await tiered(admin, topic)
    await admin.alter_topic(topic, tier_format="parquet", indexed_headers=("b",))
    await admin.add_partitions(topic, 4)
    for first in (70, 110):
        await send(address, Sent(topic, first, 40))
        await tiered(admin, topic)
    groups = (await admin.plan_merges(topic)).groups
    assert groups
    for each in groups:
        await admin.merge_segments(topic, each.segment_ids)


@pytest.mark.timeout(300)
async def test_answers_are_the_same(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    place = Place(bucket.as_uri())
    live = ("altered", "sparse", "emptied", "again", "older", "moved")
    moments = [datetime.now(UTC)]
    with cluster_of(tmp_path / "cluster", place) as cluster:
        await ready(cluster)
        address = cluster.bootstrap
        async with Admin(address) as admin:
            await create(admin, "altered", 2, indexed_headers=("a",))
            for name, partitions in {"sparse": 3, "emptied": 2}.items():
                await create(admin, name, partitions)
            gone = {name: await create(admin, name) for name in ("again", "deleted", "purged")}
            moved = await create(admin, "moved")
            firsts = [Sent(name, 0, 20) for name in (*gone, "emptied", "moved")]
            await send(address, Sent("sparse", 0, 40, partition=1), *firsts)
            await tiered(admin, "sparse", "emptied", "moved", *gone)
            moments.append(datetime.now(UTC))
            await alter(address, admin, "altered")
            await admin.delete_records("altered", {0: 7, 1: 3})
            await admin.delete_records("sparse", {1: 31})
            ends = await admin.list_offsets("emptied", "latest")
            await admin.delete_records("emptied", {n: each.offset for n, each in ends.items()})
            for name in ("again", "deleted", "moved"):
                await admin.delete_topic(name)
            await admin.delete_topic("purged", now=True)
            await admin.undelete_topic("moved", new_name="older")
            for name in ("again", "moved"):
                await create(admin, name)
            moments.append(datetime.now(UTC))
            await send(address, Sent("again", 100, 10), Sent("moved", 100, 10))
            await tiered(admin, "again", "moved")
            await until_told(admin, *live)
        await until_deleted(bucket, *gone.values())
        before = await answers(address, moments, kinds=4)
    assert [name for name, _ in before["topics"]] == sorted(live)
    assert before["altered: starts"] == {0: 7, 1: 3, 2: 0, 3: 0}
    assert (before["sparse: starts"], before["emptied: starts"]) == ({1: 31}, {})
    assert len(before) > 200 and all(each[0] for each in before.values() if _is_page(each))
    with cluster_of(tmp_path / "other", place) as cluster:
        plan = run_json(cluster, "--json", "tier", "restore", place.url, "--dry-run")
        assert {each["topic_id"] for each in plan["left_out"]} == {
            each.hex() for each in gone.values()
        }
        await take_over(cluster, place)
        await until_whole(cluster.bootstrap)
        assert different(before, await answers(cluster.bootstrap, moments, kinds=4)) == []
        deleted = str(UUID(bytes=gone["deleted"]))
        run_cli(cluster, "tier", "restore", place.url, "--topic", deleted)
        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            assert (await admin.describe_topics(["deleted"]))[0].topic_id == gone["deleted"]
            assert (await admin.describe_topics(["older"]))[0].topic_id == moved
            for topic in (*live, "deleted"):
                await producer.send_wait(topic, b"it goes on")
            await producer.flush()
            await until_told(admin, *live, "deleted")
        assert not says_deleted(bucket, gone["deleted"])


def _is_page(answer: object) -> bool:
    return isinstance(answer, tuple) and isinstance(answer[0], bool)


TOPICS = 20
PARTITIONS = 4
ROUNDS = 25
"""Each makes a segment in each partition of each topic: 2,000 together."""


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something took; `-s` shows it."""
    began_s = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began_s:.1f} s", flush=True)


async def fill(address: str, admin: Admin, names: list[str]) -> list[datetime]:
    """Fill topics; every third changes its format, another third its indexed headers, and some get
    more partitions. Return a few moments between."""
    moments: list[datetime] = []
    for number in range(ROUNDS):
        parts = [
            Sent(name, 8 * (PARTITIONS * number + partition), 8, partition)
            for name in names
            for partition in range(PARTITIONS)
        ]
        await send(address, *parts)
        for name in names:
            await seal(admin, name)
        if number % 8 == 0:
            moments.append(datetime.now(UTC))
        for at, name in enumerate(names):
            if number == 10 + at % 5 and at % 3 == 0:
                await admin.alter_topic(name, tier_format="segment")
            elif number == 10 + at % 5 and at % 3 == 1:
                await admin.alter_topic(name, indexed_headers=("b",))
    for name in names[::5]:
        await admin.add_partitions(name, PARTITIONS + 3)
    return moments


async def delete_some(
    address: str, admin: Admin, names: list[str]
) -> tuple[list[str], list[bytes]]:
    """Delete topics and records, give a name again, and bring a topic back under another one.
    Return the names that are left, and the ids of deleted topics."""
    known = {each.name: each.topic_id for each in await admin.describe_topics()}
    kept, gone = [*names], list[bytes]()
    for at, name in enumerate(names):
        if at % 4 == 1:
            await admin.delete_records(name, {0: 5 + at, 1: 16, 3: 8 * (ROUNDS - 1) + 3})
        elif at % 6 == 2:
            await admin.delete_topic(name, now=at % 12 == 2)
            kept.remove(name)
            gone.append(known[name])
    again, moved = kept[0], kept[2]
    await admin.delete_topic(again)
    gone.append(known[again])
    await create(admin, again)
    await send(address, Sent(again, 7_000, 20))
    await admin.delete_topic(moved)
    await admin.undelete_topic(moved, new_name="moved")
    kept[2] = "moved"
    return kept, gone


@pytest.mark.every(50, turn=49)
@pytest.mark.timeout(3_000)
async def test_answers_of_many_topics_are_the_same(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    place = Place(bucket.as_uri())
    names = [f"topic-{number:02d}" for number in range(TOPICS)]
    with cluster_of(tmp_path / "cluster", place) as cluster:
        await ready(cluster)
        address = cluster.bootstrap
        async with Admin(address, timeout_s=60.0) as admin:
            for name in names:
                await create(admin, name, PARTITIONS)
            with timed("filled"):
                moments = await fill(address, admin, names)
            with timed("tiered"):
                for name in names:  # they take turns, so all of them end together
                    await until_tiered(admin, name, timeout_s=60.0 * TOPICS)
            found = (await admin.describe_tiering()).topics
            assert sum(each.published_segments for each in found) >= TOPICS * PARTITIONS * ROUNDS
            kept, gone = await delete_some(address, admin, names)
            with timed("told"):
                for name in kept:
                    await until_tiered(admin, name, is_remote=True, timeout_s=60.0 * TOPICS)
                await until_deleted(bucket, *gone)
        with timed("asked before"):
            before = await answers(address, moments, kinds=1)
    assert [name for name, _ in before["topics"]] == sorted(kept)
    with cluster_of(tmp_path / "other", place) as cluster:
        with timed("planned"):
            plan = run_json(cluster, "--json", "tier", "restore", place.url, "--dry-run")
        assert {each["topic_id"] for each in plan["left_out"]} == {each.hex() for each in gone}
        with timed("restored"):
            await take_over(cluster, place)
            await until_whole(cluster.bootstrap)
        with timed("asked after"):
            after = await answers(cluster.bootstrap, moments, kinds=1)
    print(
        f"{len(before)} answers, {sum(len(each['segments']) for each in plan['topics'])} segments"
    )
    assert different(before, after) == []
