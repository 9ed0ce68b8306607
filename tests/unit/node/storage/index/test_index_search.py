"""Many hashes looked up at once find what each of them finds by itself."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icecore.codec.columns import UInt64s
from icecore_node.storage.index.entries import Entries, UInt32s
from icecore_node.storage.index.index_search import IndexSearch

BASE = 1000
HASHES = 40


@dataclass
class OneCover:
    """A ``Cover`` of given ordinals, from the base on, each with a number of a hash; not in order,
    some twice, and some beyond its end, as of one that grows meanwhile."""

    pairs: list[tuple[int, int]]
    from_offset: int = BASE
    end_offset: int = BASE + 50

    @property
    def entries(self) -> int:
        return len(self.pairs)

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        found = [[at for at, each in self.pairs if each == number] for number in wanted.tolist()]
        return [np.array(sorted(each), np.uint32) for each in found], 1

    def walk(self) -> Iterator[Entries]:
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError


PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, HASHES - 1)), max_size=120)


@given(PAIRS, st.integers(0, 50), st.integers(0, 50))
def test_many_hashes_find_what_each_finds_alone(
    pairs: list[tuple[int, int]], one: int, other: int
) -> None:
    asked = BASE + min(one, other), BASE + max(one, other)
    cover = OneCover(pairs)
    hashes = list(range(HASHES))[::-1]
    together = IndexSearch(BASE, hashes, asked).run([cover], 10_000, newest_first=False)
    assert together.searched == asked
    for number, offsets in zip(hashes, together.offsets, strict=True):
        alone = IndexSearch(BASE, [number], asked).run([cover], 10_000, newest_first=False)
        expected = {BASE + at for at, each in pairs if each == number}
        assert offsets.tolist() == sorted(at for at in expected if asked[0] <= at < asked[1])
        assert offsets.tolist() == alone.offsets[0].tolist()
