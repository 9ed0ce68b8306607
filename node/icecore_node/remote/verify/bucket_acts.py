"""Changes of a bucket by hand: its owner, and the list of files for readers of Hive.

Neither touches an object of a segment.
"""

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from icecore.errors import WrongClusterError
from icecore.rpc.ports import Rng
from icecore_node.remote.marker import MARKER_KEY, STORE_ID_BYTES, Marker
from icecore_node.remote.store.object_store import ObjectExistsError, ObjectStore
from icecore_node.remote.verify.bucket import EARLIER_PREFIX, Bucket

HIVE_FILE: Final = "_symlink_format_manifest/manifest"


async def take_over(
    store: ObjectStore, bucket: Bucket, cluster_id: bytes, adopted: Collection[str], rng: Rng
) -> bool:
    """Give a prefix to another cluster. Return whether anything changed.

    The old one is refused from its next look on, so it must be gone for good: two clusters would
    sweep each other's objects. Its id stays known, because its manifests bear it. The id of the
    store stays, since it is the same store; a prefix without a marker gets a new one. May be
    repeated.

    Args:
        store: The prefix.
        bucket: Its listing.
        cluster_id: Of the new owner.
        adopted: Ids of clusters whose copies are its own from now on, also where it is the owner
            already: nodes mark a prefix whose marker was lost.
        rng: Makes the id of a store that has no marker.

    Raises:
        WrongClusterError: Another cluster took it at the same time.
    """
    wanted = cluster_id.hex()
    earlier = {*adopted}
    if bucket.cluster_id not in ("", wanted):
        earlier |= {*bucket.clusters(), bucket.cluster_id}
    for each in sorted(earlier - {wanted, *bucket.earlier}):
        await _put(store, f"{EARLIER_PREFIX}/{each}", b"{}")
    if bucket.cluster_id == wanted:
        return False
    store_id = bucket.store_id
    if bucket.cluster_id:
        await store.delete(MARKER_KEY)
    else:
        store_id = rng.bytes(STORE_ID_BYTES).hex()
    try:
        await store.put_if_absent(MARKER_KEY, Marker(wanted, store_id).encode())
    except ObjectExistsError as error:
        raise WrongClusterError(
            f"another cluster put its id into {MARKER_KEY} just now: stop its nodes, and try again"
        ) from error
    return True


async def _put(store: ObjectStore, key: str, data: bytes) -> None:
    """Put an object whose content is the same for each caller; fine when it is there already."""
    try:
        await store.put_if_absent(key, data)
    except ObjectExistsError:
        return


async def write_hive_file(
    store: ObjectStore, url: str, topic_id: bytes, paths: Sequence[str]
) -> str:
    """Put the list of a table's files for readers that know Hive's symlink format and no Delta log.

    Publishing or retiring a copy later does not change the list. While it is replaced, there is
    none for a moment.

    Returns:
        Its URL.
    """
    folder = str(UUID(bytes=topic_id))
    root = f"{url.rstrip('/')}/{folder}"
    key = f"{folder}/{HIVE_FILE}"
    await store.delete(key)
    await store.put_if_absent(key, "".join(f"{root}/{each}\n" for each in sorted(paths)).encode())
    return f"{root}/{HIVE_FILE}"
