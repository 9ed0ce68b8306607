"""Reader threads that leave the processors to others; workers whose results must be heard of."""

import asyncio
import os
import threading

import pytest

from icecore_node.io.executor import EXIT_STATUS, ThreadExecutor


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize("more", [0, 7])
async def test_only_the_readers_are_nice(more: int) -> None:
    before = niceness()
    executor = ThreadExecutor(reader_threads=1, niceness=before + more)
    assert await executor.run(niceness) == before + more
    assert await executor.run_first(niceness) == before
    assert niceness() == before
    executor.close()


@pytest.mark.parametrize("is_here", [False, True])
async def test_results_that_nobody_hears_of_end_the_process(is_here: bool) -> None:
    """A caller that waits for them would wait for ever, unnoticed."""
    ended = asyncio.Event()
    statuses: list[int] = []

    def fatal(status: int) -> None:
        statuses.append(status)
        ended.set()

    def deliver(_: object) -> None:
        raise AttributeError("a mistake of ours")

    executor = ThreadExecutor(reader_threads=1, fatal=fatal)
    worker = executor.worker("io-0", list[int], deliver, group_items_max=4)
    if is_here:
        worker.run_here([1])
    else:
        worker.submit(1)
    await asyncio.wait_for(ended.wait(), 10)
    assert statuses == [EXIT_STATUS]
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit(2)
    executor.close()
