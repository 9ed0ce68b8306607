"""The full digest: golden bytes, and a plain recursive oracle over data in any pieces."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore_replication import digest
from icecore_replication.digest import DIGEST_LENGTH, LEAF_BYTES, FullDigest, is_full_digest
from tests.support import rotation

GOLDEN = Path(__file__).parent / "golden" / "full_digest.hex"
PATTERN = bytes(range(251))
"""Repeated, it makes each leaf another one: 251 does not divide 1 MiB."""


def pattern(length_bytes: int) -> bytes:
    return (PATTERN * (length_bytes // len(PATTERN) + 1))[:length_bytes]


def digest_of(*pieces: bytes | bytearray | memoryview) -> bytes:
    full = FullDigest()
    for piece in pieces:
        full.update(piece)
    return full.digest()


def golden() -> list[tuple[int, str]]:
    """(bytes of the pattern, digest in hexadecimal)."""
    lines = [line for line in GOLDEN.read_text().splitlines() if not line.startswith("#")]
    return [(int(length), value) for length, value in map(str.split, lines)]


# --- the oracle: the text of the format, leaf by leaf ---------------------------------------------


def tree(leaves: list[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + tree(leaves[:k]) + tree(leaves[k:])).digest()


def oracle(data: bytes, leaf_bytes: int) -> bytes:
    leaves = [data[at : at + leaf_bytes] for at in range(0, len(data), leaf_bytes)]
    root = b"\x02" + len(data).to_bytes(8, "little") + tree(leaves)
    return b"\x01" + hashlib.sha256(root).digest()


@pytest.mark.parametrize(("length_bytes", "expected"), golden())
def test_golden_digests(length_bytes: int, expected: str) -> None:
    data = pattern(length_bytes)
    assert digest_of(data).hex() == expected
    assert oracle(data, LEAF_BYTES).hex() == expected


def test_golden_covers_the_borders() -> None:
    lengths = {length for length, _ in golden()}
    assert lengths >= {0, 1, LEAF_BYTES, LEAF_BYTES + 1, 2 * LEAF_BYTES, 3 * LEAF_BYTES}


@given(
    data=st.binary(max_size=200),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    leaf_bytes=st.integers(1, 40),
)
def test_equals_the_oracle_in_any_pieces(data: bytes, cuts: list[int], leaf_bytes: int) -> None:
    ends = [*sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "LEAF_BYTES", leaf_bytes)
        assert digest_of(*pieces) == oracle(data, leaf_bytes)


@settings(max_examples=rotation.examples(15))
@given(length=st.integers(0, 5 * LEAF_BYTES + 2), step=st.integers(1000, 3 * LEAF_BYTES))
def test_real_leaves_in_any_pieces(length: int, step: int) -> None:
    data = pattern(length)
    pieces = [memoryview(data)[at : at + step] for at in range(0, length, step)]
    assert digest_of(*pieces) == oracle(data, LEAF_BYTES)


def test_more_may_follow_a_digest() -> None:
    full = FullDigest()
    full.update(pattern(LEAF_BYTES))
    assert full.digest() == full.digest() == oracle(pattern(LEAF_BYTES), LEAF_BYTES)
    full.update(bytearray(b"more"))
    assert full.digest() == oracle(pattern(LEAF_BYTES) + b"more", LEAF_BYTES)


@given(data=st.binary(max_size=100), other=st.binary(max_size=100))
def test_other_bytes_have_another_digest(data: bytes, other: bytes) -> None:
    assert (digest_of(data) == digest_of(other)) == (data == other)


def test_leaf_node_and_root_do_not_pass_for_one_another() -> None:
    """The bytes from which an inner hash is made, taken as data, give another digest."""
    two = [pattern(LEAF_BYTES), b"x"]
    inner = b"".join(hashlib.sha256(b"\x00" + each).digest() for each in two)
    assert digest_of(*two) != digest_of(inner)
    zeros = digest_of(bytes(LEAF_BYTES))
    assert zeros != digest_of(bytes(LEAF_BYTES - 1)) != digest_of(bytes(LEAF_BYTES), b"\0")


def test_what_is_a_full_digest() -> None:
    value = digest_of(b"data")
    assert len(value) == DIGEST_LENGTH and is_full_digest(value)
    for other in (b"", value[1:], value + b"\0", b"\x02" + value[1:]):
        assert not is_full_digest(other)
