"""A node's memory of a bucket and the marker there decide whether it may be used."""

import json

import pytest

from icecore.errors import WrongClusterError
from icecore_node.remote.marker import (
    BucketLostError,
    ClusterStore,
    Marker,
    is_first_use,
    parse_marker,
)
from icecore_node.storage.control.known_buckets import KnownBucket

OURS, THEIRS = "0a" * 16, "0b" * 16
ONE, OTHER = "01" * 16, "02" * 16
URL = "file:///mnt/bucket"

USED, USED_BEFORE_IDS = KnownBucket(OURS, ONE), KnownBucket(OURS, "")


@pytest.mark.parametrize(
    ("known", "found", "result"),
    [
        (None, None, True),
        (None, Marker(OURS, ONE), False),
        (None, Marker(OURS), False),
        (None, Marker(THEIRS, ONE), WrongClusterError),
        (None, Marker(THEIRS), WrongClusterError),
        (USED, None, BucketLostError),
        (USED, Marker(OURS, ONE), False),
        (USED, Marker(OURS, OTHER), BucketLostError),
        (USED, Marker(OURS), BucketLostError),
        (USED, Marker(THEIRS, ONE), BucketLostError),
        (USED, Marker(THEIRS, OTHER), BucketLostError),
        (USED_BEFORE_IDS, None, BucketLostError),
        (USED_BEFORE_IDS, Marker(OURS), False),
        (USED_BEFORE_IDS, Marker(OURS, ONE), BucketLostError),
        (USED_BEFORE_IDS, Marker(THEIRS), BucketLostError),
    ],
)
def test_what_is_remembered_and_what_is_found(
    known: KnownBucket | None, found: Marker | None, result: bool | type[Exception]
) -> None:
    if isinstance(result, bool):
        assert is_first_use(URL, ClusterStore(OURS), known, found) is result
        return
    with pytest.raises(result) as caught:
        is_first_use(URL, ClusterStore(OURS), known, found)
    message = str(caught.value)
    assert URL in message
    remedy = "tier_url" if result is WrongClusterError else "icecore-node forget-bucket DATA"
    assert remedy in message


@pytest.mark.parametrize(
    ("known", "found", "is_refused"),
    [
        (None, None, True),
        (USED, None, True),
        (None, Marker(OURS, ONE), False),
        (USED, Marker(OURS, ONE), False),
        (None, Marker(OURS, OTHER), True),
        (KnownBucket(OURS, OTHER), Marker(OURS, OTHER), True),
        (None, Marker(OURS), True),
    ],
)
def test_a_node_uses_no_other_store_than_its_cluster(
    known: KnownBucket | None, found: Marker | None, is_refused: bool
) -> None:
    cluster = ClusterStore(OURS, store_id=ONE)
    if not is_refused:
        assert not is_first_use(URL, cluster, known, found)
        return
    with pytest.raises(BucketLostError, match=f"icecore tier forget-store {ONE}"):
        is_first_use(URL, cluster, known, found)


@pytest.mark.parametrize(
    ("found", "is_first"), [(None, True), (Marker(OURS, OTHER), False), (Marker(OURS, ONE), False)]
)
def test_a_store_that_was_given_up_is_not_missed(found: Marker | None, is_first: bool) -> None:
    cluster = ClusterStore(OURS, forgotten_id=ONE)
    assert is_first_use(URL, cluster, USED, found) is is_first


def test_only_the_store_that_was_given_up_is_not_missed() -> None:
    cluster = ClusterStore(OURS, forgotten_id=OTHER)
    with pytest.raises(BucketLostError):
        is_first_use(URL, cluster, USED, None)
    for unknown in (USED_BEFORE_IDS, USED):
        with pytest.raises(BucketLostError):
            is_first_use(URL, ClusterStore(OURS), unknown, None)


@pytest.mark.parametrize(
    ("marker", "stored"),
    [
        (Marker(OURS), f'{{"version": 1, "cluster_id": "{OURS}"}}'),
        (
            Marker(OURS, ONE),
            f'{{"version": 2, "cluster_id": "{OURS}", "store_id": "{ONE}"}}',
        ),
    ],
)
def test_markers_of_each_version(marker: Marker, stored: str) -> None:
    assert marker.encode() == stored.encode()
    assert parse_marker(stored.encode()) == marker


def test_ids_that_a_person_wrote_in_capitals_are_the_same() -> None:
    stored = json.dumps({"version": 2, "cluster_id": OURS.upper(), "store_id": ONE.upper()})
    assert parse_marker(stored.encode()) == Marker(OURS, ONE)
