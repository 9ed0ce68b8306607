"""Calls to many nodes at once, and how long to be patient with them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from icecore.errors import IcecoreError
from icecore.model import NodeId
from icecore.rpc.ports import Clock

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741  # an item of a list


def by_node(items: Iterable[tuple[NodeId, I]]) -> dict[NodeId, list[I]]:
    """(node, item) pairs grouped by node, in order of first mention."""
    grouped: dict[NodeId, list[I]] = {}
    for node_id, item in items:
        grouped.setdefault(node_id, []).append(item)
    return grouped


async def fan_out(
    clock: Clock,
    calls: Mapping[NodeId, Coroutine[Any, Any, T]],
    *,
    required: Iterable[NodeId],
    patience_ms: float,
    is_enough: Callable[[Mapping[NodeId, T]], bool],
) -> dict[NodeId, T | IcecoreError]:
    """Call many nodes at once and stop waiting when more patience would gain nothing.

    Returns when all have answered. Of three things, all required nodes have answered, the answers
    are enough, ``patience_ms`` have passed, any two end the waiting as well. Calls that are still
    running then are cancelled and missing from the result.

    Args:
        clock: Counts the patience.
        calls: By node; each has its own time limit.
        required: Nodes worth the full patience.
        patience_ms: How long to wait for required ones when there is enough without them.
        is_enough: Asked with the good answers so far.
    """
    tasks: dict[NodeId, asyncio.Future[T]] = {
        node_id: asyncio.ensure_future(call) for node_id, call in calls.items()
    }
    wanted = [tasks[node_id] for node_id in required if node_id in tasks]
    deadline = clock.monotonic_ms() + patience_ms
    try:
        while waiting := [task for task in tasks.values() if not task.done()]:
            left_ms = deadline - clock.monotonic_ms()
            is_complete = all(task.done() for task in wanted)
            if is_complete and left_ms <= 0:
                break
            if (is_complete or left_ms <= 0) and is_enough(_good(tasks)):
                break
            timeout_s = left_ms / 1000 if left_ms > 0 else None
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks.values():
            task.cancel()
    results: dict[NodeId, T | IcecoreError] = {}
    for node_id, task in tasks.items():
        if not _is_finished(task):
            continue
        error = task.exception()
        if error is None:
            results[node_id] = task.result()
        elif isinstance(error, IcecoreError):
            results[node_id] = error
        else:
            raise error
    return results


def _is_finished(task: "asyncio.Future[T]") -> bool:
    return task.done() and not task.cancelled()


def _good(tasks: Mapping[NodeId, "asyncio.Future[T]"]) -> dict[NodeId, T]:
    return {
        node_id: task.result()
        for node_id, task in tasks.items()
        if _is_finished(task) and task.exception() is None
    }
