"""Decides how much of a node's wish for room is met now. Pure.

A wish is a number in a heartbeat: the node may be mistaken about its disk, and a heartbeat may be
forged. Records that went for it do not come back. So one heartbeat is not enough, and a wish is met
in steps. After each step the wish must have become smaller; else deleting makes no room, and no
more is deleted until a person has looked (R105).
"""

from dataclasses import dataclass, replace

STEP_SHARE = 4
"""A step frees at most one part in so many of what the node holds."""
GAIN_SHARE = 2
"""The wish must shrink by at least one part in so many of what has gone: indexes and files made in
advance grow meanwhile."""
NONSENSE = "that is more than its disk has in use"


@dataclass(frozen=True, slots=True)
class Wish:
    """A heartbeat's wish for room, and what metadata know of the node at that moment. In bytes."""

    stream: int
    """Number of the heartbeat stream; a node's next stream has another one."""
    heartbeat: int
    """Number of the heartbeat within its stream."""
    wanted: int
    used: int
    """In use on the node's disk, as the same heartbeat says."""
    held: int
    """Length of all logs that the node keeps, without what is to be deleted."""
    going: int
    """Ordered to be deleted, and not gone yet."""

    @property
    def total(self) -> int:
        """Length of all logs that lie on the node."""
        return self.held + self.going


@dataclass(frozen=True, slots=True)
class WishVerdict:
    """The verdict on a wish, kept until the next look."""

    first: Wish
    """The wish of this stream when most lay on the node: later ones are compared with it."""
    last: Wish
    waiting: int
    """The least that was to be deleted at any look: that may wait for a disk that is away."""
    room: int = 0
    """Bytes to free now."""
    refusal: str = ""
    """Why nothing is deleted for it; empty = it counts."""
    is_final: bool = False
    """The refusal holds until the wish or its stream ends."""


def judge(wish: Wish, before: WishVerdict | None, slack_bytes: int) -> WishVerdict | None:
    """Judge the wish of a node at a look.

    Args:
        wish: What it says now.
        before: The verdict of the look before, of this node.
        slack_bytes: Least that must have gone before it is asked whether that made room.

    Returns:
        The verdict; None when the node wishes for nothing.
    """
    if wish.wanted <= 0:
        return None
    if before is not None and before.last.stream != wish.stream:
        before = None
    if wish.wanted > wish.used:
        return _nonsense(wish, before)
    if before is None:
        return WishVerdict(wish, wish, wish.going)
    if before.last.heartbeat == wish.heartbeat:
        return replace(before, room=0)
    first = wish if wish.total > before.first.total else before.first
    waiting = min(before.waiting, wish.going)
    refusal = before.refusal if before.is_final else _refusal(first, wish, slack_bytes)
    if refusal:
        return WishVerdict(first, wish, waiting, refusal=refusal, is_final=True)
    step = max(wish.held // STEP_SHARE, 1) - (wish.going - waiting)
    lacking = min(wish.wanted, before.last.wanted) - wish.going
    return WishVerdict(first, wish, waiting, room=max(0, min(lacking, step)))


def _nonsense(wish: Wish, before: WishVerdict | None) -> WishVerdict:
    """Let a wish count for nothing: the next one begins, and a final refusal stays."""
    empty = replace(wish, wanted=0, held=0, going=0)
    if before is None:
        return WishVerdict(empty, empty, wish.going, refusal=NONSENSE)
    refusal = before.refusal if before.is_final else NONSENSE
    return replace(before, last=empty, room=0, refusal=refusal)


def _refusal(first: Wish, wish: Wish, slack_bytes: int) -> str:
    """Return why deleting seems to make no room; empty = it does, or too little has gone to say."""
    gone = first.total - wish.total
    gained = first.wanted - wish.wanted
    is_much = gone > 0 and gone >= max(first.total / STEP_SHARE, slack_bytes)
    if not is_much or gained * GAIN_SHARE >= gone:
        return ""
    return f"{gone} bytes were deleted since it asked for {first.wanted}, and that made no room"
