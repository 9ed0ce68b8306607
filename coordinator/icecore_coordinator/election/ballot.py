"""The port to an election: coordinators that stand for one cluster, each as long as its session
lives.

An election decides who may begin, and nothing else. That only one coordinator changes metadata
follows from the coordinator epoch in the store alone (R36, R120), whoever thinks to be elected.
``etcd_ballot.py`` implements the port, and so does the simulator.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from icecore_coordinator.election.candidacy import Candidate


class CandidateSession(NamedTuple):
    """A promise of the election to keep a candidate for so long after each renewal."""

    session: int
    ttl_ms: float


class Ballot(Protocol):
    """All candidates of one cluster. Every call may fail with StorageError; nothing is known
    then."""

    async def enter(self, address: str) -> CandidateSession:
        """Stand behind all others; what this member stood with before is gone.

        Raises:
            ConfigurationError: The election refuses this process.
            OutOfSpaceError: It takes no candidates for now.
        """
        ...

    async def renew(self, session: int) -> float:
        """Begin a session anew: its length in ms, counted from the call; 0 = it has ended."""
        ...

    async def leave(self, session: int) -> None:
        """End a session: the next one in line is elected at once. Idempotent."""
        ...

    async def candidates(self) -> tuple[Sequence[Candidate], int]:
        """Return all of them, the elected one first, and a mark for ``changed``."""
        ...

    async def changed(self, mark: int, within_s: float) -> None:
        """Wait until candidates have come or gone since that list, or for so long."""
        ...

    async def close(self) -> None:
        """Release everything; sessions end by themselves. Idempotent."""
        ...
