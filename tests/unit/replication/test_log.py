"""The numbers of a leader's log: offsets and times given out, bytes on their way to the disk."""

import pytest

from icecore.model import Acks
from icecore_replication.effects import Append
from icecore_replication.inputs import ProduceReceived
from icecore_replication.log import LeaderLog
from tests.support.replication_setup import BASE, segment, settings, start


def log(max_append_timestamp_ms: int = 0) -> LeaderLog:
    return LeaderLog(start(segment(), max_append_timestamp_ms=max_append_timestamp_ms))


def batch(number: int, count: int = 10, length_bytes: int = 100, ms: int = 0) -> ProduceReceived:
    return ProduceReceived(number, Acks.ALL, count, length_bytes, clock_ms=ms)


def test_offsets_have_no_gaps_and_times_never_go_back() -> None:
    ours = log(max_append_timestamp_ms=7)
    given = [ours.append(batch(n, count=n, ms=ms), 0.0) for n, ms in ((1, 5), (2, 9), (3, 8))]
    assert given == [Append(1, 100, 101, 7), Append(2, 101, 103, 9), Append(3, 103, 106, 9)]
    assert ours.end_offset == 106


def test_unsynced_bytes_are_those_above_the_last_sync() -> None:
    ours = log()
    for number in range(3):
        ours.append(batch(number, length_bytes=100 + number), 0.0)
    ours.synced(BASE + 20)
    assert ours.unsynced_bytes == 102
    ours.synced(BASE + 20)
    ours.synced(BASE + 29)  # within the last batch
    assert ours.unsynced_bytes == 102
    ours.synced(BASE + 30)
    assert (ours.unsynced_bytes, ours.length_bytes) == (0, 303)


def test_a_single_batch_always_has_room() -> None:
    ours = log()
    assert ours.has_room_for(1_000, 10)
    ours.append(batch(1), 0.0)
    assert ours.has_room_for(50, 150)
    assert not ours.has_room_for(51, 150)


@pytest.mark.parametrize(
    ("length_bytes", "now_ms", "why"),
    [(99, 1499.0, ""), (99, 1500.0, "age"), (100, 0.0, "size"), (100, 1500.0, "size")],
)
def test_why_to_roll(length_bytes: int, now_ms: float, why: str) -> None:
    ours, pinned = log(), settings(segment_bytes=100, segment_age_ms=1000)
    assert ours.why_to_roll(pinned, 1e9) == ""  # nothing is in it
    ours.append(batch(1, length_bytes=length_bytes), 500.0)
    assert ours.why_to_roll(pinned, now_ms) == why
