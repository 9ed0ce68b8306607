"""Questions about a cluster that have the same answers after a restore from its bucket.

They leave out what a restore may change: where a partition goes on, and where the log of one
without records starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from icecore import Admin, Consumer, Lookup, Producer
from tests.support.tier_places import until

VALUES = 6
"""Records of a topic have so many keys, tags and values of a header."""
EVERYTHING = "a consumer, everything"
Answers = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """Records of one topic: numbers that their values, keys, tags and headers are made of."""

    topic: str
    first: int
    count: int
    partition: int | None = None
    """None = by key."""


async def send(address: str, *parts: Sent) -> None:
    """Send records, and wait for all acks."""
    async with Producer(address) as producer:
        for part in parts:
            for number in range(part.first, part.first + part.count):
                kind = number % VALUES
                await producer.send_wait(
                    part.topic,
                    b"%s %d" % (part.topic.encode(), number),
                    key=b"key-%d" % kind,
                    partition=part.partition,
                    tags=(f"tag-{kind}", "all"),
                    headers={"a": b"%d" % kind, "b": b"%d" % kind},
                )
        await producer.flush()


async def until_whole(address: str) -> None:
    """Wait until look-ups of all topics are complete: nodes that were killed lead again."""
    async with Admin(address) as admin:
        for each in await admin.describe_topics():
            async with Lookup(address, each.name) as lookup:

                async def is_whole(lookup: Lookup = lookup) -> bool:
                    return (await lookup.find(newest_first=True)).complete

                await until(is_whole)


async def answers(address: str, moments: Sequence[datetime], kinds: int = VALUES) -> Answers:
    """Ask several dozen questions about each topic.

    Args:
        address: Of the cluster.
        moments: Times between appends.
        kinds: How many keys, tags and values of a header are asked for.
    """
    async with Admin(address) as admin:
        topics = await admin.describe_topics()
        found: Answers = {"topics": sorted((each.name, each.topic_id) for each in topics)}
        for each in topics:
            name = each.name
            found[f"{name}: partitions"] = each.settings.partitions, each.earlier_partitions
            found[f"{name}: settings"] = each.settings
            asked = await _of_topic(address, name, moments, kinds)
            starts = await admin.list_offsets(name, "earliest")
            # Without a record a log starts where it goes on.
            with_records = sorted({number for number, _, _ in asked[EVERYTHING]})
            found[f"{name}: starts"] = {each: starts[each].offset for each in with_records}
            for question, answer in asked.items():
                found[f"{name}: {question}"] = answer
    return found


async def _of_topic(address: str, topic: str, moments: Sequence[datetime], kinds: int) -> Answers:
    found: Answers = {}
    asked: dict[str, Mapping[str, Any]] = {"all": {}, "newest first": {"newest_first": True}}
    for kind in range(kinds):
        asked[f"key {kind}"] = {"keys": [b"key-%d" % kind]}
        asked[f"tag {kind}"] = {"tags_any": [f"tag-{kind}"]}
        for header in ("a", "b"):
            asked[f"header {header}={kind}"] = {"headers": {header: b"%d" % kind}}
    asked["no such key"] = {"keys": [b"key-x"]}
    asked["two tags"] = {"tags_all": ["all", "tag-1"]}
    asked["without a tag"] = {"tags_none": ["tag-1"], "newest_first": True}
    asked["offsets"] = {"from_offset": 5, "to_offset": 30}
    for at, moment in enumerate(moments):
        asked[f"since {at}"] = {"from_append_time": moment}
        asked[f"until {at}, newest first"] = {"to_append_time": moment, "newest_first": True}
    async with Lookup(address, topic) as lookup:
        for name, how in asked.items():
            found[name] = await _page(lookup, how)
        for at, moment in enumerate(moments):
            offsets = await lookup.offset_at(moment)
            found[f"offset at {at}"] = {
                number: (each.offset, each.append_timestamp_ms)
                for number, each in offsets.items()
                if each.append_timestamp_ms >= 0
            }
    for name, how in {
        EVERYTHING: {},
        "a consumer, by key": {"keys": [b"key-1"]},
        "a consumer, by header": {"headers": {"a": b"1"}},
        "a consumer, by tag": {"tags_any": ["tag-1"]},
    }.items():
        async with Consumer(address, topic, stop_at_end=True, **how) as consumer:  # type: ignore[arg-type]
            read = [(each.partition, each.offset, each.value) async for each in consumer]
        found[name] = sorted(read)
    return found


async def _page(lookup: Lookup, how: Mapping[str, Any]) -> tuple[bool, list[Any]]:
    """Return whether it is complete, and the records in the order of the answer."""
    is_complete, records = True, list[Any]()
    async for page in lookup.pages(max_count=1_000, **how):
        is_complete &= page.complete
        records += [
            (
                each.partition,
                each.offset,
                each.value,
                each.key,
                each.tags,
                each.headers,
                each.append_timestamp_ms,
            )
            for each in page.records
        ]
    return is_complete, records


def different(before: Answers, after: Answers) -> list[str]:
    """Return the questions whose answers are not the same, each with both."""
    return [
        f"{name}: {before.get(name)!r:.400} -> {after.get(name)!r:.400}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
