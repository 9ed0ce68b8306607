"""Plans a batch read of the data source: which tasks there are, and where each reads its records.

The cluster is asked for offsets first and for copies then. Which offsets are read from objects is
decided by pure functions of ``tiered.py``; here is what has to be asked and tried for it.
"""

from collections.abc import Sequence

from icecore.blocking import Admin
from icecore.errors import ConfigurationError
from icecore.spark.filters import Pushed
from icecore.spark.objects.store import SparkStore, spark_url, warn_of_nodes
from icecore.spark.options import ReadOptions
from icecore.spark.plan import (
    FILE_RECORDS_MAX,
    RANGE_RECORDS_MAX,
    Snapshot,
    ranges_within,
    within,
)
from icecore.spark.ranges import RangePartition
from icecore.spark.reading import RangeSource
from icecore.spark.snapshot import (
    ADMIN_TIMEOUT_S,
    copies_of,
    offsets_of,
    offsets_since,
    snapshot_to_read,
)
from icecore.spark.tiered import TieredFile, bordered, by_files, divided, placed


def plan_tasks(options: ReadOptions, least: Pushed) -> list[RangePartition]:
    """Take the snapshot, split it, and say where each part of it is read.

    Args:
        options: Of the read.
        least: What filters of the query leave of it.

    Raises:
        ConfigurationError, OffsetOutOfRangeError: Options do not fit what there is.
        IcecoreError: The topic is unknown, or nobody answered in time.
    """
    keys = least.keys_of(options.keys)
    if keys is None:
        return []
    opens_files = by_files(options.tiered, keys, options.tags)
    with Admin(options.bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
        snapshot = snapshot_to_read(admin, options, with_segments=not opens_files)
        starts, ends = _bounds(admin, options, least, snapshot)
        tier_url, copies = copies_of(admin, snapshot) if opens_files else ("", ())
    files = divided(snapshot.topic_id, copies, starts, ends).files
    url = _reachable(options, tier_url, files)
    if not url:
        files = ()
    if files:
        snapshot = bordered(snapshot, files)
    source = RangeSource(
        options.bootstrap,
        options.topic,
        snapshot.topic_id,
        keys,
        options.tags,
        options.fail_on_data_loss,
    )
    spans = within(snapshot, options.offset_ranges, starts, ends)
    largest = FILE_RECORDS_MAX if files else RANGE_RECORDS_MAX
    planned = ranges_within(snapshot, spans, options.min_partitions, largest)
    is_strict = options.tiered == "files"
    return [
        RangePartition(source, wanted, found, url, is_strict=is_strict)
        for wanted, found in placed(planned, files)
    ]


def _bounds(
    admin: Admin, options: ReadOptions, least: Pushed, snapshot: Snapshot
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the start and the end offset of each partition that options and filters leave."""
    starts = offsets_of(admin, options, snapshot, "starting")
    ends = offsets_of(admin, options, snapshot, "ending")
    if least.from_append_ms is not None:
        found = offsets_since(admin, snapshot, least.from_append_ms)
        starts = {number: max(start, found[number]) for number, start in starts.items()}
    if least.to_append_ms is not None:
        found = offsets_since(admin, snapshot, least.to_append_ms)
        ends = {number: min(end, found[number]) for number, end in ends.items()}
    for number in starts:
        starts[number] = max(starts[number], least.from_offset)
        ends[number] = min(ends[number], least.to_offset)
        if least.partitions is not None and number not in least.partitions:
            ends[number] = starts[number]
    return starts, ends


def _reachable(options: ReadOptions, tier_url: str, files: Sequence[TieredFile]) -> str:
    """Return what Spark calls the store, if this process can read there before a job begins;
    executors may still be worse off. Empty = nodes are asked, and a warning says so."""
    if not files:
        return ""
    try:
        url = options.tier_url or spark_url(tier_url)
        SparkStore(url).probe(files[0].key)
    except ConfigurationError as error:
        if options.tiered == "files":
            raise
        warn_of_nodes(options.topic, error)
        return ""
    return url
