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


@dataclass(frozen=True, slots=True)
class WishVerdict:
    """The verdict on a wish, kept until the next look."""

    first: Wish
    """The wish of this stream when the node held most: later ones are compared with it."""
    last: Wish
    room: int = 0
    """Bytes to free now."""
    refusal: str = ""
    """Why nothing is deleted for it any more; empty = it counts."""


def judge(wish: Wish, before: WishVerdict | None) -> WishVerdict | None:
    """Judge the wish of a node at a look.

    Args:
        wish: What it says now.
        before: The verdict of the look before, of this node.

    Returns:
        The verdict; None when the node wishes for nothing.
    """
    if wish.wanted <= 0:
        return None
    if wish.wanted > wish.used:
        return WishVerdict(wish, wish, refusal="it asks for more than its disk has in use")
    if before is None or before.last.stream != wish.stream:
        return WishVerdict(wish, wish)
    if before.last.heartbeat == wish.heartbeat:
        return replace(before, last=wish, room=0)
    first = wish if wish.held > before.first.held else before.first
    refusal = before.refusal or _refusal(first, wish)
    if refusal:
        return WishVerdict(first, wish, refusal=refusal)
    lasting = min(wish.wanted, before.last.wanted)
    step = max(wish.held // STEP_SHARE, 1)
    return WishVerdict(first, wish, room=max(0, min(lasting, step) - wish.going))


def _refusal(first: Wish, wish: Wish) -> str:
    """Return why deleting seems to make no room; empty = it does, or too little has gone to say."""
    gone = first.held - wish.held - wish.going
    gained = first.wanted - wish.wanted
    if gone <= 0 or gone * STEP_SHARE < first.held or gained * GAIN_SHARE >= gone:
        return ""
    return f"{gone} bytes have gone since it asked for {first.wanted}, and nothing shows it"
