"""The topics of a bucket that a restore brings back, and those that it leaves out.

Deleted topics stay in a bucket for their grace, and a name that was given again is there twice. A
restore takes what a reader of the lost cluster saw under each name. Whoever wants another topic
names it by its id. Nothing is left out without a word.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from icecore_node.remote.verify.bucket import TopicObjects
from icecore_node.remote.verify.restore_plan import NOTHING, RestoredTopic


@dataclass(kw_only=True)
class LeftOutTopic:
    """A topic of the bucket that is not restored."""

    topic: str
    topic_id: str
    why: str


Found: TypeAlias = tuple[TopicObjects, RestoredTopic]


def choose_topics(
    found: Sequence[Found], asked: Collection[str], *, with_deleted: bool
) -> tuple[list[RestoredTopic], list[LeftOutTopic]]:
    """Return the topics to restore, and the others.

    Args:
        found: The topics that were asked for, or all, each with its plan.
        asked: Their names and ids as they were given; empty = all.
        with_deleted: Whether deleted topics come back, too.
    """
    left: list[LeftOutTopic] = []
    by_name: dict[str, list[Found]] = {}
    for each in found:
        if why := _why_not(each, asked, with_deleted=with_deleted):
            left.append(_left(each, why))
        else:
            by_name.setdefault(each[1].topic, []).append(each)
    chosen: list[RestoredTopic] = []
    for some in by_name.values():
        best = max(some, key=lambda each: _rank(each, asked))
        chosen.append(best[1])
        left += _beaten(some, best, asked)
    return chosen, left


def _why_not(each: Found, asked: Collection[str], *, with_deleted: bool) -> str:
    """Return why a topic is left out whatever else is there; empty = it is not."""
    found, plan = each
    if _id_of(each) in asked:
        return ""
    if found.is_deleted and not with_deleted:
        return f"it is deleted; --with-deleted or --topic {_id_of(each)} brings it back"
    if found.is_deleted and plan.problems:
        return f"it is deleted, and not all of it is there: {plan.problems[0]}"
    is_unreadable = {*found.unreadable} - {*found.settings_keys}
    if plan.problems == [NOTHING] and not is_unreadable and plan.topic not in asked:
        return NOTHING
    return ""


def _rank(each: Found, asked: Collection[str]) -> tuple[bool, bool, int]:
    """The highest of one name comes back: one that was asked for by its id, else one that is not
    deleted, else the one that was written last."""
    found, _ = each
    attempts = (manifest.manifest.attempt for manifest in found.manifests)
    return _id_of(each) in asked, not found.is_deleted, max(attempts, default=0)


def _beaten(some: Sequence[Found], best: Found, asked: Collection[str]) -> Iterator[LeftOutTopic]:
    is_named, is_live, _ = _rank(best, asked)
    for each in some:
        if each is best:
            continue
        was_named, was_live, _ = _rank(each, asked)
        which = "which is newer"
        if is_named > was_named:
            which = "which was asked for"
        elif is_live > was_live:
            which = "which is not deleted"
        yield _left(
            each,
            f"topic {_id_of(best)} has the same name, {which}; --topic {_id_of(each)} alone brings "
            "this one back",
        )


def _left(each: Found, why: str) -> LeftOutTopic:
    return LeftOutTopic(topic=each[1].topic, topic_id=each[1].topic_id, why=why)


def _id_of(each: Found) -> str:
    return str(UUID(bytes=each[0].topic_id))
