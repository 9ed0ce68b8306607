"""The marker of a bucket: whose it is, and which store it is.

The first cluster puts it before anything else is written, and nobody puts it twice: a node that has
used a bucket and does not find the marker again looks at another place, or at one that was emptied.
It must not begin there anew, since local copies go once their segments are published.
"""

import json
from dataclasses import dataclass
from typing import Final

from icecore.errors import WrongClusterError
from icecore_node.remote.store.object_store import (
    BucketMissingError,
    ObjectMissingError,
    ObjectStore,
    ObjectStoreSetupError,
)
from icecore_node.storage.control.known_buckets import KnownBucket

MARKER_KEY: Final = "_icecore/cluster.json"
MARKER_BYTES_MAX: Final = 4096
STORE_ID_BYTES: Final = 16
_REMEDY: Final = "mount it, or put the bucket back; if the bucket is gone for good: "


class BucketLostError(ObjectStoreSetupError):
    """The bucket that this node or its cluster has used is not the one that is there now."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The content of a marker; both ids in hexadecimal."""

    cluster_id: str
    store_id: str = ""
    """Random, made with the marker; it stays when the bucket gets another owner. Empty for a marker
    of earlier versions."""

    def encode(self) -> bytes:
        """Return the object."""
        if not self.store_id:
            return json.dumps({"version": 1, "cluster_id": self.cluster_id}).encode()
        found = {"version": 2, "cluster_id": self.cluster_id, "store_id": self.store_id}
        return json.dumps(found).encode()


def parse_marker(data: bytes) -> Marker:
    """Parse a marker. Raises ObjectStoreSetupError when it does not say whose the bucket is."""
    try:
        found = json.loads(data)
        ids = found["cluster_id"], found.get("store_id", "")
        marker = Marker(*(str(each).lower() for each in ids))  # people may have written it
        if len(bytes.fromhex(marker.store_id)) not in (0, STORE_ID_BYTES):
            raise ValueError("its store_id is none")
        return marker
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ObjectStoreSetupError(
            f"{MARKER_KEY} does not say whose the object store is: put it back from a version "
            "that the store keeps. To restore the bucket into a new cluster, move it out instead"
        ) from error


async def read_marker(store: ObjectStore) -> Marker | None:
    """Read the marker of a bucket; None when there is none. Raises what the store raises, and
    ObjectStoreSetupError for a marker that can't be read."""
    try:
        return parse_marker(await store.get_whole(MARKER_KEY, MARKER_BYTES_MAX))
    except ObjectMissingError:
        return None


async def find_marker(store: ObjectStore, known: KnownBucket | None) -> Marker | None:
    """See ``read_marker``. A bucket that was there and is not is one without a marker."""
    try:
        return await read_marker(store)
    except BucketMissingError:
        if known is None:
            raise
        return None


@dataclass(frozen=True, slots=True)
class ClusterStore:
    """The object store of a cluster, as its coordinator knows it; all ids in hexadecimal."""

    cluster_id: str
    store_id: str = ""
    """Empty while none is known."""
    forgotten_id: str = ""
    """The last one that a person gave up."""


def is_first_use(
    url: str, cluster: ClusterStore, known: KnownBucket | None, found: Marker | None
) -> bool:
    """Judge a bucket by what is known of it and what is there.

    Args:
        url: Where it is, for people.
        cluster: What the coordinator knows.
        known: What the node remembers; None = it never used a bucket at this URL.
        found: The marker; None = there is none.

    Returns:
        Whether it has to be marked now: nobody used it before. False = it is ours.

    Raises:
        WrongClusterError: Another cluster was first here.
        BucketLostError: It is not the bucket that this node or the cluster has used.
    """
    if known is not None and known.store_id and known.store_id == cluster.forgotten_id:
        known = None
    way_out = (
        f"icecore tier forget-store {cluster.store_id}"
        if cluster.store_id
        else "stop the node, and run icecore-node forget-bucket DATA"
    )
    if found is None:
        if known is None and not cluster.store_id:
            return True
        who = "this node" if known is not None else "this cluster"
        raise BucketLostError(
            f"{url} is not there, or was emptied: {who} has used it, and {MARKER_KEY} is "
            f"missing. No upload goes there: {_REMEDY}{way_out}"
        )
    if found.cluster_id != cluster.cluster_id:
        said = (
            f"{url} belongs to cluster {found.cluster_id}, this node is of cluster "
            f"{cluster.cluster_id}"
        )
        if known is None:
            raise WrongClusterError(f"{said}: give each cluster a prefix of its own in tier_url")
        raise BucketLostError(f"{said} and has used a bucket of its own there: {_REMEDY}{way_out}")
    used = [("this cluster", cluster.store_id)] if cluster.store_id else []
    used += [("this node", known.store_id)] if known is not None else []
    for who, store_id in used:
        if found.store_id != store_id:
            raise BucketLostError(
                f"{url} is another store than the one that {who} has used: its marker has store "
                f"id {found.store_id or 'none'}, not {store_id or 'none'}. Is tier_endpoint "
                f"right? Else {_REMEDY}{way_out}"
            )
    return False
