"""Entries, blocks and runs against plain dictionaries; golden bytes; every byte wrong once."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore_node.storage.index.entries import (
    NO_ENTRIES,
    Entries,
    find_sorted,
    find_unsorted,
    joined,
    sorted_entries,
    wanted_hashes,
)
from icecore_node.storage.index.posting_blocks import (
    DamagedIndexError,
    decode_block,
    encode_block,
    encode_blocks,
)
from icecore_node.storage.index.runs import (
    BLOCKS_AT_ONCE,
    Directory,
    Run,
    decode_directory,
    merge,
)
from tests.support import rotation

BIG = (1 << 64) - 1
# Few hashes, so that many entries share one; the borders of the range are among them.
HASHES = st.sampled_from([0, 1, 2, 3, 7, 1 << 63, BIG - 1, BIG])
PAIRS = st.lists(st.tuples(HASHES, st.integers(0, 200)), max_size=120)
WANTED = wanted_hashes([0, 1, 2, 3, 4, 7, 1 << 63, BIG - 1, BIG])


def entries(pairs: Sequence[tuple[int, int]]) -> Entries:
    hashes = np.array([pair[0] for pair in pairs], np.uint64)
    return Entries(hashes, np.array([pair[1] for pair in pairs], np.uint32))


def oracle(pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    found: defaultdict[int, set[int]] = defaultdict(set)
    for hash_, ordinal in pairs:
        found[hash_].add(ordinal)
    return [sorted(found[hash_]) for hash_ in WANTED.tolist()]


def run_of(parts: Sequence[Entries], per_block: int) -> Run:
    blocks = list(encode_blocks(parts, per_block))
    directory = Directory(
        0,
        1000,
        sum(len(part.hashes) for part in parts),
        np.array([first for first, _ in blocks], "<u8"),
        np.array([len(data) for _, data in blocks], "<u4"),
    )
    return Run(directory, lambda first, end: [data for _, data in blocks[first:end]])


@given(PAIRS)
def test_sorting_keeps_each_entry_once(pairs: list[tuple[int, int]]) -> None:
    hashes, ordinals = sorted_entries(entries(pairs))
    assert list(zip(hashes.tolist(), ordinals.tolist(), strict=True)) == sorted(set(pairs))


@given(PAIRS)
def test_find_in_order_and_out_of_it(pairs: list[tuple[int, int]]) -> None:
    expected = oracle(pairs)
    assert [o.tolist() for o in find_sorted(sorted_entries(entries(pairs)), WANTED)] == expected
    by_ordinal = sorted(set(pairs), key=lambda pair: pair[1])
    assert [o.tolist() for o in find_unsorted(entries(by_ordinal), WANTED)] == expected
    for at in range(len(WANTED)):
        (one,) = find_unsorted(entries(by_ordinal), WANTED[at : at + 1])
        assert one.tolist() == expected[at]


@given(PAIRS, st.integers(1, 9), st.lists(st.integers(0, 120), max_size=4))
def test_a_run_finds_what_was_put_in(
    pairs: list[tuple[int, int]], per_block: int, cuts: list[int]
) -> None:
    """However the entries come in, and however many blocks one hash takes."""
    whole = sorted_entries(entries(pairs))
    ends = [0, *sorted(min(cut, len(whole.hashes)) for cut in cuts), len(whole.hashes)]
    spans = [slice(start, end) for start, end in pairwise(ends) if end > start]
    run = run_of([Entries(whole.hashes[span], whole.ordinals[span]) for span in spans], per_block)
    found, _ = run.find(WANTED)
    assert [ordinals.tolist() for ordinals in found] == oracle(pairs)
    again = joined(list(run.walk()))
    assert again.hashes.tolist() == whole.hashes.tolist()
    assert again.ordinals.tolist() == whole.ordinals.tolist()


@settings(max_examples=rotation.examples(200))
@given(st.lists(PAIRS, max_size=4), st.integers(1, 5))
def test_merge_loses_and_repeats_nothing(lists: list[list[tuple[int, int]]], length: int) -> None:
    walks = []
    for pairs in lists:
        whole = sorted_entries(entries(pairs))
        spans = [slice(at, at + length) for at in range(0, len(whole.hashes), length)]
        walks.append([Entries(whole.hashes[span], whole.ordinals[span]) for span in spans])
    merged = joined(list(merge(walks)))
    found = list(zip(merged.hashes.tolist(), merged.ordinals.tolist(), strict=True))
    assert found == sorted({pair for pairs in lists for pair in pairs})


def test_a_unique_hash_takes_twelve_bytes_and_a_shared_one_four() -> None:
    unique = encode_block(entries([(number, number) for number in range(1000)]))
    assert len(unique) == 16 + 12 * 1000
    shared = encode_block(entries([(5, number) for number in range(1000)]))
    assert len(shared) == 16 + 8 + 2 * 4 + 4 * 1000


def test_golden_bytes() -> None:
    unique = encode_block(entries([(1, 10), (2, 20)]))
    assert unique.hex() == (
        "e5214cff020000000200000000000000010000000000000002000000000000000a00000014000000"
    )
    shared = encode_block(entries([(1, 10), (1, 11), (2, 20)]))
    assert shared.hex() == (
        "3b75663e02000000030000000000000001000000000000000200000000000000"
        "0000000002000000030000000a0000000b00000014000000"
    )
    directory = Directory(100, 200, 3, np.array([1, 9], "<u8"), np.array([40, 52], "<u4"), 2)
    assert directory.encode().hex() == (
        "a09ec25a02000000020000000000000003000000000000006400000000000000"
        "c800000000000000010000000000000009000000000000002800000034000000"
    )


@pytest.mark.parametrize("pairs", [[(1, 10), (2, 20)], [(1, 10), (1, 11), (2, 20)]])
def test_any_wrong_byte_of_a_block_is_noticed(pairs: list[tuple[int, int]]) -> None:
    data = encode_block(entries(pairs))
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 0x40
        with pytest.raises(DamagedIndexError):
            decode_block(bytes(wrong))
    for length in range(len(data)):
        with pytest.raises(DamagedIndexError):
            decode_block(data[:length])
    with pytest.raises(DamagedIndexError):
        decode_block(data + b"\0")


def test_any_wrong_byte_of_a_directory_is_noticed() -> None:
    directory = Directory(100, 200, 3, np.array([1, 9], "<u8"), np.array([40, 52], "<u4"), 2)
    data = directory.encode()
    assert decode_directory(data).encode() == data
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1
        with pytest.raises(DamagedIndexError):
            decode_directory(bytes(wrong))
        with pytest.raises(DamagedIndexError):
            decode_directory(data[:at])


def test_a_run_without_entries_finds_nothing() -> None:
    run = run_of([], 4)
    assert [ordinals.tolist() for ordinals in run.find(WANTED)[0]] == [[]] * len(WANTED)
    assert list(run.walk()) == []
    assert list(merge([[NO_ENTRIES], []])) == []


def test_neighbouring_blocks_are_read_together() -> None:
    blocks = list(encode_blocks([entries([(number, number) for number in range(64)])], 4))
    reads: list[tuple[int, int]] = []

    def source(first: int, end: int) -> list[bytes]:
        reads.append((first, end))
        return [data for _, data in blocks[first:end]]

    firsts = np.array([first for first, _ in blocks], "<u8")
    lengths = np.array([len(data) for _, data in blocks], "<u4")
    run = Run(Directory(0, 64, 64, firsts, lengths), source)
    found, length = run.find(wanted_hashes([1, 5, 6, 9, 50]))
    assert [ordinals.tolist() for ordinals in found] == [[1], [5], [6], [9], [50]]
    assert reads == [(0, 3), (12, 13)]
    assert length == 4 * len(blocks[0][1])


def test_one_hash_may_fill_more_blocks_than_are_read_at_once() -> None:
    pairs = [(3, 0), *[(5, ordinal) for ordinal in range(100)], (9, 0)]
    run = run_of([entries(pairs)], 2)
    assert len(run.directory.first_hashes) > 2 * BLOCKS_AT_ONCE
    for wanted in ([5], [5, 9]):
        found, _ = run.find(wanted_hashes(wanted))
        assert found[0].tolist() == list(range(100))
