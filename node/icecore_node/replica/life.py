r"""The life of a replica: which states there are, what happens to it, and which moves are legal.

A replica is in exactly one ``Life``. What happens to it is an event, a small value; ``MOVES`` holds
every legal move, and whatever is not in it is a mistake of ours (``IllegalMove``), never of a peer
or a disk. ``Replica.move`` is the only one who moves a life, and changes what belongs to it.

::

              Begun              Led                 RoleEnded
    PREPARED ------> IDLE ---------------> LED ---------------> RESIGNED
       |             ^  ^ \ Followed
       | CopyBegun   |  |  `------------> FOLLOWED
       v    CopyWhole|  `-----------------'  RoleEnded
    COPYING ---------'
                       SALVAGED (made so, see maintenance/salvage.py)

    IDLE, LED, FOLLOWED, RESIGNED  -- Promised -->  FENCED      (a role ends with it)
    all without a role that have a base            -- Sealed -->     SEALED
    all but GONE                                   -- Condemned -->  UNKNOWN  (a role ends with it)
    all                                            -- Removed -->    GONE     (a role ends with it)

Only IDLE gets a role. RESIGNED is apart from IDLE because leadership is never resumed, FENCED
because nothing but a write-back appends to it any more. A promise to one that has no role to lose
(PREPARED, COPYING, SALVAGED, SEALED, UNKNOWN, GONE) is remembered and changes nothing else. Some
orders wait for the disk while the replica is condemned or removed; what they then report (Begun,
CopyWhole, Sealed) leaves it UNKNOWN or GONE.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from icecore.model import Epoch, SegmentId
from icecore_node.storage.engine import LogTail, SegmentIdentity
from icecore_replication.producers import ProducerTable


class ReplicaRole(Protocol):
    """The role that appends to a replica: ``Leader`` or ``Follower``.

    It ends by ``stop``, ``fence`` or ``give_up``.
    """

    @property
    def high_watermark(self) -> int:
        """Readers stop here."""
        ...

    @property
    def durable_end_offset(self) -> int:
        """Return how far the log is durable, as the role knows it."""
        ...

    def stop(self, why: str) -> None:
        """The replica is to do something else."""
        ...

    def fence(self, epoch: Epoch) -> None:
        """The replica promised this epoch."""
        ...

    def give_up(self, why: str) -> None:
        """The replica can't go on: whoever counts on it must hear of it at once."""
        ...


class Life(Enum):
    """The current state of a replica."""

    PREPARED = "prepared"
    """Files exist; where the log begins is not known yet."""
    COPYING = "copying"
    """A copy that is not whole yet: its end says nothing about what the segment holds."""
    SALVAGED = "salvaged"
    """The provable part of an UNKNOWN log; it counts for one unclean recovery alone."""
    IDLE = "idle"
    """Its log may be led or followed, and nobody does."""
    LED = "led"
    FOLLOWED = "followed"
    RESIGNED = "resigned"
    """This process led it once, and never will again."""
    FENCED = "fenced"
    """It promised a higher epoch than its own: only a write-back appends to it."""
    SEALED = "sealed"
    """Its bytes are final."""
    UNKNOWN = "unknown"
    """Damaged, or not provably whole: it plays no role and counts for nothing."""
    GONE = "gone"
    """Deleted, about to be, or set aside: it plays no role and counts for nothing."""

    @property
    def is_intact(self) -> bool:
        """Neither UNKNOWN nor GONE."""
        return self in INTACT

    @property
    def is_idle(self) -> bool:
        """Intact, and neither led, followed nor sealed: fenced, or waiting for an assignment."""
        return self in IDLE

    @property
    def counts(self) -> bool:
        """Return whether where such a log ends may be told to a coordinator; else it is UNKNOWN."""
        return self in COUNTS

    @property
    def is_donor(self) -> bool:
        """Return whether copies may be made of such a log."""
        return self in DONORS


WITH_ROLE: Final = frozenset({Life.LED, Life.FOLLOWED})
INTACT: Final = frozenset(Life) - {Life.UNKNOWN, Life.GONE}
IDLE: Final = INTACT - WITH_ROLE - {Life.SEALED}
"""Neither led, followed nor sealed, and not lost either."""
COUNTS: Final = WITH_ROLE | {Life.IDLE, Life.RESIGNED, Life.FENCED, Life.SEALED}
"""Where such a log ends may be told to a coordinator."""
DONORS: Final = COUNTS | {Life.SALVAGED}
"""Copies may be made of it: it counts, or a person let its rest count."""


# --- what happens ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun:
    """Base and starting state are on disk. They are given once (R60)."""

    identity: SegmentIdentity
    tail: LogTail
    producers: ProducerTable


@dataclass(frozen=True, slots=True)
class CopyBegun:
    """It is to be filled by a donor."""


@dataclass(frozen=True, slots=True)
class CopyWhole:
    """It holds all that the donor was asked for, and the disk says so."""


@dataclass(frozen=True, slots=True)
class Led:
    """The coordinator made this node the leader of its segment."""

    leader: ReplicaRole


@dataclass(frozen=True, slots=True)
class Followed:
    """The coordinator made this node a follower of its segment's leader."""

    follower: ReplicaRole


@dataclass(frozen=True, slots=True)
class RoleEnded:
    """The role stepped down, or the replica is to do something else."""

    why: str


@dataclass(frozen=True, slots=True)
class Promised:
    """It appends nothing below this epoch, which is higher than its own, any more."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Sealed:
    """The log ends here for ever, and the disk says so."""

    tail: LogTail


@dataclass(frozen=True, slots=True)
class Condemned:
    """It is damaged, or can't be proved to be whole."""

    why: str


@dataclass(frozen=True, slots=True)
class Removed:
    """It is to be deleted, or was set aside."""

    why: str


Event: TypeAlias = (
    Begun
    | CopyBegun
    | CopyWhole
    | Led
    | Followed
    | RoleEnded
    | Promised
    | Sealed
    | Condemned
    | Removed
)


# --- what follows from it -------------------------------------------------------------------------


def _from(lives: Iterable[Life], event: type[Event], after: Life) -> dict[tuple[Life, type], Life]:
    return {(life, event): after for life in lives}


def _unmoved(lives: Iterable[Life], event: type[Event]) -> dict[tuple[Life, type], Life]:
    return {(life, event): life for life in lives}


_LOST: Final = (Life.UNKNOWN, Life.GONE)

MOVES: Final[Mapping[tuple[Life, type], Life]] = {
    (Life.PREPARED, Begun): Life.IDLE,
    (Life.COPYING, Begun): Life.COPYING,
    (Life.PREPARED, CopyBegun): Life.COPYING,
    (Life.COPYING, CopyBegun): Life.COPYING,  # again, after one that failed early
    (Life.COPYING, CopyWhole): Life.IDLE,
    (Life.IDLE, Led): Life.LED,
    (Life.IDLE, Followed): Life.FOLLOWED,
    (Life.LED, RoleEnded): Life.RESIGNED,
    (Life.FOLLOWED, RoleEnded): Life.IDLE,
    **_from(
        (Life.IDLE, Life.LED, Life.FOLLOWED, Life.RESIGNED, Life.FENCED), Promised, Life.FENCED
    ),
    **_unmoved((Life.PREPARED, Life.COPYING, Life.SALVAGED, Life.SEALED, *_LOST), Promised),
    **_from(
        (Life.IDLE, Life.RESIGNED, Life.FENCED, Life.COPYING, Life.SALVAGED), Sealed, Life.SEALED
    ),
    **_from(INTACT, Condemned, Life.UNKNOWN),
    **_from(Life, Removed, Life.GONE),
    **_unmoved(_LOST, Begun),
    **_unmoved(_LOST, CopyBegun),
    **_unmoved(_LOST, CopyWhole),
    **_unmoved(_LOST, Sealed),
}
"""All legal moves."""


class IllegalMove(AssertionError):
    """An event that can't happen to a replica in this life: a mistake in this node's code."""

    def __init__(
        self, segment_id: SegmentId, life: Life, event: object, story: Iterable[str]
    ) -> None:
        """
        Args:
            segment_id: Of the replica.
            life: In which it is.
            event: What was to happen to it.
            story: Its last moves, oldest first.
        """
        told = " ".join(story) or "none"
        super().__init__(
            f"segment {segment_id} is {life.name}: {type(event).__name__} is no move of it; "
            f"moves before: {told}"
        )
