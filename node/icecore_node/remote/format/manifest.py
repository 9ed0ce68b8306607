"""The manifest of a tiered segment: the objects that it consists of, and the proof of each.

JSON, so that people can read it, and strict: the parser refuses a missing or unknown key, a number
out of range, and parts that do not cover the segment. The coordinator's metadata hold the SHA-256
of the manifest, and it holds those of everything else, down to each row group. So every byte that
is parsed was proved before. A manifest also has a digest of itself. When metadata are rebuilt from
a bucket alone, there is nothing else to compare it with; it shows damage, though not forgery.

Keys are never reused: ``attempt`` counts the uploads of a segment, and metadata give each number
once. Only Parquet objects lie where readers of tables look for files; the others are below a folder
whose name begins with an underscore, which Spark, Hive and Delta's vacuum pass by::

    TOPIC/PARTITION/BASE-SEGMENT-GENERATION-ATTEMPT.parquet
    TOPIC/_icecore/PARTITION/BASE-SEGMENT-GENERATION-ATTEMPT.manifest.json | .idx | .batches
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Final, TypeVar

from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from icecore.errors import InvalidRequestError, StorageError
from icecore.model import Epoch, Generation, Segment, SegmentId
from icecore.tier_records import ROWS, copy_name, rows_key, topic_folder
from icecore.topic_settings import check_indexed_headers
from icecore_node.remote.format.content_digest import is_content_digest
from icecore_replication.digest import is_full_digest

VERSION: Final = 1
HEADERS_VERSION: Final = 2
"""Version of a manifest that names indexed headers. All others have the form of version 1."""
MANIFEST_BYTES_MAX: Final = 16 << 20
PARQUET_MAGIC: Final = b"PAR1"
MANIFEST: Final = ".manifest.json"
INDEX: Final = ".idx"
SIDE: Final = ".batches"
SUFFIXES: Final = (MANIFEST, ROWS, INDEX, SIDE)
"""Suffixes of all objects of a copy, in the order in which they are removed."""
_ID_LENGTH = 16
_HASH_LENGTH = 32
_NUMBER_MAX = (1 << 63) - 1

T = TypeVar("T")


class TieredDamageError(StorageError):
    """A tiered copy is not what was published. Nothing of it may be served; another copy may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyName:
    """Names an upload of a segment: the keys of its objects are made of these."""

    topic_id: bytes
    partition: int
    segment_id: SegmentId
    generation: Generation
    base_offset: int
    attempt: int

    def key(self, suffix: str) -> str:
        """Return the key of one object; the suffix is one of ``SUFFIXES``."""
        if suffix == ROWS:
            return rows_key(
                self.topic_id,
                self.partition,
                self.base_offset,
                self.segment_id,
                self.generation,
                self.attempt,
            )
        numbers = self.base_offset, self.segment_id, self.generation, self.attempt
        name = copy_name(*numbers)
        return f"{topic_folder(self.topic_id)}/_icecore/{self.partition}/{name}{suffix}"

    @property
    def path(self) -> str:
        """Path of the rows' object below the topic's folder, as the table names it."""
        return self.key(ROWS).removeprefix(topic_folder(self.topic_id) + "/")


@dataclass(frozen=True, slots=True)
class PublishedCopy:
    """A published copy, as metadata have it."""

    name: CopyName
    manifest_sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Identity and properties of a segment, as its tiered copy records them."""

    cluster_id: bytes
    topic_id: bytes
    topic: str
    partition: int
    segment_id: SegmentId
    generation: Generation
    epoch: Epoch
    base_offset: int
    end_offset: int
    seal_digest: bytes
    full_digest: bytes
    """Full digest of the batches that it was made from; empty when it was not known yet."""

    def key(self, attempt: int, suffix: str = ROWS) -> str:
        """Return the key of an object of this segment."""
        return CopyName(
            topic_id=self.topic_id,
            partition=self.partition,
            segment_id=self.segment_id,
            generation=self.generation,
            base_offset=self.base_offset,
            attempt=attempt,
        ).key(suffix)


def facts_of(segment: Segment, cluster_id: bytes = b"") -> SegmentFacts:
    """Return the facts in a segment's record. The names of objects do not need the cluster id."""
    return SegmentFacts(
        cluster_id=cluster_id,
        topic_id=segment.topic_id,
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        generation=segment.generation,
        epoch=segment.epoch,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        seal_digest=segment.seal_digest,
        full_digest=segment.full_digest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object, and what its bytes are."""

    key: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Some rows of the Parquet object: bytes of it that can be read alone."""

    start: int
    end: int
    base_offset: int
    """Offset at which the first of its batches began."""
    end_offset: int
    records: int
    min_timestamp_ms: int
    """Lowest event time."""
    max_timestamp_ms: int
    max_append_timestamp_ms: int
    sha256: bytes

    @property
    def is_dense(self) -> bool:
        """Return whether every offset has a row."""
        return self.records == self.end_offset - self.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    """Batches as they were stored, one behind the other. They have no rows: they are undecodable or
    empty, or the copy is in the segment's own format."""

    start: int
    end: int
    base_offset: int
    end_offset: int
    max_append_timestamp_ms: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole tiered copy of one segment."""

    facts: SegmentFacts
    attempt: int
    content_digest: bytes
    records: int
    """Number of records in rows; 0 in a copy in the segment's own format."""
    parquet: StoredObject
    footer_start: int
    """Position of the footer; a reader of the Parquet object reads from here to the end, once."""
    footer_sha256: bytes
    row_groups: tuple[RowGroup, ...]
    index: StoredObject | None = None
    """The index file as it lay beside the segment, if it had one."""
    side: StoredObject | None = None
    raw_batches: tuple[RawBatch, ...] = ()
    """Parts of the side object."""
    indexed_headers: tuple[str, ...] = ()
    """Headers whose hashes are with every record. A manifest of version 1 does not say them."""

    @property
    def key(self) -> str:
        """Key of the manifest itself."""
        return self.facts.key(self.attempt, MANIFEST)

    def encode(self) -> bytes:
        """Encode the manifest as it is put."""
        body = _plain(asdict(self))
        if not self.indexed_headers:
            del body["indexed_headers"]
        version = HEADERS_VERSION if self.indexed_headers else VERSION
        return _json({"version": version, **body, "sha256": _own_digest(body)})


def parse_manifest(data: bytes, sha256: bytes | None = None) -> Manifest:
    """Parse a manifest, as it was put.

    Args:
        data: All of the object.
        sha256: Its hash in metadata; None when there are no metadata.

    Raises:
        TieredDamageError: It is another one, or not one of ours in every detail.
    """
    if sha256 is not None and hashlib.sha256(data).digest() != sha256:
        raise TieredDamageError("the manifest is not the one that was published")
    try:
        manifest = _manifest(_object(data))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TieredDamageError(f"not a manifest: {error}") from error
    if manifest.encode() != data:
        raise TieredDamageError(
            "manifest is not in canonical form: another program wrote or changed it"
        )
    _check(manifest)
    return manifest


def parse_published(data: bytes, copy: PublishedCopy) -> Manifest:
    """Parse the manifest of a published copy. Raises TieredDamageError when it is another one."""
    manifest = parse_manifest(data, copy.manifest_sha256)
    key = copy.name.key(MANIFEST)
    if manifest.key != key:
        raise TieredDamageError(f"{key} is the manifest of {manifest.key}")
    return manifest


# --- JSON -----------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


def _own_digest(body: Any) -> str:
    return hashlib.sha256(_json(body)).hexdigest()


def _object(data: bytes) -> dict[str, Any]:
    """Parse the JSON and check version and digest."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes")
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("no object")
    if found.pop("version", None) not in (VERSION, HEADERS_VERSION):
        raise ValueError("another version")
    if found.pop("sha256", None) != _own_digest(found):
        raise ValueError("its own digest does not fit")
    return found


def _manifest(found: dict[str, Any]) -> Manifest:
    index, side = found["index"], found["side"]
    values = {
        **found,
        "facts": _value(SegmentFacts, found["facts"]),
        "parquet": _value(StoredObject, found["parquet"]),
        "row_groups": tuple(_value(RowGroup, each) for each in found["row_groups"]),
        "index": None if index is None else _value(StoredObject, index),
        "side": None if side is None else _value(StoredObject, side),
        "raw_batches": tuple(_value(RawBatch, each) for each in found["raw_batches"]),
        "indexed_headers": tuple(found.get("indexed_headers", ())),
    }
    nested = {name: values.pop(name) for name in [*_NESTED]}
    return Manifest(**_scalars(Manifest, values), **nested)


_NESTED = ("facts", "parquet", "row_groups", "index", "side", "raw_batches", "indexed_headers")


def _value(cls: type[T], found: Any) -> T:
    if not isinstance(found, dict):
        raise ValueError(f"no {cls.__name__}")
    return cls(**_scalars(cls, found))


def _scalars(cls: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Numbers, texts and bytes, each of the type that the field has."""
    types = {each.name: each.type for each in fields(cls) if each.name not in _NESTED}
    if set(found) != set(types):
        raise ValueError(f"{cls.__name__} with {sorted(set(found) ^ set(types))}")
    return {name: _scalar(name, types[name], value) for name, value in found.items()}


def _scalar(name: str, type_: Any, value: Any) -> Any:
    if type_ is bytes:
        if not isinstance(value, str):
            raise ValueError(f"{name} is no text")
        return bytes.fromhex(value)
    if type_ is str:
        if not isinstance(value, str):
            raise ValueError(f"{name} is no text")
        return value
    least = MIN_TIMESTAMP_MS if name.endswith("timestamp_ms") else 0
    if type(value) is not int or not least <= value <= _NUMBER_MAX:
        raise ValueError(f"{name} is {value!r}")
    return value


# --- what must be true of it ----------------------------------------------------------------------


def _check(manifest: Manifest) -> None:
    facts = manifest.facts
    parts: list[RowGroup | RawBatch] = [*manifest.row_groups, *manifest.raw_batches]
    hashes = [manifest.footer_sha256, *(each.sha256 for each in parts)]
    objects = [each for each in (manifest.parquet, manifest.index, manifest.side) if each]
    hashes += [each.sha256 for each in objects]
    _demand(len(facts.cluster_id) == len(facts.topic_id) == _ID_LENGTH, "ids")
    _demand(all(len(each) == _HASH_LENGTH for each in hashes), "hashes")
    _demand(len(facts.seal_digest) == _HASH_LENGTH, "the seal digest")
    _demand(not facts.full_digest or is_full_digest(facts.full_digest), "the full digest")
    _demand(is_content_digest(manifest.content_digest), "the content digest")
    _demand(manifest.parquet.key == facts.key(manifest.attempt), "the key")
    for each, suffix in ((manifest.index, INDEX), (manifest.side, SIDE)):
        _demand(each is None or each.key == facts.key(manifest.attempt, suffix), f"{suffix} key")
    _demand((manifest.side is None) == (not manifest.raw_batches), "the side object")
    _check_headers(manifest.indexed_headers)
    _check_places(manifest)
    _check_offsets(facts, parts)


def _check_headers(names: tuple[Any, ...]) -> None:
    _demand(all(isinstance(each, str) for each in names), "indexed headers")
    try:
        check_indexed_headers(names)
    except InvalidRequestError as error:
        raise TieredDamageError(f"a manifest that contradicts itself: {error.message}") from error


def _check_places(manifest: Manifest) -> None:
    groups, raw = manifest.row_groups, manifest.raw_batches
    rows_end = groups[-1].end if groups else len(PARQUET_MAGIC)
    size = manifest.parquet.size_bytes
    _demand(_is_tiled(groups, len(PARQUET_MAGIC), rows_end), "places of row groups")
    _demand(rows_end <= manifest.footer_start < size - len(PARQUET_MAGIC), "the footer's place")
    _demand(all(each.records for each in groups), "a row group without rows")
    for each in groups:
        _demand(each.min_timestamp_ms <= each.max_timestamp_ms <= MAX_TIMESTAMP_MS, "event times")
    _demand(sum(each.records for each in groups) == manifest.records, "the number of records")
    side_end = manifest.side.size_bytes if manifest.side else 0
    _demand(_is_tiled(raw, 0, side_end), "places of raw batches")


def _is_tiled(parts: Sequence[RowGroup | RawBatch], start: int, end: int) -> bool:
    edges = [(start, start), *((each.start, each.end) for each in parts), (end, end)]
    meet = all(before[1] == after[0] for before, after in pairwise(edges))
    return meet and all(each.start < each.end for each in parts)


def _check_offsets(facts: SegmentFacts, parts: Sequence[RowGroup | RawBatch]) -> None:
    offset = facts.base_offset
    for each in sorted(parts, key=lambda part: part.base_offset):
        is_next = each.base_offset == offset and each.end_offset > offset
        _demand(is_next, f"offset {offset} is in no part, or in two")
        if isinstance(each, RowGroup):
            _demand(each.records <= each.end_offset - offset, "too many records")
        offset = each.end_offset
    _demand(offset == facts.end_offset, f"parts end at {offset}, not {facts.end_offset}")


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise TieredDamageError(f"a manifest that contradicts itself: {what}")
