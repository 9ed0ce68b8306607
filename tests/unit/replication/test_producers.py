"""Rules R20-R24: idempotent producers."""

import random

import pytest

from icecore.codec.batch import crc32c
from icecore.errors import (
    IcecoreError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StorageError,
)
from icecore_replication import producers
from icecore_replication.producers import Accepted, Duplicate, ProducerTable

PID, EPOCH = 77, 3


@pytest.fixture
def table() -> ProducerTable:
    """Seven batches of 10 records: sequences 0..69 at offsets 1000..1069."""
    filled = ProducerTable()
    for i in range(7):
        filled.apply(PID, EPOCH, 10 * i, 10, 1000 + 10 * i, i)
    return filled


@pytest.mark.parametrize(
    ("pid", "epoch", "sequence", "count", "expected"),
    [
        (0, 0, 12345, 1, Accepted()),
        (PID, EPOCH, 70, 5, Accepted()),
        (PID, EPOCH + 1, 0, 5, Accepted()),
        (99, 0, 0, 5, Accepted()),
        (PID, EPOCH, 60, 10, Duplicate(1060, 1070)),
        (PID, EPOCH, 20, 10, Duplicate(1020, 1030)),
        (PID, EPOCH, 10, 10, OutOfOrderSequenceError),  # a sixth batch back: forgotten
        (PID, EPOCH, 60, 9, OutOfOrderSequenceError),
        (PID, EPOCH, 71, 1, OutOfOrderSequenceError),
        (PID, EPOCH + 1, 70, 1, OutOfOrderSequenceError),
        (PID, EPOCH - 1, 70, 1, ProducerFencedError),
        (PID, EPOCH - 1, 0, 1, ProducerFencedError),
        (99, 0, 1, 1, OutOfOrderSequenceError),
    ],
)
def test_check(
    table: ProducerTable, pid: int, epoch: int, sequence: int, count: int, expected: object
) -> None:
    before = table.snapshot()
    if isinstance(expected, type) and issubclass(expected, IcecoreError):
        with pytest.raises(expected):
            table.check(pid, epoch, sequence, count)
    else:
        assert table.check(pid, epoch, sequence, count) == expected
    assert table.snapshot() == before


@pytest.mark.parametrize(("sequence", "count"), [(10, 10), (60, 9), (25, 10)])
def test_a_refusal_says_what_is_remembered(table: ProducerTable, sequence: int, count: int) -> None:
    """So that a batch of before is told from one that ends elsewhere: five are remembered."""
    with pytest.raises(OutOfOrderSequenceError) as refused:
        table.check(PID, EPOCH, sequence, count)
    assert refused.value.metadata == {"expected": "70", "oldest": "20"}
    with pytest.raises(OutOfOrderSequenceError) as refused:
        table.check(99, 0, sequence, count)
    assert refused.value.metadata == {"expected": "0"}


def test_states_of_a_range(table: ProducerTable) -> None:
    table.apply(PID + 2, EPOCH, 0, 4, 1070, 8)
    table.apply(PID + 1, EPOCH, 0, 3, 1074, 8)
    table.apply(PID + 1, EPOCH + 1, 0, 2, 1077, 8)
    first, second = (PID, 70, 20), (PID + 2, 4, 0)
    assert table.states(PID, PID + 2, EPOCH) == [first, second]
    assert table.states(PID, PID + 1, EPOCH) == [first]
    assert table.states(PID + 1, PID + 9, EPOCH) == [second]
    assert table.states(PID + 1, PID + 1, EPOCH + 1) == [(PID + 1, 2, 0)]
    assert not table.states(PID + 2, PID, EPOCH)


def test_new_epoch_forgets_the_old_window(table: ProducerTable) -> None:
    table.apply(PID, EPOCH + 1, 0, 10, 1070, 8)
    assert table.check(PID, EPOCH + 1, 0, 10) == Duplicate(1070, 1080)
    with pytest.raises(OutOfOrderSequenceError):
        table.check(PID, EPOCH + 1, 60, 10)


def test_apply_never_validates(table: ProducerTable) -> None:
    table.apply(PID, EPOCH, 500, 1, 1070, 8)
    assert table.check(PID, EPOCH, 501, 1) == Accepted()
    assert table.last_sequence(PID) == (EPOCH, 501)


def test_producer_zero_leaves_no_trace() -> None:
    table = ProducerTable()
    empty = table.snapshot()
    table.apply(0, 0, 0, 10, 0, 10**12)
    assert table.snapshot() == empty
    assert len(table) == 0


def test_snapshot_round_trip_goes_on_equally(table: ProducerTable) -> None:
    table.apply(5, 0, 0, 1, 1070, 9)
    copy = ProducerTable(table.snapshot())
    assert copy.snapshot() == table.snapshot()
    for either in (table, copy):
        assert either.check(PID, EPOCH, 20, 10) == Duplicate(1020, 1030)
        either.apply(PID, EPOCH, 70, 10, 1071, 10)
    assert copy.digest() == table.digest()


def test_snapshot_does_not_depend_on_when_snapshots_were_taken() -> None:
    """A restart loads the snapshot at the base and applies the rest: the same bytes."""
    rng = random.Random(1)
    log = [
        (rng.randrange(1, 30), rng.randrange(2), rng.randrange(100), 1, offset, offset * 10**7)
        for offset in range(300)
    ]
    straight = ProducerTable()
    for entry in log[:150]:
        straight.apply(*entry)
    restarted = ProducerTable(straight.snapshot())
    straight = ProducerTable(straight.snapshot())
    for entry in log[150:]:
        straight.apply(*entry)
        straight.snapshot()
        restarted.apply(*entry)
    assert straight.snapshot() == restarted.snapshot()


def test_expiry_follows_append_time_where_there_is_no_mark() -> None:
    table = ProducerTable()
    table.apply(1, 0, 0, 1, 0, 0)
    table.apply(2, 0, 0, 1, 1, 1)
    table.apply(3, 0, 0, 1, 2, producers.EXPIRY_MS + 1)
    kept = ProducerTable(table.snapshot())
    assert [kept.last_sequence(pid) for pid in (1, 2, 3)] == [None, (0, 1), (0, 1)]
    assert table.last_sequence(1) == (0, 1)  # an aborted seal forgets nobody


def test_cap_drops_whose_last_batch_is_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    table = ProducerTable()
    for offset, pid in enumerate([1, 2, 3, 1]):
        table.apply(pid, 0, offset, 1, offset, 0)
    reloaded = ProducerTable(table.snapshot())
    for each in (table, reloaded):
        each.apply(4, 0, 0, 1, 4, 0)
        assert [pid for pid in (1, 2, 3, 4) if each.last_sequence(pid)] == [1, 3, 4]
    assert table.snapshot() == reloaded.snapshot()


def test_golden_snapshot() -> None:
    small = ProducerTable()
    small.apply(7, 1, 40, 2, 9, 1234)
    assert small.snapshot() == bytes.fromhex(
        "69637074 0100 0000 01000000 d204000000000000"  # magic, version, reserved, count, newest
        "0700000000000000 01000000 01000000 d204000000000000"  # id, epoch, batches, append time
        "2800000000000000 02000000 0900000000000000"  # sequence, count, offset
        "a173d536"
    )


def test_golden_snapshot_that_says_how_much_it_keeps() -> None:
    small = ProducerTable(producers.starting_without_mark(b"", 32, 0))
    small.apply(7, 1, 40, 2, 9, 1234)
    assert small.snapshot() == bytes.fromhex(
        "69637074 0200 2000 01000000 d204000000000000"  # magic, version, kept, count, newest
        "0700000000000000 01000000 01000000 d204000000000000"  # id, epoch, batches, append time
        "2800000000000000 02000000 0900000000000000"  # sequence, count, offset
        "fa180c44"
    )


def test_as_many_batches_are_remembered_as_the_snapshot_says() -> None:
    table = ProducerTable(producers.starting_without_mark(b"", 12, 0))
    for i in range(20):
        table.apply(PID, EPOCH, 10 * i, 10, 1000 + 10 * i, i)
    copy = ProducerTable(table.snapshot())
    assert copy.batches_kept == table.batches_kept == 12
    assert copy.snapshot() == table.snapshot()
    for either in (table, copy):
        assert either.check(PID, EPOCH, 80, 10) == Duplicate(1080, 1090)
        with pytest.raises(OutOfOrderSequenceError):
            either.check(PID, EPOCH, 70, 10)
        either.apply(PID, EPOCH, 200, 10, 1200, 20)
    assert copy.digest() == table.digest()


def test_another_number_of_batches_changes_nothing_else(table: ProducerTable) -> None:
    before = table.snapshot()
    same = producers.starting_without_mark(before, 5, 0)
    assert same is before, "what was sealed is handed on byte for byte"
    assert producers.starting_without_mark(b"", 5, 0) == b""
    more = ProducerTable(producers.starting_without_mark(before, 8, 0))
    assert more.check(PID, EPOCH, 20, 10) == Duplicate(1020, 1030)
    assert more.last_sequence(PID) == table.last_sequence(PID)
    for i in range(7, 12):
        more.apply(PID, EPOCH, 10 * i, 10, 1000 + 10 * i, i)
    assert more.check(PID, EPOCH, 40, 10) == Duplicate(1040, 1050)
    fewer = ProducerTable(producers.starting_without_mark(more.snapshot(), 5, 0))
    with pytest.raises(OutOfOrderSequenceError):
        fewer.check(PID, EPOCH, 40, 10)
    assert fewer.check(PID, EPOCH, 70, 10) == Duplicate(1070, 1080)
    assert fewer.snapshot()[4:8] == before[4:8], "nodes of before can read it"


def test_all_batches_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "BATCHES_MAX", 20)
    table = ProducerTable(producers.starting_without_mark(b"", 8, 0))
    offset = 0
    for pid in (1, 2, 3):
        for i in range(9):
            table.apply(pid, 0, i, 1, offset, offset)
            offset += 1
    assert [pid for pid in (1, 2, 3) if table.last_sequence(pid)] == [2, 3]
    table.apply(2, 1, 0, 1, offset, offset)  # a new epoch remembers nothing of the old one
    for i in range(9):
        table.apply(4, 0, i, 1, offset + i, offset)
    assert [pid for pid in (1, 2, 3, 4) if table.last_sequence(pid)] == [2, 3, 4]
    assert ProducerTable(table.snapshot()).snapshot() == table.snapshot()


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, b"\4\0"), (6, b"\0\0"), (32, b"\0\0\0\0"), (32, b"\xff\xff\xff\x7f")],
    ids=["version", "keeps none", "no batch", "too many"],
)
def test_snapshots_that_cannot_be_are_refused(at: int, value: bytes) -> None:
    table = ProducerTable(producers.starting_without_mark(b"", 8, 0))
    table.apply(PID, EPOCH, 0, 10, 1000, 0)
    changed = bytearray(table.snapshot()[:-4])
    changed[at : at + len(value)] = value
    with pytest.raises(StorageError):
        ProducerTable(bytes(changed) + crc32c(changed).to_bytes(4, "little"))


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_damaged_snapshots_are_refused(table: ProducerTable, cut: int) -> None:
    good = table.snapshot()
    with pytest.raises(StorageError):
        ProducerTable(good[:-cut])
    flipped = bytearray(good)
    flipped[cut] ^= 1
    with pytest.raises(StorageError):
        ProducerTable(bytes(flipped))
