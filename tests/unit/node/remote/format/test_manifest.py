"""A manifest is read as it was written, or not at all."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from icecore_node.remote.format.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    StoredObject,
    TieredDamageError,
    parse_manifest,
)
from icecore_node.remote.format.parquet_object import raw_batches
from tests.support.tiered import encoded, flights, manifest_of, source_of, undecodable


def made() -> Manifest:
    source = source_of([*flights(6), undecodable(), *flights(3)])
    _, found = encoded(source, row_group_bytes=20_000)
    side = b"".join(raw_batches(source.runs, found.raw_batches))
    index = StoredObject(key=source.facts.key(4, ".idx"), size_bytes=9, sha256=b"i" * 32)
    return replace(manifest_of(source, found, side), index=index)


MANIFEST = made()


def rewritten(change: Callable[[Any], object]) -> bytes:
    """Return a manifest as rewritten by a program that knows the format and the digest in it."""
    found = json.loads(MANIFEST.encode())
    del found["version"], found["sha256"]
    change(found)
    body = json.dumps(found, separators=(",", ":")).encode()
    digest = hashlib.sha256(body).hexdigest()
    return b'{"version":1,' + body[1:-1] + f',"sha256":"{digest}"}}'.encode()


def test_it_is_read_as_it_was_written() -> None:
    data = MANIFEST.encode()
    assert parse_manifest(data) == MANIFEST
    assert parse_manifest(data, hashlib.sha256(data).digest()) == MANIFEST
    assert parse_manifest(rewritten(lambda _: None)) == MANIFEST


def test_names_of_its_objects() -> None:
    name = "00000000000000001000-00000000000000000077-1-4"
    topic = "64656667-6869-6a6b-6c6d-6e6f70717273"
    assert MANIFEST.parquet.key == f"{topic}/3/{name}.parquet"
    assert MANIFEST.key == f"{topic}/_icecore/3/{name}.manifest.json"
    assert MANIFEST.side is not None
    assert MANIFEST.side.key == f"{topic}/_icecore/3/{name}.batches"


def test_another_manifest_than_the_published_one() -> None:
    other = replace(MANIFEST, attempt=5, index=None)
    with pytest.raises(TieredDamageError, match="not the one that was published"):
        parse_manifest(other.encode(), hashlib.sha256(MANIFEST.encode()).digest())


def test_no_byte_may_change() -> None:
    data = MANIFEST.encode()
    for at in range(0, len(data), 7):
        for changed in (data[at] ^ 1, data[at] ^ 0x20):
            with pytest.raises(TieredDamageError):
                parse_manifest(data[:at] + bytes([changed]) + data[at + 1 :])
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(TieredDamageError):
            parse_manifest(data[:cut])
    with pytest.raises(TieredDamageError):
        parse_manifest(data + b" ")


@pytest.mark.parametrize(
    "data",
    [b"[]", b"null", b'{"version":1}', b'{"version":2}', b"\xff", b"[" * 100_000, b"{" * 10],
)
def test_what_is_no_manifest(data: bytes) -> None:
    with pytest.raises(TieredDamageError):
        parse_manifest(data)


def test_one_that_is_too_large() -> None:
    with pytest.raises(TieredDamageError):
        parse_manifest(b" " * (MANIFEST_BYTES_MAX + 1))


def _set(*path: Any) -> Callable[[Any], object]:
    *way, last, value = path

    def change(found: Any) -> None:
        for step in way:
            found = found[step]
        found[last] = value

    return change


FIRST = ("row_groups", 0)


@pytest.mark.parametrize(
    "change",
    [
        _set("attempt", -1),
        _set("attempt", True),
        _set("attempt", 4.0),
        _set("attempt", "4"),
        _set("attempt", 1 << 63),
        _set("attempt", 5),
        _set("surprise", 1),
        lambda found: found.pop("records"),
        lambda found: found["facts"].pop("epoch"),
        _set("facts", []),
        _set("facts", "topic", None),
        _set("facts", "topic_id", "00"),
        _set("facts", "topic_id", "zz" * 16),
        _set("facts", "cluster_id", "AB" * 16),
        _set("facts", "base_offset", 999),
        _set("facts", "end_offset", 1 << 40),
        _set("facts", "seal_digest", ""),
        _set("facts", "full_digest", "00" * 33),
        _set("content_digest", "00" * 33),
        _set("records", 1),
        _set("parquet", "key", "somewhere/else"),
        _set("parquet", "size_bytes", 100),
        _set("footer_start", 1),
        _set("footer_start", 1 << 40),
        _set("row_groups", []),
        _set("row_groups", {}),
        _set(*FIRST, "start", 5),
        _set(*FIRST, "end", 5),
        _set(*FIRST, "records", 0),
        _set(*FIRST, "min_timestamp_ms", 1 << 50),
        _set(*FIRST, "max_timestamp_ms", 1 << 60),
        _set(*FIRST, "min_timestamp_ms", -(1 << 50)),
        _set(*FIRST, "sha256", "00"),
        _set(*FIRST, "end_offset", 1000),
        _set(*FIRST, "base_offset", 1001),
        lambda found: found["row_groups"].reverse(),
        lambda found: found["row_groups"].pop(),
        lambda found: found["row_groups"].append(found["row_groups"][-1]),
        _set("index", "key", "somewhere/else"),
        _set("side", None),
        _set("raw_batches", []),
        _set("raw_batches", 0, "end", 3),
        _set("raw_batches", 0, "base_offset", 1001),
    ],
)
def test_one_that_contradicts_itself(change: Callable[[Any], object]) -> None:
    with pytest.raises(TieredDamageError):
        parse_manifest(rewritten(change))


def test_one_written_in_another_way() -> None:
    found = json.loads(MANIFEST.encode())
    with pytest.raises(TieredDamageError, match="not in canonical form"):
        parse_manifest(json.dumps(found, separators=(",", ": ")).encode())


def test_indexed_headers_make_it_one_of_version_2() -> None:
    assert b"indexed_headers" not in MANIFEST.encode(), "the form of version 1 stays as it was"
    named = replace(MANIFEST, indexed_headers=("carrier", "airport"))
    data = named.encode()
    assert json.loads(data)["version"] == 2
    assert parse_manifest(data) == named


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("names", [[], ["x", "x"], [""], [7], [["x"]], "x", {"x": 1}, None, 5])
def test_what_are_no_indexed_headers(version: int, names: Any) -> None:
    data = rewritten(_set("indexed_headers", names))
    with pytest.raises(TieredDamageError):
        parse_manifest(data.replace(b'"version":1', b'"version":%d' % version, 1))


def test_version_1_names_no_headers() -> None:
    data = rewritten(_set("indexed_headers", ["carrier"]))
    with pytest.raises(TieredDamageError, match="not in canonical form"):
        parse_manifest(data)
    assert parse_manifest(data.replace(b'"version":1', b'"version":2', 1)).indexed_headers
