"""Contents of a bucket: objects by topic and upload, manifests, files of tables, and unknown keys.

For tools that have nothing but the bucket. Only a manifest proves objects. Being there does not
make a copy published: the table says that, or metadata do.
"""

import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from icecore.codec.batch import Buffer
from icecore.errors import InvalidRequestError, WrongClusterError
from icecore.tier_records import topic_folder
from icecore_node.remote.format.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    StoredObject,
    TieredDamageError,
    parse_manifest,
)
from icecore_node.remote.format.stored_settings import (
    SETTINGS_BYTES_MAX,
    SETTINGS_PATH,
    parse_settings,
)
from icecore_node.remote.marker import MARKER_KEY, Marker, read_marker
from icecore_node.remote.store.object_store import (
    PROBE_PREFIX,
    ByteRange,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
)

EARLIER_PREFIX: Final = "_icecore/earlier"
"""Below it are ids of clusters whose objects were taken over."""
_MANIFEST: Final = ".manifest.json"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TOPIC = re.compile(rf"({_UUID})/(.+)")
_NAME = r"(\d+)/(\d{20})-(\d{20})-(\d+)-(\d+)"
_OBJECT = re.compile(rf"(?:{_NAME}\.parquet|_icecore/{_NAME}(?:\.manifest\.json|\.idx|\.batches))")
_TABLE = "_delta_log/"
_COMMIT = re.compile(r"_delta_log/(\d{20})\.(json|checkpoint\.(?:\d+\.\d+\.)?parquet)")
_HIVE = "_symlink_format_manifest/"


class CountingStore:
    """A store that counts its requests and the bytes read. See ``ObjectStore``."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = 0
        self.length_bytes = 0
        """Bytes read so far."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        """See ``ObjectStore.put_if_absent``."""
        self.requests += 1
        await self._store.put_if_absent(key, data)

    async def put_stream(self, key: str, pieces: AsyncIterator[Buffer]) -> int:
        """See ``ObjectStore.put_stream``."""
        self.requests += 1
        return await self._store.put_stream(key, pieces)

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``ObjectStore.get_ranges``."""
        self.requests += 1
        found = await self._store.get_ranges(key, ranges)
        self.length_bytes += sum(map(len, found))
        return found

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """See ``ObjectStore.get_whole``."""
        self.requests += 1
        found = await self._store.get_whole(key, bytes_max)
        self.length_bytes += len(found)
        return found

    async def head(self, key: str) -> ObjectInfo:
        """See ``ObjectStore.head``."""
        self.requests += 1
        return await self._store.head(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """See ``ObjectStore.list``."""
        self.requests += 1
        async for each in self._store.list(prefix):
            yield each

    async def delete(self, key: str) -> None:
        """See ``ObjectStore.delete``."""
        self.requests += 1
        await self._store.delete(key)


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """A manifest as it lies there."""

    manifest: Manifest
    sha256: bytes

    @property
    def path(self) -> str:
        """Path of its Parquet object, as the table would name it."""
        folder = topic_folder(self.manifest.facts.topic_id)
        return self.manifest.parquet.key.removeprefix(folder + "/")

    @property
    def length_bytes(self) -> int:
        """Size of all its objects."""
        return sum(each.size_bytes for each in objects_of(self.manifest))


def objects_of(manifest: Manifest) -> list[StoredObject]:
    """Return all objects that a manifest names."""
    return [each for each in (manifest.parquet, manifest.index, manifest.side) if each]


@dataclass
class TopicObjects:
    """Objects below the folder of one topic."""

    topic_id: bytes
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of all objects of uploads, by key."""
    has_table: bool = False
    commits: dict[int, str] = field(default_factory=dict)
    """Keys of the table's commits, by version."""
    checkpoint: int = -1
    """Version of the table's last checkpoint; -1 = it has none."""
    empty_commits: set[int] = field(default_factory=set)
    """Versions of the table's commits that have no bytes."""
    table_damage: str = ""
    """Why its table can't be read; empty = it can, or nobody has tried."""
    manifests: list[FoundManifest] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Reasons why manifests and settings can't be read, by key."""
    settings_keys: list[str] = field(default_factory=list)
    settings: dict[str, Any] | None = None
    """The newest settings that can be read; None = there are none."""
    settings_cluster_id: str = ""
    """Id of the cluster that stored them, in hexadecimal; empty = there are none."""
    partition_counts: tuple[int, ...] = ()
    """Numbers of partitions that the topic has had, as stored with them; empty = not stored."""
    name: str = ""
    """The topic's name, as stored with settings; empty = not stored."""
    is_deleted: bool = False
    """Settings say that the topic is deleted."""
    log_starts: tuple[int, ...] = ()
    """By partition, as stored with settings."""

    def partitions(self) -> int:
        """Return how many partitions the topic has, as far as settings and keys say it."""
        said = (self.settings or {}).get("partitions", 0)
        numbers = (int(_partition_of(each)) + 1 for each in self.sizes)
        return max([said if type(said) is int else 0, *self.partition_counts, *numbers])

    def without_manifest(self) -> list[str]:
        """Return keys of objects that no manifest names: an upload is under way, or was not
        finished."""
        named = {each.key for found in self.manifests for each in objects_of(found.manifest)}
        return [key for key in self.sizes if key not in named and not key.endswith(_MANIFEST)]

    def wrong_size(self, manifest: Manifest) -> str:
        """Return how the listing contradicts a manifest; empty = it does not."""
        rows = "" if self.is_bare(manifest) else self._wrong(manifest.parquet)
        return self.wrong_records(manifest) or self.wrong_index(manifest) or rows

    def is_bare(self, manifest: Manifest) -> bool:
        """Return whether a Parquet object without rows is gone: a vacuum takes it, as no table
        names it, and nobody misses it."""
        return not manifest.row_groups and manifest.parquet.key not in self.sizes

    def wrong_records(self, manifest: Manifest) -> str:
        """Return the same of objects with records. A Parquet object without rows is none."""
        parts = (manifest.parquet if manifest.row_groups else None, manifest.side)
        return next((why for each in parts if each and (why := self._wrong(each))), "")

    def wrong_index(self, manifest: Manifest) -> str:
        """Return the same of the index, without which a copy is searched by reading all of it."""
        return self._wrong(manifest.index) if manifest.index else ""

    def _wrong(self, named: StoredObject) -> str:
        size = self.sizes.get(named.key)
        if size is None:
            return f"{named.key} is not there"
        if size != named.size_bytes:
            return f"{named.key} has {size} bytes, not {named.size_bytes}"
        return ""


@dataclass
class Bucket:
    """All of a prefix."""

    cluster_id: str = ""
    """Id of the cluster that owns the prefix, in hexadecimal; empty = it has no marker."""
    store_id: str = ""
    """Id of the store in its marker; empty = it has none."""
    earlier: tuple[str, ...] = ()
    """Ids of earlier clusters whose objects it has taken over."""
    topics: dict[bytes, TopicObjects] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    """Keys that icecore does not use."""
    segment_ids_max: int = 0
    """Highest segment id in any key that was listed. Leftovers of uploads count, too."""
    attempts_max: int = 0
    """Highest attempt in any key that was listed."""
    objects: int = 0
    length_bytes: int = 0

    def is_ours(self, manifest: Manifest) -> bool:
        """Return whether a manifest's cluster is the owner or an earlier one; always when there is
        no owner."""
        found = manifest.facts.cluster_id.hex()
        return not self.cluster_id or self.knows(found)

    def knows(self, cluster_id: str) -> bool:
        """Return whether a cluster is the owner, or an earlier one."""
        return cluster_id in (self.cluster_id, *self.earlier)

    def clusters(self) -> Counter[str]:
        """Count copies by the cluster that made them, in hexadecimal."""
        return Counter(
            found.manifest.facts.cluster_id.hex()
            for topic in self.topics.values()
            for found in topic.manifests
        )


def _partition_of(key: str) -> str:
    """The number of a partition in the key of an upload's object."""
    return key.split("/")[-2]


async def read_bucket(
    store: ObjectStore, topic_ids: Sequence[bytes] = (), *, counts_all: bool = False
) -> Bucket:
    """List a prefix and read its manifests.

    Args:
        store: The prefix.
        topic_ids: Only these topics; none = all.
        counts_all: Whether the highest numbers are those of all topics. Then all keys are listed.

    Raises what an ObjectStore raises.
    """
    marker, earlier = await read_marker(store) or Marker(""), list[str]()
    bucket = Bucket(cluster_id=marker.cluster_id, store_id=marker.store_id)
    folders = [topic_folder(each) for each in topic_ids] or [""]
    if counts_all:
        folders = [""]
    elif topic_ids:
        folders.append(EARLIER_PREFIX)
    for folder in folders:
        async for each in store.list(folder):
            bucket.objects += 1
            bucket.length_bytes += each.size_bytes
            if each.key.startswith(EARLIER_PREFIX + "/"):
                earlier.append(each.key.removeprefix(EARLIER_PREFIX + "/"))
            elif not _sort(bucket, each):
                bucket.strange.append(each.key)
    bucket.earlier = (*sorted(earlier),)
    if topic_ids:
        bucket.topics = {key: each for key, each in bucket.topics.items() if key in topic_ids}
    for topic in bucket.topics.values():
        for key in sorted(each for each in topic.sizes if each.endswith(_MANIFEST)):
            await _read_manifest(store, topic, key)
        await _read_settings(store, topic)
    return bucket


async def read_numbers(store: ObjectStore, cluster_id: bytes) -> Bucket:
    """List all keys, and keep the highest numbers of a cluster's bucket alone.

    Raises what an ObjectStore raises, and WrongClusterError for the bucket of another cluster.
    """
    marker = await read_marker(store)
    if marker is not None and marker.cluster_id != cluster_id.hex():
        raise WrongClusterError(f"the bucket belongs to cluster {marker.cluster_id}")
    bucket = Bucket(cluster_id=cluster_id.hex())
    async for each in store.list(""):
        match = _TOPIC.fullmatch(each.key)
        upload = _OBJECT.fullmatch(match[2]) if match else None
        if upload:
            _count(bucket, upload)
    return bucket


async def list_log_again(store: ObjectStore, topic: TopicObjects) -> None:
    """Complete the log of a topic's table. A listing of a local folder in use can pass by a commit
    and still hold the next one. Raises what an ObjectStore raises."""
    folder = topic_folder(topic.topic_id) + "/"
    async for each in store.list(folder + _TABLE.rstrip("/")):
        _sort_commit(topic, each.key.removeprefix(folder), each)


def _sort(bucket: Bucket, found: ObjectInfo) -> bool:
    """Sort an object into the bucket. Return False for a key that icecore does not use."""
    if found.key == MARKER_KEY or found.key.startswith(PROBE_PREFIX + "/"):
        return True
    match = _TOPIC.fullmatch(found.key)
    if match is None:
        return False
    topic_id, path = UUID(match[1]).bytes, match[2]
    upload = _OBJECT.fullmatch(path)
    if not (upload or SETTINGS_PATH.fullmatch(path) or path.startswith((_TABLE, _HIVE))):
        return False
    if upload:
        _count(bucket, upload)
    topic = bucket.topics.setdefault(topic_id, TopicObjects(topic_id))
    if path.startswith(_TABLE):
        topic.has_table = True
        _sort_commit(topic, path, found)
    elif SETTINGS_PATH.fullmatch(path):
        topic.settings_keys.append(found.key)
    elif not path.startswith(_HIVE):
        topic.sizes[found.key] = found.size_bytes
    return True


def _sort_commit(topic: TopicObjects, path: str, found: ObjectInfo) -> None:
    commit = _COMMIT.fullmatch(path)
    if commit is not None and commit[2] == "json":
        topic.commits[int(commit[1])] = found.key
        if not found.size_bytes:
            topic.empty_commits.add(int(commit[1]))
    elif commit is not None:
        topic.checkpoint = max(topic.checkpoint, int(commit[1]))


def _count(bucket: Bucket, upload: re.Match[str]) -> None:
    numbers = upload.groups()
    _, _, segment_id, _, attempt = numbers[:5] if numbers[0] else numbers[5:]
    bucket.segment_ids_max = max(bucket.segment_ids_max, int(segment_id))
    bucket.attempts_max = max(bucket.attempts_max, int(attempt))


async def _read_settings(store: ObjectStore, topic: TopicObjects) -> None:
    for key in sorted(topic.settings_keys, reverse=True):
        try:
            data = await store.get_whole(key, SETTINGS_BYTES_MAX)
            found = parse_settings(data, topic.topic_id)
            topic.settings, topic.settings_cluster_id = found["settings"], found["cluster_id"]
            topic.name, topic.is_deleted = found.get("name", ""), found.get("is_deleted", False)
            # They only grow, so those of earlier settings hold, too.
            topic.log_starts = (*found.get("log_starts", ()),)
            # Where newer settings are damaged, the topic may have had more partitions since.
            is_newest = key == max(topic.settings_keys)
            topic.partition_counts = (*found.get("partition_counts", ()),) if is_newest else ()
            return
        except (TieredDamageError, InvalidRequestError, ObjectMissingError) as error:
            topic.unreadable[key] = error.message


async def _read_manifest(store: ObjectStore, topic: TopicObjects, key: str) -> None:
    try:
        data = await store.get_whole(key, MANIFEST_BYTES_MAX)
        manifest = parse_manifest(data)
        if manifest.key != key:
            raise TieredDamageError(f"it is the manifest of {manifest.key}")
    except ObjectMissingError:
        del topic.sizes[key]  # swept since it was listed
    except (TieredDamageError, InvalidRequestError) as error:
        topic.unreadable[key] = error.message
    else:
        topic.manifests.append(FoundManifest(manifest, hashlib.sha256(data).digest()))
