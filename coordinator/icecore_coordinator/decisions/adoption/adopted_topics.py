"""Topics of metadata that are adopted: their names, settings and partitions. Pure.

What old metadata know stays. A topic that they do not know has the name that nodes heard last, and
the settings that its bucket has, or else those of its newest segment.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from icecore.errors import InvalidTopicNameError
from icecore.model import SegmentId, check_topic_name
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions.adoption.published import ToldTopicCopies
from icecore_coordinator.decisions.adoption.told import Evidence, Finding, ToldNode
from icecore_coordinator.decisions.remote.imported import ImportedTopic
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import TopicRecord, updated


def adopted_topics(
    state: ClusterState,
    nodes: Sequence[ToldNode],
    told: Mapping[SegmentId, Evidence],
    bucket: Mapping[bytes, ToldTopicCopies],
    leap: int,
) -> tuple[list[TopicRecord], list[Finding]]:
    """Return all topics: those that metadata know, and those of which nodes or a bucket have
    segments."""
    findings: list[Finding] = []
    names = told_names(nodes)
    owners = {name: topic_id for topic_id, name in names.items()}
    counts = told_partitions(nodes)
    newest: dict[bytes, Evidence] = {}
    for each in told.values():
        topic_id, number = each.copies[0].key
        counts[topic_id] = max(counts.get(topic_id, 0), number + 1)
        if topic_id not in newest or newest[topic_id].segment_id < each.segment_id:
            newest[topic_id] = each
    for topic_id, there in bucket.items():
        counts[topic_id] = max(counts.get(topic_id, 0), there.topic.partitions)
    found = []
    for topic_id, known in state.topics.items():
        count = max(known.partitions, counts.get(topic_id, 0))
        changes: dict[str, object] = {}
        if topic_id in state.tiers.topics:  # of two forms in object storage the later one counts
            changes["settings_version"] = known.settings_version + leap
        if count > known.partitions:
            changes |= {"partitions": count, "partition_counts": (0, count)}
        owner = owners.get(known.name, topic_id)
        if known.is_live and owner != topic_id:
            changes["name"] = free = f"{known.name[:200]}.found-{topic_id.hex()[:8]}"
            findings.append(
                Finding(f"another topic is called {known.name!r} by now, so this one is {free!r}")
            )
        found.append(updated(known, **changes) if changes else known)
    taken = {each.name: each.topic_id for each in found if each.is_live}
    for topic_id in sorted({*newest, *bucket} - state.topics.keys()):
        in_bucket = bucket.get(topic_id)
        name = names.get(topic_id) or _heard_name(told.values(), topic_id)
        name = name or (in_bucket.topic.name if in_bucket is not None else "")
        free = _free_name(name, topic_id, taken)
        if free != name:
            said = f"a topic that was called {name!r}" if name else "no node knows its name: it"
            findings.append(
                Finding(
                    f"{said} comes back as {free!r}. To rename it: icecore topic delete {free}, "
                    f"then icecore topic undelete --topic-id {topic_id.hex()} --as NAME",
                    free,
                )
            )
        taken[free] = topic_id
        if in_bucket is not None:
            found.append(_stored_topic(in_bucket.topic, free, counts[topic_id], leap))
            continue
        findings.append(
            Finding(
                "the metadata did not know this topic: it has the settings of its newest segment,"
                " keeps all records, and is not tiered. Alter it as it was",
                free,
            )
        )
        found.append(_new_topic(topic_id, free, counts[topic_id], newest[topic_id], leap))
    return found, findings


def told_names(nodes: Iterable[ToldNode]) -> dict[bytes, str]:
    """Return the names of topics that nodes heard last, by topic id."""
    return {each.topic_id: each.name for node in nodes for each in node.topics}


def told_partitions(nodes: Iterable[ToldNode]) -> dict[bytes, int]:
    """Return the most partitions that nodes heard of, by topic id."""
    counts: dict[bytes, int] = {}
    for node in nodes:
        for topic in node.topics:
            counts[topic.topic_id] = max(counts.get(topic.topic_id, 0), topic.partitions)
    return counts


def _heard_name(told: Iterable[Evidence], topic_id: bytes) -> str:
    for each in told:
        record = each.record
        if each.copies[0].topic_id == topic_id and record is not None and record.topic:
            return record.topic
    return ""


def _free_name(name: str, topic_id: bytes, taken: Collection[str]) -> str:
    """The name of a topic that comes back, or another one where it is taken or not known."""
    try:
        check_topic_name(name)
    except InvalidTopicNameError:
        name = ""
    if name and name not in taken:
        return name
    return f"{name[:200] or 'topic'}.found-{topic_id.hex()[:8]}"


def _new_topic(topic_id: bytes, name: str, count: int, newest: Evidence, leap: int) -> TopicRecord:
    record = newest.record
    copies = len({each.node_id for each in newest.copies})
    settings = SegmentSettings(replication_factor=copies, min_insync_replicas=copies // 2 + 1)
    return TopicRecord(
        topic_id=topic_id,
        name=name,
        partitions=count,
        settings=record.settings if record is not None else settings,
        partition_counts=(0, count),
        settings_version=leap,
        version=1,
    )


def _stored_topic(stored: ImportedTopic, name: str, count: int, leap: int) -> TopicRecord:
    """Return a topic as its bucket has it."""
    counts = stored.known_counts
    return TopicRecord(
        topic_id=stored.topic_id,
        name=name,
        partitions=count,
        settings=stored.settings,
        delete_grace_ms=stored.delete_grace_ms,
        partition_counts=counts if counts[-1] == count else (0, count),
        retention=stored.retention,
        tiering=stored.tiering,
        settings_version=leap,
        version=1,
    )
