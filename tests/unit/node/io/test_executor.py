"""Reader threads that leave the processors to others."""

import os
import threading

import pytest

from icecore_node.io.executor import ThreadExecutor


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
