"""A node's memory of a bucket and the marker there decide whether it may be used."""

import pytest

from icecore.errors import WrongClusterError
from icecore_node.remote.marker import (
    BucketLostError,
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
        assert is_first_use(URL, OURS, known, found) is result
        return
    with pytest.raises(result) as caught:
        is_first_use(URL, OURS, known, found)
    message = str(caught.value)
    assert URL in message
    remedy = "tier_url" if result is WrongClusterError else "icecore-node forget-bucket DATA"
    assert remedy in message


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
