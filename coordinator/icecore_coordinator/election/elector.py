"""The shell of one candidate: it performs what ``candidacy.py`` decides, and says who acts.

Loop only. All calls run beside each other, and none of them holds up the clock: whether this
process may act is asked of the clock itself, at each act.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

from icecore.errors import ConfigurationError, IcecoreError, InternalError
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_coordinator.election.ballot import Ballot
from icecore_coordinator.election.candidacy import (
    RETRIES,
    CallFailed,
    Candidacy,
    Enter,
    Entered,
    Input,
    Leave,
    Listed,
    Refuse,
    Renew,
    Renewed,
    Resigned,
    TakeOver,
    TimePassed,
    Yield,
    step,
)

_log = logging.getLogger(__name__)
_LEAVE_S: Final = 1.0
"""A process that stops waits for its session to end no longer than this."""


class Elector:
    """One candidate in the election of a cluster. ``start``, then ``stop``.

    Args:
        ballot: Closed by ``stop``.
        clock: Of this process.
        member: Identity of the data folder.
        address: ``host:port`` that the others name while this one acts; empty = none.
        ttl_ms: Length of a session.
    """

    def __init__(
        self, ballot: Ballot, clock: Clock, member: str, address: str, ttl_ms: float
    ) -> None:
        self._ballot, self._clock = ballot, clock
        self._state = Candidacy(member, address, ttl_ms)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._error: IcecoreError | None = None
        self._has_failed = asyncio.Event()
        self.placed = asyncio.Event()
        """Set once all candidates were seen, this one among them."""
        self.elected = asyncio.Event()
        """Set while this process is to act."""
        self.deposed = asyncio.Event()
        """Set while it is not."""
        self.deposed.set()
        self.why_deposed = ""
        self.trouble = ""
        """Why the election does not answer; empty = it does."""

    def start(self) -> None:
        """Begin to stand."""
        self._spawn(self._keep_time())
        self._spawn(self._look())

    async def stop(self) -> None:
        """End the session, so that others need not wait for its end. Idempotent."""
        session = self._state.session
        self._state, _ = step(self._state, Resigned(), self._clock.monotonic_ms())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if session:
            with contextlib.suppress(IcecoreError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._ballot.leave(session)
        await self._ballot.close()

    def resign(self) -> None:
        """This process was elected and can't act: it stands behind the others."""
        self._give(Resigned())

    def is_sure(self) -> bool:
        """Return whether this process may act now."""
        return self._state.is_sure(self._clock.monotonic_ms())

    @property
    def active_address(self) -> str:
        """``host:port`` of the coordinator that acts; empty = nobody knows one."""
        return self._state.active_address

    async def failed(self) -> None:
        """Wait for what this process must end with.

        Raises:
            ConfigurationError: A person has to change settings.
            InternalError: The election has failed.
        """
        await self._has_failed.wait()
        assert self._error is not None
        raise self._error

    def _fail(self, error: IcecoreError) -> None:
        self._error = error
        self._has_failed.set()

    # --- inputs ---------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            self._give(TimePassed())
            wait_s = max(0.0, self._state.wake_ms - self._clock.monotonic_ms()) / 1000
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, self._state.ttl_ms / 1000)):
                    await self._changed.wait()

    async def _look(self) -> None:
        """See who stands. A watch may be silent, so all are listed again after half a session."""
        while True:
            sent_ms = self._clock.monotonic_ms()
            try:
                found, mark = await self._ballot.candidates()
                self._give(Listed(sent_ms, tuple(found)))
                self.trouble = ""
                await self._ballot.changed(mark, self._state.ttl_ms / 2000)
            except IcecoreError as error:
                self._note(error)
                await asyncio.sleep(self._state.ttl_ms / RETRIES / 1000)

    async def _enter(self) -> None:
        sent_ms = self._clock.monotonic_ms()
        try:
            entered = await self._ballot.enter(self._state.address)
        except IcecoreError as error:
            self._note(error)
            self._give(CallFailed(0))
            return
        self._give(Entered(sent_ms, entered.session, entered.ttl_ms))

    async def _renew(self, session: int) -> None:
        sent_ms = self._clock.monotonic_ms()
        try:
            ttl_ms = await self._ballot.renew(session)
        except IcecoreError as error:
            self._note(error)
            self._give(CallFailed(session))
            return
        self._give(Renewed(sent_ms, session, ttl_ms))

    async def _leave(self, session: int) -> None:
        try:
            await self._ballot.leave(session)
        except IcecoreError as error:  # it ends by itself
            event(_log, logging.INFO, "session_not_ended", error=error)

    # --- effects --------------------------------------------------------------------------------

    def _give(self, given: Input) -> None:
        self._state, effects = step(self._state, given, self._clock.monotonic_ms())
        for effect in effects:
            match effect:
                case Enter():
                    self._spawn(self._enter())
                case Renew():
                    self._spawn(self._renew(effect.session))
                case Leave():
                    self._spawn(self._leave(effect.session))
                case TakeOver():
                    event(_log, logging.INFO, "elected", address=self._state.address)
                    self.deposed.clear()
                    self.elected.set()
                case Yield():
                    event(_log, logging.WARNING, "deposed", why=effect.why)
                    self.why_deposed = effect.why
                    self.elected.clear()
                    self.deposed.set()
                case Refuse():
                    self._fail(ConfigurationError(effect.why))
        if any(each.session == self._state.session for each in self._state.candidates):
            self.placed.set()
        self._changed.set()

    def _note(self, error: IcecoreError) -> None:
        """The election does not answer, or refuses."""
        if isinstance(error, ConfigurationError):
            self._fail(error)
        if error.message != self.trouble:
            event(_log, logging.WARNING, "election_unwell", error=error)
        self.trouble = error.message

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that fails ends the process: without it this one would only seem to stand."""
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        event(_log, logging.ERROR, "task_failed", task="election", exc_info=error)
        self._fail(InternalError(f"the election failed: {error!r}"))
