"""Producers and tails of a node whose logs in memory get too large."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import ThrottledError
from icecore.topic_settings import MEMORY_ENGINE, SEGMENT_ENGINE, SegmentSettings
from icecore_node.registry.memory_room import COUNT_MS, LOOK_MS, WHY, MemoryRoom
from icecore_replication.inputs import RollRequested

MAX = 1000


class Led:
    """A leader, as far as its room goes."""

    def __init__(self, number: int, length: int, engine: str = MEMORY_ENGINE, rf: int = 1) -> None:
        settings = SegmentSettings(engine=engine, replication_factor=rf)
        self.segment = SimpleNamespace(settings=settings)
        self.tail = SimpleNamespace(length_bytes=length)
        log = SimpleNamespace(tail=self.tail)
        self.replica = SimpleNamespace(segment_id=number, log=log, role=self)
        self.fed: list[object] = []

    def feed(self, item: object) -> None:
        self.fed.append(item)


class Bench:
    """A node with these leaders; others' copies take ``followed`` bytes, sealed logs ``sealed``."""

    def __init__(self, *leaders: Led, followed: int = 0, sealed: int = 0) -> None:
        self.leaders, self.followed, self.sealed = list(leaders), followed, sealed
        self.bytes_max, self.now_ms = MAX, 0.0
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.room = MemoryRoom(cast(Any, clock), self)
        self.lead(*leaders)

    def lead(self, *leaders: Led) -> None:
        """These, and no others; each has taken something."""
        for each in self.leaders:
            each.replica.role = each if each in leaders else None
        self.leaders = list(leaders)
        bytes_max, self.bytes_max = self.bytes_max, 1 << 40
        assert all(self.take(each, 0) for each in leaders)
        self.bytes_max = bytes_max

    @property
    def used_bytes(self) -> int:
        in_memory = (each for each in self.leaders if each.segment.settings.engine == MEMORY_ENGINE)
        return sum(each.tail.length_bytes for each in in_memory) + self.followed + self.sealed

    def sealed_bytes(self) -> int:
        return self.sealed

    def take(self, leader: Led, length: int = 1) -> bool:
        try:
            self.room.take(cast(Any, leader), length)
        except ThrottledError as error:
            assert error.metadata["retry_after_ms"] == "50" and "memory_engine_bytes" in str(error)
            return False
        return True

    def tick(self) -> list[int]:
        """Run a tick, and return the segments that are asked to roll."""
        before = {each.replica.segment_id: len(each.fed) for each in self.leaders}
        self.room.tick()
        return [
            each.replica.segment_id
            for each in self.leaders
            if len(each.fed) > before[each.replica.segment_id]
        ]


def test_producers_wait_when_memory_is_nearly_full_and_go_on_when_there_is_room() -> None:
    led, on_disk = Led(1, 400), Led(2, 10_000, SEGMENT_ENGINE)
    bench = Bench(led, on_disk, followed=475)
    assert bench.take(led)
    bench.followed += 1
    assert not bench.take(led)
    assert bench.take(on_disk)
    bench.followed = 0
    assert bench.take(led)


def test_copies_count_before_they_are_there() -> None:
    led = Led(1, 200, rf=3)
    bench = Bench(led)
    assert bench.take(led, 50)  # 600 are promised, 750 with it
    assert bench.take(led, 50)
    assert not bench.take(led, 1)  # 900
    bench.now_ms += COUNT_MS  # counted anew: of these 100 nothing has been appended
    assert bench.take(led, 1)


def test_while_there_is_much_room_nobody_counts() -> None:
    led = Led(1, 125)
    bench = Bench(led)
    assert all(bench.take(led, 500) for _ in range(10))
    led.tail.length_bytes = 126
    assert bench.take(led, 750) and not bench.take(led, 1)


@pytest.mark.parametrize("bytes_max", [0, 1])
def test_who_has_no_memory_for_logs_refuses_when_the_log_does(bytes_max: int) -> None:
    bench = Bench()
    bench.bytes_max = bytes_max
    assert bench.take(Led(1, 0))


def test_the_largest_tails_roll_once() -> None:
    bench = Bench(Led(1, 100), Led(2, 300), Led(3, 200), Led(4, 9_000, SEGMENT_ENGINE))
    assert bench.tick() == [2]
    assert bench.leaders[1].fed == [RollRequested(WHY)]
    bench.now_ms += LOOK_MS
    assert bench.tick() == []  # it is as good as gone
    bench.leaders[0].tail.length_bytes = 400
    assert bench.tick() == []  # not yet
    bench.now_ms += LOOK_MS
    assert bench.tick() == [1]


def test_sealed_logs_are_as_good_as_gone_and_empty_tails_never_roll() -> None:
    bench = Bench(Led(1, 0), Led(2, 100), sealed=800)
    assert bench.tick() == []
    bench.followed, bench.now_ms = 600, LOOK_MS
    assert bench.tick() == [2]


def test_a_tail_of_the_same_partition_is_another_one() -> None:
    bench = Bench(Led(1, 600))
    assert bench.tick() == [1]
    bench.now_ms = LOOK_MS
    bench.lead(Led(2, 600))
    assert bench.tick() == [2]


def test_who_leads_no_longer_counts_no_longer() -> None:
    gone, led = Led(1, 900), Led(2, 130)
    bench = Bench(gone)
    assert not bench.take(gone)
    bench.lead(led)
    bench.now_ms += COUNT_MS
    assert gone.replica.role is None and bench.take(led)
