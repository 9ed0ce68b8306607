"""Batches in memory: each owns its bytes, however the request that brought them was cut."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from icecore_node.storage.engine import BatchMark
from icecore_node.storage.memory_engine.memory_log import HeldBatches
from tests.support import rotation

BATCHES = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6)


@given(BATCHES, st.lists(st.integers(0, 240), max_size=8), st.booleans())
@settings(max_examples=rotation.examples(200))
def test_batches_are_those_of_the_marks(batches: list[bytes], cuts: list[int], views: bool) -> None:
    whole = b"".join(batches)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    buffers = [memoryview(bytearray(piece)) if views else piece for piece in pieces]
    marks = [BatchMark(number, 7 - number, len(batch)) for number, batch in enumerate(batches)]
    held = HeldBatches()
    held.add(marks, buffers, 100)
    assert held.batches == batches
    assert all(type(batch) is bytes for batch in held.batches)
    assert held.times_ms == [7] * len(batches)
    starts = [100 + sum(map(len, batches[:count])) for count in range(len(batches))]
    assert list(held.places.positions) == starts
    assert list(held.places.offsets) == list(range(len(batches)))
