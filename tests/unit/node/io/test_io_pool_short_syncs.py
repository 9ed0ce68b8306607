"""The loop may sync by itself after enough short syncs, and not after a long one."""

import pytest

from icecore_node.io.io_pool import PATIENCE_MAX, PATIENCE_MIN, ShortSyncs


def until_trusted(syncs: ShortSyncs) -> int:
    count = 0
    while not syncs.may_inline():
        syncs.note(0.5)
        count += 1
    return count


def test_a_disk_is_trusted_after_short_syncs() -> None:
    syncs = ShortSyncs(2.0)
    assert until_trusted(syncs) == PATIENCE_MIN
    syncs.note(2.0)
    assert syncs.may_inline()


@pytest.mark.parametrize(
    ("long_ms", "patience"),
    [(2.1, PATIENCE_MIN), (20.0, 20), (200.0, 200), (30_000.0, PATIENCE_MAX), (1e12, PATIENCE_MAX)],
)
def test_one_long_sync_sends_it_back_the_longer_it_was(long_ms: float, patience: int) -> None:
    syncs = ShortSyncs(2.0)
    until_trusted(syncs)
    syncs.note(long_ms)
    assert not syncs.may_inline()
    assert until_trusted(syncs) == patience


def test_a_shorter_one_does_not_make_up_for_a_long_one() -> None:
    syncs = ShortSyncs(2.0)
    syncs.note(200.0)
    for _ in range(100):
        syncs.note(0.5)
    syncs.note(3.0)
    assert until_trusted(syncs) == 100


def test_zero_is_never() -> None:
    syncs = ShortSyncs(0)
    for _ in range(2 * PATIENCE_MAX):
        syncs.note(0.0)
    assert not syncs.may_inline()
    syncs.note(5.0)
    assert not syncs.may_inline()
