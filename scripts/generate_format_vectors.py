"""Write `docs/reference/format_vectors.json` from the real codec, or check that it is fresh.

docs/reference/formats.md says what the bytes are; the vectors are examples of all of it for authors
of codecs in other languages. Numbers of 64 bits that a float cannot hold are strings of digits.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from icecore.codec import chain, hashes
from icecore.codec.batch import Codec, parse_header, stamp
from icecore.codec.checksum import crc32c
from icecore.codec.record import decode, encode_columns, partition_for_key
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.segment_engine.segment_header import encode_file_header
from icecore_replication.digest import LEAF_BYTES, FullDigest

TARGET = Path(__file__).resolve().parent.parent / "docs/reference/format_vectors.json"
TIMES = [1_700_000_000_000, 1_699_999_999_999, 1_700_000_000_001]
COLUMNS: dict[str, Any] = {
    "values": [b"one", None, b""],
    "timestamps_ms": TIMES,
    "keys": [b"k1", None, b""],
    "tags": [("red", "\u00e9t\u00e9"), (), ("red",)],
    "headers": [(("trace", b"1"), ("none", None)), (), (("", b""),)],
}
BATCHES: dict[str, dict[str, Any]] = {
    "one_value": {"values": [b"hello"], "timestamps_ms": [TIMES[0]]},
    "key": {"values": [b"hello"], "timestamps_ms": [TIMES[0]], "keys": [b"k1"]},
    "tombstone": {"values": [None], "timestamps_ms": [TIMES[0]], "keys": [b"k1"]},
    "nine_records": {"values": [b"%d" % n for n in range(9)], "timestamps_ms": [*range(9)]},
    "all_columns": COLUMNS,
    "header_hashes": {
        **COLUMNS,
        "header_hashes": hashes.header_hashes(COLUMNS["headers"], {"trace"}),
    },
    "idempotent": {
        **COLUMNS,
        "producer_id": 77,
        "producer_epoch": 2,
        "base_sequence": 5,
        "schema_id": 9,
    },
    "lz4": {**COLUMNS, "codec": Codec.LZ4},
    "zstd": {**COLUMNS, "codec": Codec.ZSTD},
}
IDS = {"cluster_id": bytes(range(16)), "topic_id": bytes(range(16, 32))}
SEGMENT: dict[str, Any] = {"partition": 3, "segment_id": 7, "base_offset": 100, "epoch": 4}


def batch_vector(name: str, raw: bytes) -> dict[str, Any]:
    """One whole batch: its bytes, the fields of its header, and its records."""
    header = parse_header(raw)
    records = [
        {
            "offset": each.offset,
            "timestamp_ms": each.timestamp_ms,
            "key": None if each.key is None else each.key.hex(),
            "value": None if each.value is None else each.value.hex(),
            "tags": list(each.tags),
            "headers": [[name, v if v is None else v.hex()] for name, v in each.headers],
        }
        for each in decode(raw, 0, header).to_records()
    ]
    fields = {name: int(value) for name, value in header._asdict().items()}
    return {"name": name, "header": fields, "records": records, "batch": raw.hex()}


def chained() -> dict[str, Any]:
    """Two batches stamped as the first of one segment, its seeds and its digests."""
    seed = chain.segment_seed(**IDS, **SEGMENT)
    previous, digest = chain.chain_seed(seed), chain.digest_seed(seed)
    found = {"seed": seed.hex(), "chain_seed": previous, "digest_seed": digest.hex()}
    batches, full, offset = [], FullDigest(), int(SEGMENT["base_offset"])
    for name in ("one_value", "all_columns"):
        raw = encode_columns(**BATCHES[name])
        header = parse_header(raw)
        front, previous = stamp(
            raw,
            0,
            header,
            segment_id=SEGMENT["segment_id"],
            epoch=SEGMENT["epoch"],
            base_offset=offset,
            append_timestamp_ms=TIMES[2] + offset,
            high_watermark=offset,
            prev_header_crc32c=previous,
        )
        digest = chain.digest_step(digest, front)
        stamped = front + raw[len(front) :]
        full.update(stamped)
        batches.append(batch_vector(name, stamped))
        offset += header.record_count
    return {
        **{name: value.hex() for name, value in IDS.items()},
        **SEGMENT,
        **found,
        "batches": batches,
        "seal_digest": digest.hex(),
        "full_digest": full.digest().hex(),
    }


def full_digests() -> list[dict[str, Any]]:
    """Return the full digests of several lengths of bytes, the n-th of which is n modulo 251."""
    found = []
    for length in (0, 1, LEAF_BYTES, LEAF_BYTES + 1, 3 * LEAF_BYTES + 5):
        full = FullDigest()
        full.update((bytes(range(251)) * (length // 251 + 1))[:length])
        found.append({"length": length, "digest": full.digest().hex()})
    return found


def vectors() -> dict[str, Any]:
    """All of the document."""
    keys = [b"", b"k1", b"customer-17", bytes(range(32)), bytes(range(200))]
    identity = SegmentIdentity(**IDS, **SEGMENT, generation=0)
    return {
        "format": "icecore batch 1; see docs/reference/formats.md",
        "crc32c": [{"bytes": b.hex(), "crc": crc32c(b)} for b in (b"", b"123456789", bytes(32))],
        "keys": [
            {
                "key": key.hex(),
                "hash": str(hashes.key_hash(key)),
                "partition_of_6": partition_for_key(key, 6),
                "partition_of_1000": partition_for_key(key, 1000),
            }
            for key in keys
        ],
        "tags": [
            {"tag": t, "hash": str(hashes.tag_hash(t.encode()))} for t in ("red", "\u00e9t\u00e9")
        ],
        "headers": [
            {"name": name, "value": value.hex(), "hash": str(hashes.header_hash(name, value))}
            for name, value in (("trace", b"1"), ("", b""))
        ],
        "batches": [batch_vector(name, encode_columns(**each)) for name, each in BATCHES.items()],
        "segment": chained(),
        "full_digests": full_digests(),
        "segment_file_slots": encode_file_header(identity, is_confirmed=True)[:1024].hex(),
    }


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Without the bytes of compressed batches: other versions of a compressor find other ones."""
    exact = [each for each in document["batches"] if not each["header"]["codec"]]
    records = [each["records"] for each in document["batches"]]
    return {**document, "batches": exact, "records": records}


def main() -> None:
    """Bring the file up to date, or with --check exit 1 if it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    fresh = vectors()
    if parser.parse_args().check:
        committed = json.loads(TARGET.read_text()) if TARGET.exists() else {"batches": []}
        if comparable(fresh) != comparable(committed):
            sys.exit(f"{TARGET.name} is stale, run `make contract`")
        return
    TARGET.write_text(json.dumps(fresh, indent=1) + "\n")


if __name__ == "__main__":
    main()
