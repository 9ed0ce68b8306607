"""The last inputs and effects of a core, kept for the day on which one of them turns out to be
wrong.

A ring of the very objects that went through the core: keeping them costs two calls a step, and text
is made of them only when somebody asks.
"""

from collections import deque
from typing import Final, get_args

from icecore_replication.effects import FollowerEffect, LeaderEffect

_KEPT: Final = 64
_EFFECTS: Final = (*get_args(LeaderEffect), *get_args(FollowerEffect))


class Story:
    """The last inputs and effects of one core; ``str`` of it has one line for each."""

    def __init__(self) -> None:
        recent: deque[object] = deque(maxlen=_KEPT)
        self._recent = recent
        self.took = recent.append
        """Call it with each input, before it is handled."""
        self.asked = recent.extend
        """Call it with the effects of a step."""

    def __str__(self) -> str:
        return "\n".join(
            f"asked {each}" if isinstance(each, _EFFECTS) else f"took {each}"
            for each in self._recent
        )
