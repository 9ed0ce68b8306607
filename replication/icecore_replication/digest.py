"""The full digest: one hash over all batch bytes of a sealed segment.

It proves copies identical wherever they are: on nodes, in a snapshot, in an object store.

Format 1, 33 bytes. Only batches count: no file header, nothing behind the last batch.

- The bytes are cut into leaves of 1 MiB; the last leaf is what is left, and never empty.
- A leaf is SHA-256(0x00, its bytes), a node SHA-256(0x01, left, right). Of ``n`` > 1 leaves the
  left child covers the first ``k``, the largest power of two below ``n``, and the right child the
  rest; no leaf at all is SHA-256 of nothing. That is the Merkle tree hash of RFC 6962, section
  2.1: a reader of one part of a segment can be shown with a few hashes that it belongs there.
- The root is SHA-256(0x02, length of all bytes in bytes as u64 little endian, the tree's hash).
- The digest is the byte 0x01, which names this format, and the root.

The three prefixes keep a leaf, a node and a root from passing for one another, and the length says
how far the bytes went. The format is part of the value because digests are stored in several places
(control stores, segment records) and sent between processes: one of another format is no
contradiction. It is treated as absent, so that the bytes are hashed again.
"""

import hashlib
from typing import Final

from icecore.codec.batch import Buffer

LEAF_BYTES: Final = 1 << 20
DIGEST_LENGTH: Final = 33

_FORMAT = b"\x01"
_LEAF = b"\x00"
_NODE = b"\x01"
_ROOT = b"\x02"


def is_full_digest(value: bytes) -> bool:
    """Return whether this is a full digest in the current format; says nothing about what it
    covers."""
    return len(value) == DIGEST_LENGTH and value.startswith(_FORMAT)


def current_digest(stored: bytes) -> bytes:
    """Return the stored digest if it is in the current format, else empty bytes, as if none were
    known."""
    return stored if is_full_digest(stored) else b""


class FullDigest:
    """Takes the bytes in pieces of any length; holds one hash per level of the tree."""

    __slots__ = ("_leaf", "_length_bytes", "_room_bytes", "_subtrees")

    def __init__(self) -> None:
        self._length_bytes = 0
        self._leaf = hashlib.sha256(_LEAF)
        self._room_bytes = LEAF_BYTES
        """Bytes that still fit into the leaf that is being filled."""
        self._subtrees: list[tuple[int, bytes]] = []
        """Whole subtrees so far, as (leaf count, hash), left to right. The counts are falling
        powers of two: the binary digits of the number of whole leaves."""

    def update(self, data: Buffer) -> None:
        """Add the next bytes; a view is one of single bytes."""
        self._length_bytes += len(data)
        if len(data) >= self._room_bytes:
            data = memoryview(data)  # what follows takes parts, without copies
        while len(data) >= self._room_bytes:
            self._leaf.update(data[: self._room_bytes])
            data = data[self._room_bytes :]
            self._close_leaf()
        self._leaf.update(data)
        self._room_bytes -= len(data)

    def _close_leaf(self) -> None:
        """Hang a full leaf into the tree: two neighbours of equal size become one."""
        count, right = 1, self._leaf.digest()
        while self._subtrees and self._subtrees[-1][0] == count:
            right = _node(self._subtrees.pop()[1], right)
            count *= 2
        self._subtrees.append((count, right))
        self._leaf, self._room_bytes = hashlib.sha256(_LEAF), LEAF_BYTES

    def digest(self) -> bytes:
        """The digest of everything so far, 33 bytes; more bytes may follow."""
        hashes = [subtree for _, subtree in self._subtrees]
        if self._room_bytes < LEAF_BYTES:
            hashes.append(self._leaf.digest())
        tree = hashes.pop() if hashes else hashlib.sha256().digest()
        while hashes:
            tree = _node(hashes.pop(), tree)
        length = self._length_bytes.to_bytes(8, "little")
        return _FORMAT + hashlib.sha256(_ROOT + length + tree).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
