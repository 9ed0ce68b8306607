"""Restricts a producer to its process, its thread and its event loop.

Its batches are lists that no lock guards, and what it waits for belongs to one loop. So another
thread, another loop and a fork of the process are refused at once, by an error that says why.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from icecore.errors import ForkedError, IcecoreError, InvalidRequestError

_FORKED: Final = (
    "the producer belongs to the parent of this process: make clients after the fork only, or "
    "begin processes with multiprocessing's start method spawn"
)


class Home:
    """The process, thread and event loop of one producer.

    Args:
        on_fork: Called in a fork of the process, with the error that says so.
    """

    def __init__(self, on_fork: Callable[[IcecoreError], None]) -> None:
        self._on_fork = on_fork
        self._is_forked = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """None before the start and after the end."""

    def enter(self) -> None:
        """It is here from now on."""
        self.loop = asyncio.get_running_loop()
        _homes.add(self)

    def leave(self) -> None:
        """It is closed."""
        self.loop = None

    def check(self) -> None:
        """Raises ForkedError, or InvalidRequestError outside of the thread and the loop."""
        if self._is_forked:
            raise ForkedError(_FORKED)
        if self.loop is None:
            return
        try:
            is_here = self.loop is asyncio.get_running_loop()
        except RuntimeError:  # there is none
            is_here = False
        if not is_here:
            raise InvalidRequestError(
                "a producer is used on its event loop only: icecore.blocking is for threads"
            )

    def note_fork(self) -> None:
        """This process is a child of the one that it belongs to."""
        self._is_forked = True
        self._on_fork(ForkedError(_FORKED))


_homes: "WeakSet[Home]" = WeakSet()


def _note_fork() -> None:
    for home in _homes:
        home.note_fork()


os.register_at_fork(after_in_child=_note_fork)
