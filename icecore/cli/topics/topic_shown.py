"""Show topics: as documents, or as text and tables.

The fields of documents are those of docs/reference/commands-contract.md.

A document says what a topic is and where its records are, in the words of the options and of the
tables. What only servers care about (digests, incarnations, versions) is in no document.
"""

from typing import Any, Final

from icecore.cli.output import Output, counted, plain, size
from icecore.cli.records.times import duration, iso_time
from icecore.client.types import PartitionDescription, TopicDescription
from icecore.model import records_between
from icecore.topic_settings import NO_LIMIT, SETTINGS, Setting, SettingKind

SUMMARY: Final = "name partitions replicas records segments length under_replicated leaderless"
"""Columns of the list of topics,"""
DELETED: Final = "name topic_id partitions records deleted_at grace_left"
"""and of those that are deleted."""
_PARTITION: Final = (
    "partition leader isr replicas start high_watermark segments length missing lossy tiered "
    "remote_only"
)


def document(topic: TopicDescription, table: str = "") -> dict[str, Any]:
    """A topic for programs; with the URL of its table, where it has one."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "settings": plain(topic.settings),
        "partitions": [_partition(each) for each in topic.partitions],
        "earlier_partitions": list(topic.earlier_partitions),
        "deleted_at": iso_time(topic.deleted_at_ms) if topic.deleted else None,
        "grace_left_ms": topic.grace_left_ms if topic.deleted else None,
        "holds": [
            {"lease_id": each.lease_id.hex(), "owner": each.owner, "left_ms": each.left_ms}
            for each in topic.holds
        ],
        "table": table or None,
    }


def _partition(each: PartitionDescription) -> dict[str, Any]:
    tail = each.tail
    return {
        "partition": each.partition,
        "leader": (tail and tail.leader) or None,
        "isr": list(tail.isr) if tail else [],
        "replicas": list(tail.replicas) if tail else [],
        "epoch": tail.epoch if tail else None,
        "segment_id": tail.segment_id if tail else None,
        "state": tail.state.name.lower() if tail else None,
        "log_start_offset": each.log_start_offset,
        "high_watermark": each.high_watermark,
        "length_bytes": each.length_bytes,
        "segments": each.segments,
        "under_replicated_segments": each.under_replicated_segments,
        "lossy_segments": each.lossy_segments,
        "tiered_segments": each.tiered_segments,
        "remote_only_segments": each.remote_only_segments,
        "left_out": [list(span) for span in each.left_out],
    }


def summary(topic: TopicDescription) -> dict[str, Any]:
    """One line of a list."""
    parts = topic.partitions
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": len(parts),
        "replicas": topic.settings.replication_factor,
        "records": sum(
            records_between(each.log_start_offset, each.high_watermark, each.left_out)
            for each in parts
        ),
        "segments": sum(each.segments for each in parts),
        "length_bytes": sum(each.length_bytes for each in parts),
        "under_replicated": sum(each.under_replicated_segments for each in parts),
        "leaderless": sum(not (each.tail and each.tail.leader) for each in parts),
    }


def deleted_summary(topic: TopicDescription) -> dict[str, Any]:
    """One line of the list of topics that can be undeleted."""
    return {
        **summary(topic),
        "deleted_at_ms": topic.deleted_at_ms,
        "deleted_at": iso_time(topic.deleted_at_ms),
        "grace_left_ms": topic.grace_left_ms,
        "grace_left": duration(topic.grace_left_ms),
    }


def show_list(output: Output, topics: list[TopicDescription]) -> None:
    """All topics that there are."""
    rows = [summary(topic) for topic in topics]
    if output.is_json:
        output.json(rows)
        return
    for row in rows:
        row["length"] = size(row["length_bytes"])
        row["under_replicated"] = row["under_replicated"] or None
        row["leaderless"] = row["leaderless"] or None
    output.table(rows, SUMMARY.split())


def show(output: Output, topic: TopicDescription, table: str = "") -> None:
    """One topic: its settings, a line for each partition, and where its table is."""
    if output.is_json:
        output.json(document(topic, table))
        return
    title = f"{topic.name}: {counted(len(topic.partitions), 'partition')}, {settings_line(topic)}"
    output.table(map(_partition_row, topic.partitions), _PARTITION.split(), title)
    if table:
        output.note(f"table: {table}")


def settings_line(topic: TopicDescription) -> str:
    """All settings but the number of partitions, with units as people say them."""
    values = plain(topic.settings)
    rows = [row for row in SETTINGS.values() if row.name != "partitions"]
    # An older coordinator does not know all of them.
    said = [row for row in rows if values[row.name] is not None]
    return ", ".join(f"{_name(row)} {_value(row, values[row.name])}" for row in said)


def _name(row: Setting) -> str:
    bare = row.name.removesuffix("_ms").replace("_bytes", "_size")
    return row.title or bare.replace("_", " ")


def _value(row: Setting, value: Any) -> str:
    if row.is_limit and value == NO_LIMIT:
        return "unlimited"
    if row.kind is SettingKind.NAMES:
        return ",".join(value) or "none"
    if row.kind is SettingKind.BYTES:
        return size(value)
    if row.kind is SettingKind.MS:
        return duration(value)
    return str(value)


def _partition_row(each: PartitionDescription) -> dict[str, Any]:
    tail = each.tail
    return {
        "partition": each.partition,
        "leader": tail.leader if tail else None,
        "isr": tail.isr if tail else (),
        "replicas": tail.replicas if tail else (),
        "start": each.log_start_offset,
        "high_watermark": each.high_watermark,
        "segments": each.segments,
        "length": size(each.length_bytes),
        "missing": each.under_replicated_segments or None,
        "lossy": each.lossy_segments or None,
        "tiered": each.tiered_segments or None,
        "remote_only": each.remote_only_segments or None,
    }
