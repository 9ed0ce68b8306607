"""The reference of the Python interface, written from docstrings: what programs import."""

from dataclasses import dataclass

FOLDER = "docs/reference/python"
INDEX = f"{FOLDER}/index.md"
HEAD = """# Python

All names that a program imports. `icecore` itself has the classes for asyncio, and
[`icecore.blocking`](threads.md) has the same for threads. Ends of offsets are exclusive; the unit
stands last in a name.

```{toctree}
"""


@dataclass(frozen=True)
class Part:
    """A page with names, each ``KIND NAME`` as Sphinx's autodoc calls the kind."""

    page: str
    title: str
    about: str
    names: tuple[str, ...]


def _classes(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"class {module}.{name}" for name in names)


def _data(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"data {module}.{name}" for name in names)


PARTS = (
    Part(
        "asyncio",
        "For asyncio",
        "Each is used as `async with`.",
        _classes("icecore", "Producer", "Consumer", "Lookup", "Admin"),
    ),
    Part(
        "threads",
        "For threads",
        "The same in blocking form, for programs without an event loop.",
        _classes("icecore.blocking", "Producer", "SendHandle", "Consumer", "Lookup", "Admin"),
    ),
    Part(
        "options",
        "Options and settings",
        "Keywords of the classes above, settings of a topic, and conditions of a search.",
        (
            *_classes("icecore", "ProducerOptions", "ConsumerOptions", "TopicSettings", "Retry"),
            *_classes("icecore", "Acks", "Codec"),
            "class icecore.topic_settings.TopicFields",
            *_classes("icecore.topic_settings", "SegmentSettings", "FlushMode", "FlushBounds"),
            "class icecore.codec.batch.BatchLimits",
            "class icecore.client.produce.options.RecordArguments",
            "class icecore.client.conditions.SearchArguments",
        ),
    ),
    Part(
        "records",
        "Records and handles",
        "Values that producers, consumers and look-ups take and return.",
        (
            *_classes("icecore", "Record", "RecordMetadata", "BatchMetadata", "ProducerMetrics"),
            *_classes("icecore.client.produce.batches", "SendHandle", "BatchHandle"),
            "class icecore.client.produce.given_columns.ArrowLike",
            *_classes("icecore", "LookupPage"),
            *_classes(
                "icecore.client.types",
                *("SearchOutcome", "SegmentOutcome", "OffsetResult", "SavedPosition"),
                *("PositionChange", "SnapshotHold"),
            ),
            *_classes("icecore.model", "Segment", "SegmentState", "NodeInfo", "NodeState"),
            *_data("icecore.model", "SegmentId", "Epoch", "Generation", "NodeId", "Incarnation"),
        ),
    ),
    Part(
        "answers",
        "Answers of the admin",
        "Plain values, never messages of gRPC.",
        (
            *_classes(
                "icecore.client.types",
                *("TopicDescription", "PartitionDescription", "TopicMetadata"),
                *("PartitionMetadata", "DeletedTopic", "DeletedRecords", "ProducerNameInfo"),
                *("RollResult", "ClusterTiering", "TopicTiering", "PublishedCopy"),
            ),
            *_classes(
                "icecore.client.cluster_types",
                *("ClusterDescription", "NodeDescription", "DiskUsage", "SegmentMove", "Alert"),
                *("LimitUse", "AdoptFinding", "AdoptedMetadata", "MetadataBackup"),
            ),
            *_classes("icecore.client.admin.tiering", "MergePlan", "MergeGroup", "MergedSegment"),
        ),
    ),
    Part(
        "errors",
        "Errors",
        "[errors](../errors.md) says which code means what, and what to do.",
        ("module icecore.errors",),
    ),
    Part(
        "spark",
        "Spark",
        "[spark](../../spark.md) shows how they are used.",
        (
            "module icecore.spark",
            "class icecore.spark.held.HeldSnapshot",
            "class icecore.spark.options.AsOf",
        ),
    ),
    Part(
        "testing",
        "For tests",
        "A cluster of your own in a fixture, in a container, or in a program.",
        (
            "module icecore.testing",
            "module icecore.testing.fixtures",
            "module icecore.testing.container",
            "class icecore.dev.LocalCluster",
            "class icecore.process.members.Member",
        ),
    ),
)


def written() -> dict[str, str]:
    """Return the text of each page."""
    listed = "".join(f"{each.page}\n" for each in PARTS)
    pages = {INDEX: f"{HEAD}:maxdepth: 1\n\n{listed}```\n"}
    return pages | {f"{FOLDER}/{each.page}.md": _text(each) for each in PARTS}


def _text(part: Part) -> str:
    lines = [f"# {part.title}\n\n{part.about}\n\n```{{eval-rst}}\n"]
    for each in part.names:
        kind, _, name = each.partition(" ")
        lines.append(f".. auto{kind}:: {name}\n" + "   :members:\n" * (kind != "data") + "\n")
    return "".join([*lines, "```\n"])
