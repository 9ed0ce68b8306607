"""The tail cache counts what it holds in memory: views hold all of what they are views of."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icecore_node.io.tail_cache import CachedBatch, TailCache

HEADER = bytes(152)


def batch(body: memoryview, end_offset: int) -> CachedBatch:
    return CachedBatch((HEADER[:151] + b"1", body), 152 + len(body), end_offset, 0)


def message(size_bytes: int) -> memoryview:
    """As a transport receives it."""
    return np.zeros(size_bytes, np.uint8).data.toreadonly()


def test_small_batches_of_large_requests_count_as_the_requests() -> None:
    """One batch of each of many requests: by their own lengths all of them would fit."""
    cache = TailCache(8 << 20)
    tracemalloc.start()
    try:
        for offset in range(100):
            cache.put(1, offset, batch(message(1 << 20)[:1000], offset + 1))
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 7 << 20 <= held_bytes < 9 << 20
    assert cache.bytes == 7 * (1 << 20) + 7 * 152
    assert [offset for offset in range(100) if cache.get(1, offset)] == [*range(93, 100)]


def test_all_batches_of_a_request_count_it_once() -> None:
    cache = TailCache(8 << 20)
    request = message(1 << 20)
    for offset in range(64):
        cache.put(1, offset, batch(request[offset << 14 : (offset + 1) << 14], offset + 1))
    assert cache.bytes == (1 << 20) + 64 * 152
    data, length, end = cache.read(1, 0, 1 << 30, 64)
    assert (len(data), length, end) == (128, 64 * ((1 << 14) + 152), 64)


def test_batches_are_copied_out_of_what_would_fill_the_cache() -> None:
    cache = TailCache(1 << 20)
    request = message(4 << 20)
    for offset in range(10):
        cache.put(1, offset, batch(request[offset * 1000 : (offset + 1) * 1000], offset + 1))
    assert cache.bytes == 10 * 1152
    found = cache.get(1, 9)
    assert found is not None and found.buffers[1] == bytes(1000)


def test_a_batch_that_is_put_again_counts_once() -> None:
    cache = TailCache(8 << 20)
    for _ in range(3):
        cache.put(1, 0, batch(message(1000), 1))
    assert cache.bytes == 1152


@given(
    puts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 20)), max_size=60)
)
def test_what_is_counted_is_what_is_held(puts: list[tuple[int, int, int]]) -> None:
    cache = TailCache(1000)
    messages = [message(120) for _ in range(6)]
    held: dict[int, tuple[int, bytes]] = {}
    for which, offset, length in puts:
        cache.put(1, offset, CachedBatch((b"h", messages[which][:length]), length, offset + 1, 0))
        held.pop(offset, None)
        held[offset] = (which, bytes(length))
    kept = {offset for offset in held if cache.get(1, offset)}
    assert kept == set([*held][len(held) - len(kept) :])  # the newest
    assert cache.bytes == len(kept) + 120 * len({held[offset][0] for offset in kept})
    assert cache.bytes <= 1000
