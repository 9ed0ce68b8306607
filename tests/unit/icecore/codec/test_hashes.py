"""Many keys at once have the hashes that each has alone."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec.arrow import hash_of_keys
from icecore.codec.columns import BinaryColumn, hash_keys, key_hash
from icecore.codec.hashes import hash_alike, hash_column


def column(keys: list[bytes | None]) -> BinaryColumn:
    ends = np.cumsum([0, *(len(key or b"") for key in keys)]).astype("<i4")
    bits = np.packbits(
        np.array([key is not None for key in keys], np.bool_), bitorder="little"
    ).tobytes()
    return BinaryColumn(bits, ends, memoryview(b"".join(key or b"" for key in keys)))


@pytest.mark.parametrize("length", range(40))
def test_keys_of_one_length(length: int) -> None:
    rng = random.Random(length)
    keys = [rng.randbytes(length) for _ in range(5000)]
    made = hash_column(column(keys))
    assert made.dtype == np.uint64 and made.tolist() == [key_hash(key) for key in keys]


@given(st.lists(st.none() | st.binary(max_size=80), max_size=300))
def test_any_keys(keys: list[bytes | None]) -> None:
    assert hash_column(column(keys)).tolist() == hash_keys(keys).tolist()


def test_many_lengths_and_nulls_at_once() -> None:
    rng = random.Random(1)
    lengths = [0, 3, 8, 14, 31, 32, 33, 500]
    keys = [None if rng.random() < 0.1 else rng.randbytes(rng.choice(lengths)) for _ in range(3000)]
    assert hash_column(column(keys)).tolist() == hash_keys(keys).tolist()


def test_a_part_of_a_larger_buffer() -> None:
    data = random.Random(2).randbytes(8 * 1000)
    offsets = np.arange(16, len(data) + 1, 8, dtype="<i4")
    made = hash_alike(data, offsets)
    assert made is not None
    assert made.tolist() == [key_hash(data[at : at + 8]) for at in range(16, len(data), 8)]


def test_other_lengths_of_the_same_sum_are_not_alike() -> None:
    offsets = np.arange(0, 8001, 8, dtype="<i4")
    offsets[500] += 1
    assert hash_alike(bytes(8000), offsets) is None


def test_keys_of_arrow_arrays_and_of_their_slices() -> None:
    rng = random.Random(3)
    keys = [rng.randbytes(11) for _ in range(3000)]
    array = pa.array([None, *keys], pa.binary())
    assert hash_of_keys(array).tolist() == hash_keys([None, *keys]).tolist()
    for start, count in ((1, 3000), (7, 900), (2000, 3)):
        part = array.slice(start, count)
        assert hash_of_keys(part).tolist() == hash_keys(part.to_pylist()).tolist()
    assert hash_of_keys(pa.array([None] * 600, pa.binary())).tolist() == [0] * 600
