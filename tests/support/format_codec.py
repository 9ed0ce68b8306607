"""A codec of batches as a stranger would write it: from docs/reference/formats.md alone.

It imports no package of the project, and neither its CRC nor its hash: both are written out here,
so that the document is what is tested. Slow, and strict where the document says that a reader
refuses.
"""

import hashlib
import struct
from typing import Any

import lz4.frame
import zstandard

HEADER = struct.Struct("<IHHIIQQqqqqqIIIIIIIIqqQQIII4x")
NAMES = (
    *("magic", "version", "header_length", "batch_length", "header_crc32c", "segment_id", "epoch"),
    *("base_offset", "end_offset", "append_timestamp_ms", "high_watermark", "delete_horizon_ms"),
    *("prev_header_crc32c", "leader_flags", "producer_crc32c", "producer_flags", "codec"),
    *("record_count", "index_length", "uncompressed_length", "min_timestamp_ms"),
    *("max_timestamp_ms", "producer_id", "base_sequence", "producer_epoch", "schema_id"),
    "payload_length",
)
NO_KEYS, NO_TAGS, NO_HEADERS, NO_HEADER_HASHES = 1, 2, 4, 8
MASK = (1 << 64) - 1
PRIMES = (
    *(0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
    *(0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
)


class FormatError(ValueError):
    """The bytes are not what the document says."""


def require(holds: bool, what: str) -> None:
    """Raise FormatError unless it holds."""
    if not holds:
        raise FormatError(what)


# --- checksums and hashes -----------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Castagnoli, reflected, start and end inverted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & MASK


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * PRIMES[1]) & MASK, 31) * PRIMES[0] & MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification says."""
    p1, p2, p3, p4, p5 = PRIMES
    at, found = 0, (seed + p5) & MASK
    if len(data) >= 32:
        lanes = [(seed + add) & MASK for add in (p1 + p2, p2, 0, -p1)]
        while at + 32 <= len(data):
            words = struct.unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        turned = zip(lanes, (1, 7, 12, 18), strict=True)
        found = sum(_rotated(lane, bits) for lane, bits in turned) & MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * p1 + p4) & MASK
    found = (found + len(data)) & MASK
    while at + 8 <= len(data):
        found ^= _round(0, struct.unpack_from("<Q", data, at)[0])
        found = (_rotated(found, 27) * p1 + p4) & MASK
        at += 8
    if at + 4 <= len(data):
        found ^= struct.unpack_from("<I", data, at)[0] * p1 & MASK
        found = (_rotated(found, 23) * p2 + p3) & MASK
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ byte * p5 & MASK, 11) * p1 & MASK
    found = (found ^ found >> 33) * p2 & MASK
    found = (found ^ found >> 29) * p3 & MASK
    return found ^ found >> 32


def key_hash(key: bytes) -> int:
    """Seed 42."""
    return xxh64(key, 42)


def partition_of(key: bytes, partitions: int) -> int:
    """The high half of the hash, modulo."""
    return (key_hash(key) >> 32) % partitions


def header_hash(name: str, value: bytes) -> int:
    """Seed 44; the name is counted."""
    raw = name.encode()
    return xxh64(struct.pack("<I", len(raw)) + raw + value, 44)


# --- reading ------------------------------------------------------------------------------------


class _Columns:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        end = self.at + (length + 7 & ~7)
        require(length >= 0 and end <= len(self.data), "a column leaves its section")
        found = self.data[self.at : self.at + length]
        require(not any(self.data[self.at + length : end]), "padding is not zero")
        self.at = end
        return found

    def numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        form = struct.Struct(f"<{count}{kind}")
        return form.unpack(self.take(form.size))

    def offsets(self, count: int) -> list[int]:
        found = list(self.numbers("i", count + 1))
        require(found[0] == 0 and found == sorted(found), "offsets do not ascend from 0")
        return found

    def bits(self, count: int) -> list[bool]:
        number = int.from_bytes(self.take((count + 7) // 8), "little")
        require(not number >> count, "validity bits beyond the last record")
        return [bool(number >> at & 1) for at in range(count)]

    def binary(self, count: int, bits: list[bool] | None = None) -> list[Any]:
        ends = self.offsets(count)
        data = self.take(ends[-1])
        found = [data[ends[i] : ends[i + 1]] for i in range(count)]
        return [v if bits is None or bits[i] else None for i, v in enumerate(found)]

    def finish(self) -> None:
        require(self.at == len(self.data), "bytes are left over")


def _lists(ends: list[int], items: Any) -> list[list[Any]]:
    return [list(items[ends[i] : ends[i + 1]]) for i in range(len(ends) - 1)]


def header_of(batch: bytes) -> dict[str, int]:
    """The fields of a header, with both CRCs checked."""
    require(len(batch) >= HEADER.size, "cut short")
    found = dict(zip(NAMES, HEADER.unpack_from(batch), strict=True))
    require(batch[:8] == b"iceb\1\0\x98\0", "magic, version or header length")
    require(batch[148:152] == bytes(4), "reserved bytes")
    blank = batch[:12] + bytes(4) + batch[16:152]
    require(crc32c(blank) == found["header_crc32c"], "header CRC")
    padded = found["payload_length"] + 7 & ~7
    require(found["batch_length"] == 152 + found["index_length"] + padded, "lengths")
    require(found["batch_length"] <= len(batch), "cut short")
    crc = crc32c(batch[84 : found["batch_length"]])
    require(crc == found["producer_crc32c"], "producer CRC")
    return found


def _inflated(header: dict[str, int], stored: bytes) -> bytes:
    length, codec = header["uncompressed_length"], header["codec"]
    if codec == 0:
        return stored
    require(codec in (1, 2), "codec")
    if codec == 1:
        found: bytes = lz4.frame.decompress(stored)
    else:
        found = zstandard.ZstdDecompressor().decompress(stored, max_output_size=length)
    require(len(found) == length, "uncompressed length")
    return found


def decode(batch: bytes) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The header and the records of one batch, without compaction."""
    header = header_of(batch)
    count, flags = header["record_count"], header["producer_flags"]
    start = 152 + header["index_length"]
    index = _Columns(batch[152:start])
    times = index.numbers("q", count)
    key_bits, tags = [False] * count, [[] for _ in range(count)]
    hashes: tuple[int, ...] = ()
    if not flags & NO_KEYS:
        key_bits, hashes = index.bits(count), index.numbers("Q", count)
    if not flags & NO_TAGS:
        names, length = index.numbers("I", 2)
        texts = [text.decode() for text in index.binary(names)]
        require(sum(len(text.encode()) for text in texts) == length, "tag dictionary")
        ends = index.offsets(count)
        tags = _lists(ends, [texts[one] for one in index.numbers("I", ends[-1])])
    if not flags & NO_HEADER_HASHES:
        index.numbers("Q", index.offsets(count)[-1])
    index.finish()
    payload = _Columns(_inflated(header, batch[start : start + header["payload_length"]]))
    keys = [None] * count
    if not flags & NO_KEYS:
        require(payload.bits(count) == key_bits, "key bits differ")
        keys = payload.binary(count, key_bits)
        expected = tuple(0 if key is None else key_hash(key) for key in keys)
        require(expected == hashes, "key hashes")
    values = payload.binary(count, payload.bits(count))
    headers: list[list[Any]] = [[] for _ in range(count)]
    if not flags & NO_HEADERS:
        ends = payload.offsets(count)
        texts = [text.decode() for text in payload.binary(ends[-1])]
        given = payload.binary(ends[-1], payload.bits(ends[-1]))
        headers = _lists(ends, list(zip(texts, given, strict=True)))
    payload.finish()
    columns = zip(times, keys, values, tags, headers, strict=True)
    return header, [
        {
            "offset": header["base_offset"] + at,
            "timestamp_ms": time,
            "key": key,
            "value": value,
            "tags": row,
            "headers": pairs,
        }
        for at, (time, key, value, row, pairs) in enumerate(columns)
    ]


# --- writing ------------------------------------------------------------------------------------


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _ends(lengths: list[int]) -> bytes:
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return _padded(struct.pack(f"<{len(ends)}i", *ends))


def _bits(values: list[Any]) -> bytes:
    number = sum(1 << at for at, value in enumerate(values) if value is not None)
    return _padded(number.to_bytes((len(values) + 7) // 8, "little"))


def _binary(values: list[Any]) -> bytes:
    present = [value or b"" for value in values]
    return _ends([*map(len, present)]) + _padded(b"".join(present))


def _tag_columns(rows: list[list[str]]) -> bytes:
    ids: dict[str, int] = {}
    flat = [ids.setdefault(tag, len(ids)) for row in rows for tag in row]
    names = [tag.encode() for tag in ids]
    counts = struct.pack("<II", len(names), len(b"".join(names)))
    lists = _ends([*map(len, rows)]) + _padded(struct.pack(f"<{len(flat)}I", *flat))
    return counts + _binary(names) + lists


def encode(records: list[dict[str, Any]], *, codec: int = 0, **fields: int) -> bytes:
    """One batch that a producer may send. ``fields`` are those of the header's producer part."""
    times, keys, values, tags, headers = (
        [record[name] for record in records]
        for name in ("timestamp_ms", "key", "value", "tags", "headers")
    )
    flags, index, payload = NO_HEADER_HASHES, struct.pack(f"<{len(times)}q", *times), b""
    if any(key is not None for key in keys):
        hashes = [0 if key is None else key_hash(key) for key in keys]
        index += _bits(keys) + struct.pack(f"<{len(keys)}Q", *hashes)
        payload += _bits(keys) + _binary(keys)
    else:
        flags |= NO_KEYS
    payload += _bits(values) + _binary(values)
    if any(tags):
        index += _tag_columns(tags)
    else:
        flags |= NO_TAGS
    if any(headers):
        pairs = [pair for row in headers for pair in row]
        given = [value for _, value in pairs]
        payload += _ends([*map(len, headers)]) + _binary([name.encode() for name, _ in pairs])
        payload += _bits(given) + _binary(given)
    else:
        flags |= NO_HEADERS
    stored = payload
    if codec:
        compress = (lz4.frame.compress, zstandard.ZstdCompressor().compress)[codec - 1]
        stored = compress(payload)
    body = index + _padded(stored)
    header = dict.fromkeys(NAMES, 0) | {
        "magic": 0x62656369,
        "version": 1,
        "header_length": 152,
        "batch_length": 152 + len(body),
        "producer_flags": flags,
        "codec": codec,
        "record_count": len(records),
        "index_length": len(index),
        "uncompressed_length": len(payload),
        "payload_length": len(stored),
        "min_timestamp_ms": min(times),
        "max_timestamp_ms": max(times),
        **fields,
    }
    header["producer_crc32c"] = crc32c(HEADER.pack(*header.values())[84:] + body)
    header["header_crc32c"] = crc32c(HEADER.pack(*header.values()))
    return HEADER.pack(*header.values()) + body


# --- digests ------------------------------------------------------------------------------------


def seed_of(segment: dict[str, Any]) -> bytes:
    """60 bytes."""
    ids = bytes.fromhex(segment["cluster_id"]) + bytes.fromhex(segment["topic_id"])
    names = ("partition", "segment_id", "base_offset", "epoch")
    return ids + struct.pack("<IQqQ", *(segment[name] for name in names))


def full_digest(data: bytes) -> bytes:
    """33 bytes."""

    def tree(leaves: list[bytes]) -> bytes:
        if len(leaves) < 2:
            return leaves[0] if leaves else hashlib.sha256().digest()
        half = 1 << (len(leaves) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + tree(leaves[:half]) + tree(leaves[half:])).digest()

    leaf = 1 << 20
    cut = [data[at : at + leaf] for at in range(0, len(data), leaf)]
    root = tree([hashlib.sha256(b"\0" + each).digest() for each in cut])
    return b"\1" + hashlib.sha256(b"\2" + struct.pack("<Q", len(data)) + root).digest()
