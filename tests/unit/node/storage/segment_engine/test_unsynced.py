"""The unsynced bytes of a log are counted by two parts that know nothing of each other."""

from icecore_node.storage.segment_engine.unsynced import Unsynced


def test_a_sync_takes_what_was_there_when_it_began() -> None:
    unsynced = Unsynced()
    assert unsynced.add(100)
    began = unsynced.written_bytes
    assert not unsynced.add(30)
    assert not unsynced.take(began)
    assert unsynced.bytes == 30
    assert unsynced.take(unsynced.written_bytes)
    assert not unsynced.bytes


def test_the_last_of_it_goes_once() -> None:
    unsynced = Unsynced()
    unsynced.add(100)
    assert unsynced.take(100)
    assert not unsynced.take(100)
    assert not unsynced.take(50)
    assert unsynced.add(10) and unsynced.bytes == 10


def test_a_sync_is_due_once_for_so_many_bytes() -> None:
    unsynced = Unsynced()

    def due_after(length_bytes: int) -> bool:
        unsynced.add(length_bytes)
        return unsynced.is_due(100)

    assert [due_after(60) for _ in range(4)] == [False, True, False, True]
    unsynced.take(240)  # by a timer, say: what it took is not asked for
    assert [due_after(60) for _ in range(2)] == [False, True]
    unsynced.add(90)
    unsynced.take(unsynced.written_bytes)
    assert [due_after(60) for _ in range(2)] == [False, True]
