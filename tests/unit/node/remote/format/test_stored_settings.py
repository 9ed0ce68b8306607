"""Settings of a topic in the bucket: the last alteration counts, whatever is late or damaged."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import ConflictError, InvalidRequestError
from icecore_node.remote.format import stored_settings
from icecore_node.remote.format.manifest import TieredDamageError
from icecore_node.remote.format.stored_settings import (
    NEWEST_KEPT,
    SettingsKeeper,
    StoredSettings,
    check_settings_order,
    landmarks,
    parse_settings,
    settings_key,
    settings_object,
)
from icecore_node.remote.store.object_store import ObjectStoreBusyError
from icecore_node.remote.verify.bucket import read_bucket
from tests.simulation.object_store import SimBucket, SimObjectStore

CLUSTER, OTHER, TOPIC = b"c" * 16, b"o" * 16, b"t" * 16


@pytest.fixture
def bucket() -> SimBucket:
    return SimBucket()


def said(version: int, partitions: int | None = None) -> StoredSettings:
    return StoredSettings(version, f'{{"partitions": {partitions or version}}}')


async def counts(bucket: SimBucket) -> int:
    """The number of partitions that a restore would find."""
    found = await read_bucket(SimObjectStore(bucket, None))
    settings = found.topics[TOPIC].settings
    assert settings is not None
    assert found.strange == []
    return int(settings["partitions"])


async def keep(bucket: SimBucket, version: int, cluster: bytes = CLUSTER) -> None:
    """Keep the settings as a node that has put nothing before."""
    await SettingsKeeper().keep(SimObjectStore(bucket, None), cluster, TOPIC, said(version))


async def test_the_last_alteration_counts(bucket: SimBucket) -> None:
    await keep(bucket, 0)
    await keep(bucket, 3)
    await keep(bucket, 3)
    await keep(bucket, 2)  # of a node that was paused
    assert len(bucket.objects) == 2
    assert await counts(bucket) == 3


async def test_what_is_known_asks_the_store_nothing(bucket: SimBucket) -> None:
    location, store = SettingsKeeper(), SimObjectStore(bucket, None)
    await location.keep(store, CLUSTER, TOPIC, said(2))
    bucket.faults.refused = 100
    await location.keep(store, CLUSTER, TOPIC, said(2))
    await location.keep(store, CLUSTER, TOPIC, said(1))
    with pytest.raises(ObjectStoreBusyError):
        await location.keep(store, CLUSTER, TOPIC, said(3))
    bucket.faults.refused = 0
    await location.keep(store, CLUSTER, TOPIC, said(3))  # what failed is not known
    assert await counts(bucket) == 3


@pytest.mark.parametrize("fault", ["cut_puts", "untrue_puts", "altered_puts"])
async def test_what_the_store_confirmed_untruly_is_put_again(bucket: SimBucket, fault: str) -> None:
    """The same node puts them again: else it would take them for put for as long as it lives."""
    setattr(bucket.faults, fault, 2)
    await keep(bucket, 3)
    assert getattr(bucket.faults, fault) == 0
    store = SimObjectStore(bucket, None)
    newest = await store.get_whole(settings_key(TOPIC, numbers(bucket)[-1]), 1 << 20)
    assert parse_settings(newest, TOPIC)["settings_version"] == 3


async def test_a_cluster_that_took_over_begins_behind_the_old_one(bucket: SimBucket) -> None:
    await keep(bucket, 9)
    await keep(bucket, 1, OTHER)
    assert await counts(bucket) == 1
    assert len(bucket.objects) == 2


def numbers(bucket: SimBucket) -> list[int]:
    return sorted(int(key.rpartition("/")[2].removesuffix(".json")) for key in bucket.objects)


async def test_superseded_ones_go_but_for_the_newest_and_the_landmarks(bucket: SimBucket) -> None:
    for version in range(1, 41):
        await keep(bucket, version)
        assert await counts(bucket) == version
        assert len(numbers(bucket)) <= NEWEST_KEPT + 2 * version.bit_length()
    assert numbers(bucket) == [1, 2, 4, 8, 16, 32, 37, 38, 39, 40]


async def test_a_late_listing_leads_nobody_to_a_number_that_was_freed(bucket: SimBucket) -> None:
    for version in range(1, 24):
        await keep(bucket, version)
    bucket.faults.listing_lag_s = 1e12  # nothing that was put is listed
    await keep(bucket, 22)  # of a node that was paused
    await keep(bucket, 24)
    assert numbers(bucket)[-2:] == [23, 24]
    bucket.faults.listing_lag_s = 0
    assert await counts(bucket) == 24
    await keep(bucket, 25)
    assert numbers(bucket) == [1, 2, 4, 8, 16, 22, 23, 24, 25]


async def test_a_number_that_another_node_takes_in_the_same_moment(
    bucket: SimBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(bucket, 1)
    highest, looks = stored_settings._highest, list[int]()

    async def overtaken(store: SimObjectStore, topic_id: bytes) -> int:
        looks.append(await highest(store, topic_id))
        if len(looks) == 1:
            bucket.put(settings_key(TOPIC, 2), settings_object(CLUSTER, TOPIC, said(2)))
        return looks[-1]

    monkeypatch.setattr(stored_settings, "_highest", overtaken)
    await keep(bucket, 3)
    assert looks == [1, 2]
    assert await counts(bucket) == 3


async def test_others_again_and_again_are_a_conflict(
    bucket: SimBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(bucket, 1)

    async def nothing(store: object, topic_id: bytes) -> int:
        return 0

    monkeypatch.setattr(stored_settings, "_highest", nothing)
    with pytest.raises(ConflictError, match="look again"):
        await keep(bucket, 2)
    assert await counts(bucket) == 1


@pytest.mark.parametrize("highest", range(1, 130))
def test_a_higher_number_needs_no_landmark_that_has_gone(highest: int) -> None:
    below = {each for each in landmarks(highest + 1) if each <= highest}
    assert below <= landmarks(highest)


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff", b"{}", b'{"sha256": 5}'])
async def test_damage_is_gone_back_behind_and_put_again(bucket: SimBucket, damaged: bytes) -> None:
    await keep(bucket, 1)
    await keep(bucket, 2)
    bucket.objects[settings_key(TOPIC, 2)] = damaged
    assert await counts(bucket) == 1
    await keep(bucket, 2)
    assert await counts(bucket) == 2


async def test_numbers_of_partitions_come_with_settings(bucket: SimBucket) -> None:
    store = SimObjectStore(bucket, None)

    async def stored() -> tuple[int, ...]:
        return (await read_bucket(store)).topics[TOPIC].partition_counts

    await keep(bucket, 2)  # as an earlier version does
    assert await stored() == ()
    settings = replace(said(2), partition_counts=(0, 2))
    for _ in range(2):
        await SettingsKeeper().keep(store, CLUSTER, TOPIC, settings)
        assert numbers(bucket) == [1, 2], "an object without them is put again, once"
    assert await stored() == (0, 2)
    await keep(bucket, 2)
    assert numbers(bucket) == [1, 2], "an earlier version is content with it"
    await SettingsKeeper().keep(
        store, CLUSTER, TOPIC, replace(said(3, 5), partition_counts=(0, 2, 5))
    )
    assert await stored() == (0, 2, 5)
    bucket.objects[settings_key(TOPIC, 3)] = b"{"
    assert await stored() == (), "there may have been more of them"


@pytest.mark.parametrize("counts", [(2, 2), (5, 2), (-1,), (True,), ("2",)])
def test_what_is_no_history_of_partitions(counts: tuple[Any, ...]) -> None:
    settings = replace(said(7), partition_counts=counts)
    with pytest.raises(InvalidRequestError, match="no topic has had"):
        check_settings_order(settings)
    with pytest.raises(TieredDamageError):
        parse_settings(settings_object(CLUSTER, TOPIC, settings), TOPIC)


def test_each_flipped_bit_is_found_and_so_is_another_topics() -> None:
    data = settings_object(CLUSTER, TOPIC, said(7))
    assert parse_settings(data, TOPIC)["settings_version"] == 7
    with pytest.raises(TieredDamageError):
        parse_settings(data, b"u" * 16)
    for at in range(len(data)):
        with pytest.raises(TieredDamageError):
            parse_settings(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], TOPIC)
