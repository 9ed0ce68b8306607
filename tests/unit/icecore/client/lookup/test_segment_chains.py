"""A chain that is kept has each offset once, whatever was sealed, merged or deleted meanwhile."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.client.lookup import segment_chains
from icecore.client.lookup.segment_chains import AGE_MS, SegmentChains
from icecore.model import Epoch, Segment, SegmentState

TOPIC_ID = b"t" * 16


def segment(number: int, base: int, end: int = -1, state: SegmentState | None = None) -> Segment:
    kind = SegmentState.ACTIVE if end < 0 else SegmentState.SEALED
    return Segment(
        number, TOPIC_ID, "t", 0, state or kind, Epoch(1), base_offset=base, end_offset=end
    )


class Cluster:
    """A coordinator that lists what it has now, from an offset on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.segments: list[Segment] = []
        self.asked_from: list[int] = []
        monkeypatch.setattr(segment_chains, "find_segments", self._find)
        connection = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms))
        self.chains = SegmentChains(cast(Any, connection), cast(Any, None), "t")

    async def _find(self, *asked: Any, timeout_s: float) -> Any:
        from_offset = asked[4]
        self.asked_from.append(from_offset)
        found = [each for each in self.segments if not 0 <= each.end_offset <= from_offset]
        return SimpleNamespace(segments=found, age_ms=0)

    async def seen(self, *segments: Segment) -> list[tuple[int, int, int]]:
        """Return the chain of a look-up that asks again later."""
        self.segments = [*segments]
        self.now_ms += AGE_MS
        await self.chains.refresh(TOPIC_ID, [0], is_whole=False, timeout_s=1)
        return [(each.segment_id, each.base_offset, each.end_offset) for each in self.chains.of(0)]


async def test_a_merged_segment_replaces_all_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    first, second = segment(1, 0, 100), segment(2, 100, 200)
    await cluster.seen(first, second, segment(3, 200))
    merged = segment(9, 0, 300)
    assert await cluster.seen(merged, segment(4, 300)) == [(9, 0, 300), (4, 300, -1)]
    assert cluster.asked_from == [0, 200]


async def test_a_hole_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the replaced range ends below the offset that is asked for again."""
    cluster = Cluster(monkeypatch)
    await cluster.seen(segment(1, 0, 100), segment(2, 100, 200), segment(3, 200))
    merged = segment(9, 50, 300)
    now = segment(8, 0, 50), merged, segment(4, 300)
    assert await cluster.seen(*now) == [(8, 0, 50), (9, 50, 300), (4, 300, -1)]
    assert cluster.asked_from == [0, 200, 0]


async def test_what_is_prepared_replaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    prepared = segment(3, -1, -1, SegmentState.PREPARED)
    known = await cluster.seen(segment(1, 0, 100), segment(2, 100), prepared)
    assert [each for each, *_ in known] == [3, 1, 2]
    assert cluster.asked_from == [0]
