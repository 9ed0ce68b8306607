"""The bucket says whether a topic is deleted and where its logs start: the newest word counts."""

import json
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from icecore.errors import InvalidRequestError
from icecore_node.remote.format import stored_settings
from icecore_node.remote.format.manifest import TieredDamageError
from icecore_node.remote.format.stored_settings import (
    LOG_STARTS_MAX,
    SETTINGS_BYTES_MAX,
    SettingsKeeper,
    StoredSettings,
    check_settings_order,
    parse_settings,
    settings_key,
    settings_object,
)
from icecore_node.remote.store.object_store import ObjectStoreBusyError
from icecore_node.remote.verify.bucket import TopicObjects, read_bucket
from tests.simulation.object_store import SimBucket, SimObjectStore

CLUSTER, OTHER, TOPIC = b"c" * 16, b"o" * 16, b"t" * 16
LIVE = StoredSettings(1, '{"partitions": 2}', (2,), "flights", False, (0, 0))
DELETED = replace(LIVE, version=2, is_deleted=True, log_starts=(5, 0))
BACK = replace(LIVE, version=3, name="older", log_starts=(5, 7))
GONE = StoredSettings(4, is_deleted=True)


@pytest.fixture
def bucket() -> SimBucket:
    return SimBucket()


async def keep(bucket: SimBucket, settings: StoredSettings, cluster: bytes = CLUSTER) -> None:
    """Keep them as a node that has put nothing before."""
    await SettingsKeeper().keep(SimObjectStore(bucket, None), cluster, TOPIC, settings)


async def stored(bucket: SimBucket) -> TopicObjects:
    return (await read_bucket(SimObjectStore(bucket, None))).topics[TOPIC]


async def said(bucket: SimBucket) -> tuple[str, bool, tuple[int, ...]]:
    found = await stored(bucket)
    return found.name, found.is_deleted, found.log_starts


async def test_the_newest_word_counts(bucket: SimBucket) -> None:
    for settings, expected in (
        (LIVE, ("flights", False, ())),
        (DELETED, ("flights", True, (5,))),
        (BACK, ("older", False, (5, 7))),
        (GONE, ("older", True, (5, 7))),
    ):
        await keep(bucket, settings)
        assert await said(bucket) == expected
    found = await stored(bucket)
    assert (found.settings, found.partition_counts) == ({"partitions": 2}, (2,)), "as they were"


@pytest.mark.parametrize("order", [*permutations((LIVE, DELETED, BACK, GONE))])
async def test_late_crossing_and_repeated_orders_win_over_nothing(
    bucket: SimBucket, order: tuple[StoredSettings, ...]
) -> None:
    newest = -1
    for settings in (*order, *order):
        await keep(bucket, settings)
        newest = max(newest, settings.version)
        found = parse_settings(bucket.objects[max(bucket.objects)], TOPIC)
        assert found["settings_version"] == newest
    assert (await stored(bucket)).is_deleted


@pytest.mark.parametrize("late", [LIVE, DELETED, GONE])
async def test_an_order_that_lost_the_race_for_a_number_looks_again(
    bucket: SimBucket, monkeypatch: pytest.MonkeyPatch, late: StoredSettings
) -> None:
    await keep(bucket, replace(LIVE, version=0))
    highest, looks = stored_settings._highest, list[int]()

    async def overtaken(store: SimObjectStore, topic_id: bytes) -> int:
        looks.append(await highest(store, topic_id))
        if len(looks) == 1:
            newer = replace(BACK, version=9)
            bucket.put(settings_key(TOPIC, 2), settings_object(CLUSTER, TOPIC, newer))
        return looks[-1]

    monkeypatch.setattr(stored_settings, "_highest", overtaken)
    await keep(bucket, late)
    assert await said(bucket) == ("older", False, (5, 7))
    assert len(bucket.objects) == 2


async def test_a_mark_of_a_prefix_without_settings(bucket: SimBucket) -> None:
    await keep(bucket, GONE)
    assert await said(bucket) == ("", True, ())
    bucket.objects[settings_key(TOPIC, 1)] = b"{"
    await keep(bucket, GONE)
    assert await said(bucket) == ("", True, ())


async def test_what_the_store_refused_is_not_taken_for_stored(bucket: SimBucket) -> None:
    keeper, store = SettingsKeeper(), SimObjectStore(bucket, None)
    await keeper.keep(store, CLUSTER, TOPIC, LIVE)
    for settings in (DELETED, GONE):
        bucket.faults.refused = 100
        with pytest.raises(ObjectStoreBusyError):
            await keeper.keep(store, CLUSTER, TOPIC, settings)
        bucket.faults.refused = 0
    assert not (await stored(bucket)).is_deleted
    await keeper.keep(store, CLUSTER, TOPIC, DELETED)
    assert (await stored(bucket)).is_deleted


@pytest.mark.parametrize("settings", [DELETED, GONE])
@pytest.mark.parametrize("fault", ["cut_puts", "untrue_puts", "altered_puts"])
async def test_what_the_store_confirmed_untruly_is_put_again(
    bucket: SimBucket, fault: str, settings: StoredSettings
) -> None:
    await keep(bucket, LIVE)
    setattr(bucket.faults, fault, 2)
    await keep(bucket, settings)
    assert (await stored(bucket)).is_deleted


async def test_an_object_of_an_earlier_version_is_put_again_once(bucket: SimBucket) -> None:
    old = replace(LIVE, version=2, name="", is_deleted=None)
    await keep(bucket, old)
    assert await said(bucket) == ("", False, ())
    for _ in range(2):
        await keep(bucket, DELETED)
        assert len(bucket.objects) == 2
    assert (await stored(bucket)).is_deleted
    await keep(bucket, old)
    assert len(bucket.objects) == 2, "an earlier version is content with it"


async def test_a_cluster_that_took_over_has_the_last_word(bucket: SimBucket) -> None:
    await keep(bucket, DELETED)
    await keep(bucket, replace(LIVE, version=0), OTHER)
    assert not (await stored(bucket)).is_deleted
    await keep(bucket, GONE, OTHER)
    assert (await stored(bucket)).is_deleted


async def test_where_the_newest_is_damaged_the_one_before_counts(bucket: SimBucket) -> None:
    await keep(bucket, LIVE)
    await keep(bucket, DELETED)
    bucket.objects[settings_key(TOPIC, 2)] = b"{"
    assert await said(bucket) == ("flights", False, ())
    assert [*(await stored(bucket)).unreadable] == [settings_key(TOPIC, 2)]


@pytest.mark.parametrize("starts", [(-1,), (1 << 63,), (True,), ("2",), (0,) * 16_385, (1.0,)])
def test_what_is_no_log_start(starts: tuple[Any, ...]) -> None:
    settings = replace(LIVE, log_starts=(*starts, 1))
    with pytest.raises(InvalidRequestError, match="no topic has logs that start there"):
        check_settings_order(settings)
    with pytest.raises(TieredDamageError):
        parse_settings(settings_object(CLUSTER, TOPIC, settings), TOPIC)


@pytest.mark.parametrize(("field", "value"), [("is_deleted", 1), ("is_deleted", None), ("name", 7)])
def test_what_says_nothing_of_a_topic(field: str, value: object) -> None:
    body = json.loads(settings_object(CLUSTER, TOPIC, LIVE))
    del body["sha256"]
    forged = stored_settings._sealed({**body, field: value})
    with pytest.raises(TieredDamageError):
        parse_settings(forged, TOPIC)


def test_a_mark_without_a_version_that_can_be() -> None:
    with pytest.raises(InvalidRequestError, match="no settings have version"):
        check_settings_order(replace(GONE, version=1 << 63))


def test_the_largest_topic_fits() -> None:
    starts = tuple((1 << 62) + number for number in range(10_000))
    assert len(starts) < LOG_STARTS_MAX
    text = json.dumps({"x": "x" * (31 << 10)})
    largest = replace(LIVE, text=text, log_starts=starts, name="n" * 249)
    check_settings_order(largest)
    assert len(settings_object(CLUSTER, TOPIC, largest)) < SETTINGS_BYTES_MAX
