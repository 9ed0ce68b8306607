"""docs/reference/formats.md is enough: a codec made from it agrees with its vectors and with ours.

``tests/support/format_codec.py`` is that codec. The vectors are those of
``docs/reference/format_vectors.json``, whose freshness is checked here, too.
"""

import ast
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icecore.codec import batch, record
from tests.support import format_codec as stranger

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "docs/reference/format_vectors.json").read_text())
BATCHES = [*VECTORS["batches"], *VECTORS["segment"]["batches"]]


def in_bytes(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of the vectors, with keys and values as bytes."""

    def raw(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    return [
        {
            **each,
            "key": raw(each["key"]),
            "value": raw(each["value"]),
            "headers": [(name, raw(value)) for name, value in each["headers"]],
        }
        for each in records
    ]


def test_the_stranger_imports_nothing_of_ours() -> None:
    tree = ast.parse(Path(stranger.__file__).read_text())
    plain = {n.name for each in ast.walk(tree) if isinstance(each, ast.Import) for n in each.names}
    names = plain | {e.module for e in ast.walk(tree) if isinstance(e, ast.ImportFrom)}
    assert names == {"hashlib", "struct", "typing", "lz4.frame", "zstandard"}


def test_vectors_are_fresh() -> None:
    command = [sys.executable, ROOT / "scripts" / "generate_format_vectors.py", "--check"]
    subprocess.run(command, check=True)


def test_hashes() -> None:
    for each in VECTORS["crc32c"]:
        assert stranger.crc32c(bytes.fromhex(each["bytes"])) == each["crc"]
    for each in VECTORS["keys"]:
        key = bytes.fromhex(each["key"])
        assert str(stranger.key_hash(key)) == each["hash"]
        assert stranger.partition_of(key, 6) == each["partition_of_6"]
        assert stranger.partition_of(key, 1000) == each["partition_of_1000"]
    for each in VECTORS["tags"]:
        assert str(stranger.xxh64(each["tag"].encode(), 43)) == each["hash"]
    for each in VECTORS["headers"]:
        value = bytes.fromhex(each["value"])
        assert str(stranger.header_hash(each["name"], value)) == each["hash"]


@pytest.mark.parametrize("vector", BATCHES, ids=lambda each: each["name"])
def test_the_stranger_reads(vector: dict[str, Any]) -> None:
    header, records = stranger.decode(bytes.fromhex(vector["batch"]))
    assert {name: header[name] for name in vector["header"]} == vector["header"]
    wanted = in_bytes(vector["records"])
    assert records == wanted


@pytest.mark.parametrize("vector", VECTORS["batches"], ids=lambda each: each["name"])
def test_the_stranger_writes(vector: dict[str, Any]) -> None:
    header, raw = vector["header"], bytes.fromhex(vector["batch"])
    names = ("producer_id", "base_sequence", "producer_epoch", "schema_id")
    ids = {name: header[name] for name in names}
    made = stranger.encode(in_bytes(vector["records"]), codec=header["codec"], **ids)
    if not header["codec"] and vector["name"] != "header_hashes":
        assert made == raw
    found = batch.check_produced(made, 0, batch.BatchLimits())
    record.check_columns(made, 0, found)
    ours = record.decode(made, 0, found).to_records()
    assert [each.value for each in ours] == [e["value"] for e in in_bytes(vector["records"])]


def test_segment() -> None:
    segment = VECTORS["segment"]
    seed = stranger.seed_of(segment)
    assert seed.hex() == segment["seed"]
    previous, digest = stranger.crc32c(seed), hashlib.sha256(seed).digest()
    assert (previous, digest.hex()) == (segment["chain_seed"], segment["digest_seed"])
    data = [bytes.fromhex(each["batch"]) for each in segment["batches"]]
    for each in data:
        header = stranger.header_of(each)
        assert header["prev_header_crc32c"] == previous
        previous = header["header_crc32c"]
        digest = hashlib.sha256(digest + each[:152]).digest()
    assert digest.hex() == segment["seal_digest"]
    assert stranger.full_digest(b"".join(data)).hex() == segment["full_digest"]


def test_full_digests() -> None:
    for each in VECTORS["full_digests"]:
        length = each["length"]
        data = (bytes(range(251)) * (length // 251 + 1))[:length]
        assert stranger.full_digest(data).hex() == each["digest"]


def test_slots_of_a_segment_file() -> None:
    segment, slots = VECTORS["segment"], bytes.fromhex(VECTORS["segment_file_slots"])
    for number, base in ((0, -1), (1, segment["base_offset"])):
        slot = slots[512 * number : 512 * (number + 1)]
        assert slot[:8] == b"iceseg\r\n"
        assert slot[8:16] == (1).to_bytes(4, "little") + (4096).to_bytes(4, "little")
        assert slot[16:48].hex() == segment["cluster_id"] + segment["topic_id"]
        assert int.from_bytes(slot[64:72], "little", signed=True) == base
        assert stranger.crc32c(slot[:508]) == int.from_bytes(slot[508:], "little")


def _random_columns(chance: random.Random) -> dict[str, Any]:
    count = chance.randrange(1, 40)

    def maybe() -> bytes | None:
        return None if chance.random() < 0.3 else chance.randbytes(chance.randrange(40))

    return {
        "values": [maybe() for _ in range(count)],
        "timestamps_ms": [chance.randrange(-(10**12), 10**12) for _ in range(count)],
        "keys": [maybe() for _ in range(count)] if chance.random() < 0.7 else None,
        "tags": [("a", "\u00df", "c")[: chance.randrange(4)] for _ in range(count)],
        "headers": [[("n\u00e4me", maybe())] * chance.randrange(3) for _ in range(count)],
    }


@pytest.mark.parametrize("seed", range(30))
def test_batches_of_the_real_codec_go_round(seed: int) -> None:
    columns = _random_columns(random.Random(seed))
    raw = record.encode_columns(**columns, codec=batch.Codec(seed % 3), producer_id=seed)
    header, records = stranger.decode(raw)
    assert [each["value"] for each in records] == columns["values"]
    assert [each["key"] for each in records] == (columns["keys"] or [None] * len(records))
    assert [tuple(each["tags"]) for each in records] == columns["tags"]
    assert [each["headers"] for each in records] == columns["headers"]
    again = stranger.encode(records, codec=header["codec"], producer_id=seed)
    assert again == raw


@pytest.mark.parametrize("at", [0, 4, 6, 8, 12, 20, 72, 80, 84, 88, 92, 96, 120, 148, 160, 200])
def test_a_changed_byte_is_refused(at: int) -> None:
    raw = bytearray.fromhex(VECTORS["batches"][4]["batch"])
    raw[at] ^= 1
    with pytest.raises(stranger.FormatError):
        stranger.decode(bytes(raw))
