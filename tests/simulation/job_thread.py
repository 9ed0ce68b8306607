"""A program without an event loop in a simulated world: a thread that runs only while the loop
stands still for it.

Jobs block where they wait. Here their code runs in a real thread, and what it waits for is a
coroutine that the loop runs meanwhile. Loop and thread hand each other the turn, so there is never
more than one at work, and a seed decides everything as before. When the process is killed, the
thread is told so at the place where it waits, and every further wait of it ends the same way.
"""

import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from tests.simulation.process import ProcessKilled

T = TypeVar("T")
R = TypeVar("R")


class JobThread(Generic[T]):
    """One program.

    Args:
        body: What it does; it is given this object, to wait with.
    """

    def __init__(self, body: "Callable[[JobThread[T]], T]") -> None:
        self._body = body
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._its_turn, self._our_turn = threading.Semaphore(0), threading.Semaphore(0)
        self._asked: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_dead = self._is_over = False
        self._result: list[T] = []
        self._failure: BaseException | None = None

    async def run(self) -> T:
        """Let it come to its end. Raises what it raises."""
        self._thread.start()
        try:
            while not self._hand_over():
                assert self._asked is not None
                try:
                    self._answer, self._error = await self._asked(), None
                except Exception as error:
                    self._answer, self._error = None, error
        finally:
            self._is_dead = True
            while not self._is_over:
                self._hand_over()
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._result[0]

    def wait(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """On the thread: the result of a coroutine, which is made and run on the loop.

        Raises:
            ProcessKilled: The process has ended.
        """
        if not self._is_dead:
            self._asked = make
            self._our_turn.release()
            self._its_turn.acquire()
        if self._is_dead:
            raise ProcessKilled
        if self._error is not None:
            raise self._error
        return cast(R, self._answer)

    def _hand_over(self) -> bool:
        """Let the thread go on until it waits, or ends; whether it has ended."""
        self._its_turn.release()
        self._our_turn.acquire()
        return self._is_over

    def _run(self) -> None:
        self._its_turn.acquire()
        try:
            self._result.append(self._body(self))
        except BaseException as error:
            self._failure = error
        self._is_over = True
        self._our_turn.release()


class Waiting:
    """Methods of an asyncio object, as a program without a loop calls them.

    Args:
        thread: Of the program.
        inner: The object.
        step: What happens before each call.
    """

    def __init__(
        self, thread: "JobThread[Any]", inner: Any, step: Callable[[str], Awaitable[None]]
    ) -> None:
        self._thread = thread
        self._inner = inner
        self._step = step

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        def call(*given: Any, **named: Any) -> Any:
            async def one() -> Any:
                await self._step(name)
                return await method(*given, **named)

            return self._thread.wait(one)

        return call
