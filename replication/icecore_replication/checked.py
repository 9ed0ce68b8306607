"""A core and the checks of it: the only way in which a core is stepped, in production and in tests.

The checks cost as much as a step, so production makes them after each so many. Little is lost by
that: ends, versions and seals never go back, so a step that broke this shows at the next look as
well, and a core that is inconsistent in itself rarely heals. A violation is a bug or a broken
machine. What the core asks for then must not be done, nor what it would ask for later: its process
has to end, and recovery (R35 of docs/design/protocol.md) settles the segment from what is on disks.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

from icecore_replication.effects import FollowerEffect, LeaderEffect
from icecore_replication.follower import FollowerCore
from icecore_replication.inputs import FollowerInput, LeaderInput
from icecore_replication.invariants import check_state, check_step, view
from icecore_replication.leader import LeaderCore

CoreT = TypeVar("CoreT", LeaderCore, FollowerCore)


class Checked(Generic[CoreT]):
    """Steps one core, and looks at it now and then.

    Args:
        core: Fresh. Others may read it, only this steps it.
        check_every_steps: 1 = after each step.

    Raises:
        InvariantError: The core is wrong from the start.
    """

    def __init__(self, core: CoreT, *, check_every_steps: int) -> None:
        self.core: CoreT = core
        self._is_closed = False
        self._check_every_steps = check_every_steps
        self._steps_left = check_every_steps
        self._last_seen = view(core)
        check_state(core, self._last_seen)

    @overload
    def step(
        self: "Checked[LeaderCore]", inputs: Sequence[LeaderInput], now_ms: float
    ) -> list[LeaderEffect]: ...

    @overload
    def step(
        self: "Checked[FollowerCore]", inputs: Sequence[FollowerInput], now_ms: float
    ) -> list[FollowerEffect]: ...

    def step(self, inputs: Sequence[Any], now_ms: float) -> Any:
        """Step the core: the same inputs, the same effects. After ``close`` nothing happens.

        Args:
            inputs: What happened.
            now_ms: Monotonic.

        Raises:
            InvariantError: The core broke an invariant; its effects are withheld, for ever.
            InternalError: As the core does.
        """
        if self._is_closed:
            return []
        effects = self.core.step(inputs, now_ms)
        self._steps_left -= 1
        if not self._steps_left:
            self._steps_left = self._check_every_steps
            self._check()
        return effects

    def close(self) -> None:
        """The core can't be trusted: it is told nothing more, and asks for nothing."""
        self._is_closed = True

    def _check(self) -> None:
        self._is_closed = True  # stays so if one of these raises
        now = view(self.core)
        check_state(self.core, now)
        check_step(self._last_seen, self.core, now)
        self._last_seen = now
        self._is_closed = False
