"""Threads that run functions for the loop: how many, in which order, and what ends them."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator

import pytest

from icecore_node.io.thread_pool import ThreadPool

THREADS = 3


@pytest.fixture
async def pool() -> AsyncIterator[ThreadPool]:
    pool = ThreadPool(THREADS, "reader")
    yield pool
    await asyncio.to_thread(pool.close)


async def test_results_and_exceptions_come_to_who_waits(pool: ThreadPool) -> None:
    assert await pool.run(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 7, 0)
    with pytest.raises(SystemExit):
        await pool.run(exit, 3)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run(next, iter(()))
    assert await pool.run(str, 7) == "7"  # the thread is still there


async def test_the_thread_that_ended_last_goes_on(pool: ThreadPool) -> None:
    gate = threading.Barrier(THREADS)
    names = await asyncio.gather(*[pool.run(_meet, gate) for _ in range(THREADS)])
    assert sorted(names) == [f"reader_{number}" for number in range(THREADS)]
    used: set[int] = set()
    for _ in range(20):
        await asyncio.sleep(0.01)  # it tells its result before it is idle
        used.add(await pool.run(threading.get_ident))
    assert len(used) == 1


def _meet(gate: threading.Barrier) -> str:
    gate.wait(10)
    return threading.current_thread().name


async def test_never_more_threads(pool: ThreadPool) -> None:
    def count() -> int:
        time.sleep(0.0005)
        return sum(thread.name.startswith("reader_") for thread in threading.enumerate())

    counts = await asyncio.gather(*[pool.run(count) for _ in range(200)])
    assert max(counts) == THREADS


async def test_first_come_first() -> None:
    pool, gate, order = ThreadPool(1, "only"), threading.Event(), list[int]()
    calls = [pool.run(gate.wait, 10), *[pool.run(order.append, number) for number in range(50)]]
    gate.set()
    await asyncio.gather(*calls)
    assert order == list(range(50))
    await asyncio.to_thread(pool.close)


async def test_who_is_cancelled_while_it_waits_is_left_out(pool: ThreadPool) -> None:
    gate, ran = threading.Event(), list[int]()
    held = [pool.run(gate.wait, 10) for _ in range(THREADS)]
    waiting = [pool.run(ran.append, number) for number in range(4)]
    waiting[1].cancel()
    held[0].cancel()  # it goes on, and nobody hears of it
    gate.set()
    await asyncio.gather(*held, *waiting, return_exceptions=True)
    assert sorted(ran) == [0, 2, 3]


async def test_close_lets_what_waits_run(pool: ThreadPool) -> None:
    ran: list[int] = []
    for number in range(20):
        pool.run(_slowly, ran, number)
    await asyncio.to_thread(pool.close)
    assert sorted(ran) == list(range(20))
    assert not any(thread.name.startswith("reader_") for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="reader are closed"):
        pool.run(str, 7)
    await asyncio.to_thread(pool.close)  # again, and nothing happens


def _slowly(ran: list[int], number: int) -> None:
    time.sleep(0.002)
    ran.append(number)


def test_a_loop_that_has_ended_is_told_nothing() -> None:
    """As when a node stops while a read hangs: the thread ends all the same."""
    pool, gate = ThreadPool(1, "left"), threading.Event()

    async def leave() -> None:
        pool.run(gate.wait, 10)

    asyncio.run(leave())
    gate.set()
    pool.close()
    assert not any(thread.name == "left_0" for thread in threading.enumerate())


async def test_nothing_of_a_call_stays(pool: ThreadPool) -> None:
    class Large:
        """Megabytes of an answer."""

    def made() -> Large:
        return Large()

    found = await pool.run(made)
    gone = weakref.ref(found)
    del found
    for _ in range(100):
        if gone() is None:
            break
        await asyncio.sleep(0.01)
    gc.collect(0)
    assert gone() is None


async def test_an_exception_is_gone_when_nobody_holds_it(pool: ThreadPool) -> None:
    """Or what its frames hold, answers of megabytes, would wait for the garbage collector."""

    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused

    gone: list[weakref.ref[Refused]] = []
    gc.disable()
    try:
        for _ in range(3):
            try:
                await pool.run(refuse)
            except Refused as error:
                gone.append(weakref.ref(error))
        for _ in range(100):  # its thread may still be about to let go of it
            if not any(each() for each in gone):
                break
            await asyncio.sleep(0.01)
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()


async def test_many_calls_at_once_all_come_back(pool: ThreadPool) -> None:
    async def caller(number: int) -> int:
        total = 0
        for step in range(50):
            total += await pool.run(divmod, number * 50 + step, 1) == (number * 50 + step, 0)
        return total

    assert await asyncio.gather(*[caller(number) for number in range(40)]) == [50] * 40


async def test_threads_begin_as_they_are_told() -> None:
    begun: list[str] = []
    pool = ThreadPool(1, "told", lambda: begun.append(threading.current_thread().name))
    await pool.run(str)
    await pool.run(str)
    assert begun == ["told_0"]
    pool.close()


async def test_what_the_system_refuses_is_done_by_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, gate = ThreadPool(THREADS, "few"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.run(str, 7)
    held = pool.run(gate.wait, 10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        later = [pool.run(str, number) for number in range(5)]
    gate.set()
    assert await asyncio.gather(held, *later) == [True, "0", "1", "2", "3", "4"]
    both = threading.Barrier(2)
    names = await asyncio.gather(pool.run(_meet, both), pool.run(_meet, both))
    assert len(set(names)) == 2  # there are more again
    await asyncio.to_thread(pool.close)
