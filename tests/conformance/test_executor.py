"""Real threads: groups, order, delivery on the loop, and a worker that fails."""

import asyncio
import logging
import threading

import pytest

from icecore_node.io.executor import EXIT_STATUS, ThreadExecutor


async def test_items_come_in_order_and_results_on_the_loop() -> None:
    executor = ThreadExecutor()
    loop_thread, delivered = threading.get_ident(), list[tuple[int, int, list[int]]]()
    done = asyncio.Event()

    def process(group: list[int]) -> tuple[int, list[int]]:
        return threading.get_ident(), list(group)

    def deliver(result: object) -> None:
        assert isinstance(result, tuple)
        delivered.append((threading.get_ident(), *result))
        if sum(len(group) for _, _, group in delivered) == 1000:
            done.set()

    worker = executor.worker("io-0", process, deliver, group_items_max=64)
    for item in range(1000):
        worker.submit(item)
    await asyncio.wait_for(done.wait(), 10)
    executor.close()
    assert [item for _, _, group in delivered for item in group] == list(range(1000))
    assert {deliverer for deliverer, _, _ in delivered} == {loop_thread}
    assert {processor for _, processor, _ in delivered} != {loop_thread}
    assert max(len(group) for _, _, group in delivered) <= 64


async def test_what_queues_up_is_taken_as_one_group() -> None:
    executor = ThreadExecutor()
    gate, groups, done = threading.Event(), list[list[int]](), asyncio.Event()

    def process(group: list[int]) -> list[int]:
        gate.wait(10)
        return group

    def deliver(result: object) -> None:
        assert isinstance(result, list)
        groups.append(result)
        if result[-1] == 9:
            done.set()

    worker = executor.worker("io-0", process, deliver, group_items_max=6)
    worker.submit(0)
    await asyncio.sleep(0.05)
    for item in range(1, 10):
        worker.submit(item)
    gate.set()
    await asyncio.wait_for(done.wait(), 10)
    executor.close()
    assert groups == [[0], [1, 2, 3, 4, 5, 6], [7, 8, 9]]


async def test_close_processes_what_is_queued() -> None:
    executor = ThreadExecutor()
    seen: list[int] = []
    worker = executor.worker("io-0", seen.extend, lambda _: None, group_items_max=3)
    for item in range(100):
        worker.submit(item)
    executor.close()
    assert seen == list(range(100))
    with pytest.raises(RuntimeError):
        worker.submit(1)


async def test_an_exception_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    ended, statuses = threading.Event(), list[int]()

    def fatal(status: int) -> None:
        statuses.append(status)
        ended.set()

    executor = ThreadExecutor(fatal=fatal)

    def process(group: list[int]) -> None:
        raise OSError("disk on fire")

    worker = executor.worker("io-7", process, lambda _: None, group_items_max=3)
    with caplog.at_level(logging.CRITICAL):
        worker.submit(1)
        assert await asyncio.to_thread(ended.wait, 10)
    executor.close()
    assert statuses == [EXIT_STATUS]
    assert "io-7" in caplog.text and "disk on fire" in caplog.text


async def test_run_returns_and_raises() -> None:
    executor = ThreadExecutor(reader_threads=2)
    assert await executor.run(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await executor.run(divmod, 7, 0)
    executor.close()


async def test_heartbeats_wait_behind_no_reader() -> None:
    executor, gate = ThreadExecutor(reader_threads=2), threading.Event()
    reads = [asyncio.ensure_future(executor.run(gate.wait, 10)) for _ in range(5)]
    assert await asyncio.wait_for(executor.run_first(str, 7), 5) == "7"
    gate.set()
    assert all(await asyncio.gather(*reads))
    executor.close()
