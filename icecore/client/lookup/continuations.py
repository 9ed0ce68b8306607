"""Position of a look-up between two pages, as bytes that a program may keep.

It says how far each partition has been looked at, and holds a fingerprint of the question, because
positions of one question mean nothing in another. Little-endian::

    u8 version, u64 fingerprint, u32 count, {u32 partition, i64 offset, i64 limit}[count],
    u64 XXH64 of all before

Partitions that are done are left out.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from icecore.errors import InvalidRequestError

BYTES_MAX: Final = 1 << 20
_VERSION: Final = 1
_FRONT = struct.Struct("<BQI")
_ENTRY = struct.Struct("<Iqq")
_CHECKSUM = struct.Struct("<Q")
_SEED: Final = 45
OPEN: Final = -1
"""The end of a partition while it is not known: wherever its records end when it is reached."""


class SearchCursor(NamedTuple):
    """The progress of a look-up in one partition."""

    partition: int
    offset: int
    """Upwards the next one to look at; from the newest record down, the exclusive end of what is
    left, or ``OPEN``."""
    limit: int
    """Upwards the exclusive end, or ``OPEN``; downwards the last offset to look at."""


def fingerprint(*parts: bytes) -> int:
    """Return the fingerprint of a question, made from its parts in a fixed order."""
    digest = xxhash.xxh64(seed=_SEED)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.intdigest()


def encode(fingerprint: int, cursors: Sequence[SearchCursor]) -> bytes:
    """The continuation; empty when nothing is left."""
    if not cursors:
        return b""
    body = _FRONT.pack(_VERSION, fingerprint, len(cursors))
    body += b"".join(_ENTRY.pack(*each) for each in cursors)
    return body + _CHECKSUM.pack(xxhash.xxh64_intdigest(body, _SEED))


def decode(given: bytes, fingerprint: int) -> list[SearchCursor]:
    """Return the cursors that were given to ``encode``.

    Raises:
        InvalidRequestError: It is none, or one of another question.
    """
    body, checksum = given[: -_CHECKSUM.size], given[-_CHECKSUM.size :]
    if (
        not _FRONT.size + _CHECKSUM.size <= len(given) <= BYTES_MAX
        or given[0] != _VERSION
        or checksum != _CHECKSUM.pack(xxhash.xxh64_intdigest(body, _SEED))
    ):
        raise InvalidRequestError(
            "the continuation is damaged, or none of this client: begin without one"
        )
    _, found, count = _FRONT.unpack_from(body)
    if found != fingerprint:
        raise InvalidRequestError(
            "the continuation belongs to another question, or to a topic that was made again: pass "
            "the arguments that the page before had, or begin without a continuation"
        )
    if len(body) != _FRONT.size + count * _ENTRY.size:
        raise InvalidRequestError("the continuation is damaged: begin without one")
    cursors = [SearchCursor(*each) for each in _ENTRY.iter_unpack(body[_FRONT.size :])]
    numbers = {each.partition for each in cursors}
    if len(numbers) < count or any(not _is_sane(each) for each in cursors):
        raise InvalidRequestError("the continuation is damaged: begin without one")
    return cursors


def _is_sane(each: SearchCursor) -> bool:
    return each.offset >= OPEN and each.limit >= OPEN
