"""The departures as a table: tiered by the cluster, counted by DuckDB when that is off."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import duckdb
from deltalake import DeltaTable

from examples.flights import Departure
from icecore import Admin
from icecore.errors import IcecoreError

TIER_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Table:
    """The table as independent programs read it."""

    tiered_segments: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)


async def wait_until_tiered(admin: Admin, topic: str) -> int:
    """Seal what is there and wait until all of it is in the table: how many segments that are.

    Raises:
        IcecoreError: It takes too long.
    """
    ends = await admin.list_offsets(topic, "latest")  # of leaders; the coordinator hears it later
    await admin.roll_topic(topic)
    deadline = time.monotonic() + TIER_TIMEOUT_S
    while True:
        [described] = await admin.describe_topics([topic])
        [tiers] = (await admin.describe_tiering([topic])).topics
        unsealed = sum(
            each.tail is None or each.tail.base_offset < ends[each.partition].offset
            for each in described.partitions
        )
        left = tiers.waiting_segments + tiers.uploading_segments + tiers.stale_tables
        if not (unsealed or left):
            return tiers.published_segments
        if time.monotonic() > deadline:
            raise IcecoreError(
                f"after {TIER_TIMEOUT_S:g} s {left} segments or tables wait: {tiers.last_error}"
            )
        await asyncio.sleep(0.2)


def count(folder: Path, topic_id: bytes, source: Sequence[Departure]) -> Table:
    """Read the table as anybody would, and compare it with the departures.

    Args:
        folder: Of the object store.
        topic_id: Of the topic.
        source: What was produced.
    """
    found = Table()
    files = DeltaTable(folder / str(UUID(bytes=topic_id))).file_uris()
    found.tiered_segments = len(files)
    with duckdb.connect() as connection:
        rows, places, keys, length_bytes = connection.execute(
            'select count(*), count(distinct (partition, "offset")), count(distinct key), '
            "sum(octet_length(value)) from read_parquet(?)",
            [files],
        ).fetchall()[0]
    found.rows = rows
    wanted = {
        "rows": (rows, len(source)),
        "places": (places, len(source)),
        "keys": (keys, len({each.key for each in source} - {None})),
        "bytes of values": (length_bytes, sum(len(each.value or b"") for each in source)),
    }
    for what, (got, due) in wanted.items():
        if got != due:
            found.problems.append(f"the table has {got} {what}, not {due}")
    return found
