"""A reader that waits for a partition is woken by its changes alone, until it leaves."""

from functools import partial

from icecore_node.identity.readers import Readers

ONE, OTHER = (b"t", 0), (b"t", 1)


def test_each_reader_of_the_partition_is_woken_and_no_other() -> None:
    readers, woken = Readers(), list[str]()
    readers.watch(ONE, "a", lambda: woken.append("a"))
    readers.watch(ONE, "b", lambda: woken.append("b"))
    readers.watch(OTHER, "c", lambda: woken.append("c"))
    readers.wake(ONE)
    assert woken == ["a", "b"]


def test_who_left_is_not_woken_and_nothing_is_kept_of_it() -> None:
    readers, woken = Readers(), list[str]()
    readers.watch(ONE, "a", lambda: woken.append("a"))
    readers.leave(ONE, "a")
    readers.leave(ONE, "a")
    readers.wake(ONE)
    assert not woken and not readers._waiting


def test_a_reader_may_leave_while_it_is_woken() -> None:
    readers = Readers()
    for each in ("a", "b"):
        readers.watch(ONE, each, partial(readers.leave, ONE, each))
    readers.wake(ONE)
    assert not readers._waiting
