"""The hashes by which records are found: of keys, tags and header fields. All XXH64, unsigned.

Each kind has a seed of its own, so that a key never meets a tag but by chance. A hash only says
where to look: who looks compares the key, the tag or the header itself.
"""

from collections.abc import Collection, Iterable
from typing import Final

import xxhash

from icecore.codec.columns import KEY_HASH_SEED, Headers, key_hash

__all__ = [
    "HEADER_HASH_SEED",
    "KEY_HASH_SEED",
    "TAG_HASH_SEED",
    "header_hash",
    "header_hashes",
    "key_hash",
    "tag_hash",
]

TAG_HASH_SEED: Final = 43
HEADER_HASH_SEED: Final = 44


def tag_hash(tag: bytes) -> int:
    """Hash a tag in UTF-8."""
    return xxhash.xxh64_intdigest(tag, TAG_HASH_SEED)


def header_hash(name: str, value: bytes) -> int:
    """Hash a header's name and value: u32 length of the name in UTF-8, the name, the value."""
    encoded = name.encode()
    data = len(encoded).to_bytes(4, "little") + encoded + value
    return xxhash.xxh64_intdigest(data, HEADER_HASH_SEED)


def header_hashes(rows: Iterable[Headers], names: Collection[str]) -> list[list[int]]:
    """Per record, of the headers with these names, in their order; those without a value have none.

    Args:
        rows: The headers of each record.
        names: Those that a topic indexes.
    """
    return [
        [header_hash(name, value) for name, value in row if name in names and value is not None]
        for row in rows
    ]
