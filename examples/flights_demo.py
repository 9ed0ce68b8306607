"""A year of real departures in and out of three nodes, one of which is killed half way.

    make demo

A coordinator and three nodes run as processes in a temporary folder. All 336,776 departures are
produced with acks=all and real fsyncs, keyed by tail number. Half way the node that leads most
partitions is killed with SIGKILL while batches are unresolved, and started again later. Then
everything is fetched and compared with the source; one aircraft's whole year is found by its key,
all flights of a carrier by tag. Then a node is killed again, and Spark computes delays from the
topic, of which a part is in object storage and a part is not; its numbers are compared with those
of pandas (DEMO_SPARK=0 leaves this out). What is left is sealed, and all sealed segments move into
a local folder as a table. The cluster is stopped, the digest of every copy of every sealed segment
is computed again from its file, and DuckDB counts the rows of the table. The last line is the
verdict; the exit status is 1 when anything differs, and the folder is then kept.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights import Departure, read_departures
from examples.flights_check import ROW_HEADER, Copies, Fetched, compare_copies
from examples.flights_search import Found, search
from examples.flights_table import Table, count, wait_until_tiered
from icecore import Admin, Consumer, Lookup, Producer
from icecore.cli.cluster import show_cluster
from icecore.cli.output import Output
from icecore.client.cluster_types import ClusterDescription
from icecore.client.produce.batches import SendHandle
from icecore.client.types import TopicDescription
from icecore.codec.record import partition_for_key
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.process.system import tune_process
from icecore.topic_settings import TopicSettings

if TYPE_CHECKING:  # Spark may be left out
    from examples.flights_pipeline import Pipeline

TOPIC = "flights"
TIER_FOLDER = "tier"
NODES, PARTITIONS, REPLICAS = 3, 6, 3
SEGMENT_BYTES = 1 << 20
TIER_UNTIL, KILL_AT, RESTART_AT = 0.4, 0.5, 0.75
FAILOVERS_MIN, COPIES_MIN = 2, 2
HEAL_TIMEOUT_S = 60.0
FETCH_TIMEOUT_S = 60.0
TIERED_MIN = 0.15
"""Share of the records that must be tiered before Spark reads them."""
_SHOWN_EVERY = 5000


@dataclass(slots=True)
class Run:
    """One run of the demo: what it works with, and what it found."""

    cluster: LocalCluster
    source: Sequence[Departure]
    output: Output
    began: float = field(default_factory=time.monotonic)
    produced: int = 0
    fetched: Fetched | None = None
    found: Found | None = None
    copies: Copies = field(default_factory=Copies)
    table: Table = field(default_factory=Table)
    pipeline: "Pipeline | None" = None
    state: ClusterDescription | None = None
    problems: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """A line of progress."""
        self.output.note(f"{time.monotonic() - self.began:6.1f} s  {text}")

    def check(self) -> list[str]:
        """Everything that is not as it must be."""
        found = [*self.problems, *self.copies.problems, *self.table.problems]
        fetched, searched, state = self.fetched, self.found, self.state
        if fetched is None or searched is None or state is None:
            return [*found, "the run did not come to its end"]
        found += [*fetched.problems, *searched.problems]
        if self.produced != len(self.source) or fetched.fetched != self.produced:
            found.append(f"{len(self.source)} departures, {fetched.fetched} fetched")
        if fetched.lost or fetched.duplicated or fetched.reordered or fetched.differing:
            found.append("what was fetched is not what was produced")
        if state.recoveries < FAILOVERS_MIN:
            found.append(f"{state.recoveries} failovers: the kill tested too little")
        if self.copies.min_copies < COPIES_MIN:
            found.append(f"a sealed segment has only {self.copies.min_copies} copies")
        if self.pipeline is not None:
            found += self.pipeline.problems
            if self.pipeline.rows != len(self.source):
                found.append(f"Spark read {self.pipeline.rows} flights")
        return found

    def last_line(self) -> str:
        """The verdict in figures."""
        fetched = self.fetched or Fetched(self.source)
        found = self.found or Found()
        values = {
            "produced": self.produced,
            "fetched": fetched.fetched,
            "lost": fetched.lost,
            "duplicated": fetched.duplicated,
            "reordered": fetched.reordered,
            "key_hits": found.key_hits,
            "tag_hits": found.tag_hits,
            "query_mismatches": found.mismatches,
            "failovers": self.state.recoveries if self.state else 0,
            "sealed_segments": self.copies.sealed_segments,
            "min_copies": self.copies.min_copies,
            "under_replicated": self.state.under_replicated if self.state else -1,
            "tiered_segments": self.table.tiered_segments,
            "table_rows": self.table.rows,
        }
        if self.pipeline is not None:
            values["spark_rows"] = self.pipeline.rows
            values["spark_mismatches"] = self.pipeline.mismatches
        values["elapsed_s"] = f"{time.monotonic() - self.began:.1f}"
        return "demo: " + " ".join(f"{name}={value}" for name, value in values.items())


# --- produce, with a kill in the middle ---------------------------------------------------------


async def produce(run: Run, admin: Admin) -> None:
    """Send all departures; kill a leader half way and start it again later."""
    total = len(run.source)
    tier_until, kill_at, restart_at = (
        int(total * part) for part in (TIER_UNTIL, KILL_AT, RESTART_AT)
    )
    restarting: asyncio.Task[None] | None = None
    victim = 0
    pending: list[tuple[SendHandle, int]] = []
    async with Producer(run.cluster.bootstrap, acks="all") as producer:
        with run.output.progress() as progress:
            task = progress.add_task("produce", total=total)
            for row, departure in enumerate(run.source):
                handle = await producer.send_wait(
                    TOPIC,
                    departure.value,
                    key=departure.key,
                    tags=departure.tags,
                    headers=((ROW_HEADER, b"%d" % row),),
                    timestamp_ms=departure.timestamp_ms,
                )
                if row == tier_until and wants_spark():
                    await _leave_the_rest_on_nodes(run, admin)
                if row >= kill_at and not victim:
                    if departure.key is not None:
                        pending.append((handle, partition_for_key(departure.key, PARTITIONS)))
                    victim = await _kill_a_leader(run, admin, pending)
                if victim and row >= restart_at and restarting is None:
                    restarting = asyncio.create_task(_restart(run, victim))
                if row % _SHOWN_EVERY == 0:
                    progress.update(task, completed=row)
            await producer.flush()
    run.produced = total
    run.note(f"{total:,} records acknowledged")
    if restarting is None:
        raise IcecoreError("no node could be killed while its batches were unresolved")
    await restarting


async def _kill_a_leader(run: Run, admin: Admin, pending: list[tuple[SendHandle, int]]) -> int:
    """Kill the node that leads most partitions, if a batch for one of them is unresolved now.

    Returns its id, 0 when the moment was not right; ``pending`` are the newest sends.
    """
    if len(pending) % 200 != 1:  # asking costs a round trip: not for each record
        return 0
    (topic,) = await admin.describe_topics([TOPIC])
    led: dict[int, set[int]] = {}
    for each in topic.partitions:
        if each.tail is not None and each.tail.leader:
            led.setdefault(each.tail.leader, set()).add(each.partition)
    victim = max(led, key=lambda node_id: len(led[node_id]))
    unresolved = sum(not handle.is_done for handle, at in pending if at in led[victim])
    if len(led[victim]) < FAILOVERS_MIN or not unresolved:
        return 0
    run.cluster.kill_node(victim)
    run.note(
        f"node {victim} killed: it led {len(led[victim])} partitions, "
        f"{unresolved}+ records to them were unresolved"
    )
    return victim


async def _restart(run: Run, node_id: int) -> None:
    await asyncio.to_thread(run.cluster.start_node, node_id)
    run.note(f"node {node_id} started again")


# --- fetch and compare --------------------------------------------------------------------------


async def fetch(run: Run) -> None:
    """Read the whole topic and compare each record with its source."""
    run.fetched = fetched = Fetched(run.source)
    with run.output.progress() as progress:
        task = progress.add_task("fetch", total=len(run.source))
        consumer = Consumer(run.cluster.bootstrap, TOPIC, stop_at_end=True)
        async with asyncio.timeout(FETCH_TIMEOUT_S), consumer:
            while not consumer.is_at_end:
                for record in await consumer.poll():
                    fetched.add(record)
                progress.update(task, completed=fetched.fetched)
    run.note(f"{fetched.fetched:,} records fetched and compared")


async def find(run: Run) -> None:
    """By key and by tag, in segments that are sealed and others that are not."""
    async with Lookup(run.cluster.bootstrap, TOPIC) as lookup:
        run.found = found = await search(lookup, run.source)
    run.note(f"{found.key_hits} flights of {found.key.decode()} found by key")
    run.note(f"{found.tag_hits:,} flights of {found.tag} found by tag")


async def heal(run: Run, admin: Admin) -> None:
    """Wait until every segment has all its copies again, and all digests are agreed on."""
    deadline = time.monotonic() + HEAL_TIMEOUT_S
    while True:
        state = run.state = await admin.describe_cluster()
        segments = await admin.list_segments(TOPIC)
        unsure = sum(bool(each.end_offset >= 0 and not each.full_digest) for each in segments)
        if not (state.under_replicated or state.offline_partitions or unsure):
            run.note("every segment has all its copies")
            return
        if time.monotonic() > deadline:
            run.problems.append(
                f"after {HEAL_TIMEOUT_S:g} s {state.under_replicated} segments lack copies, "
                f"{state.offline_partitions} partitions are offline, {unsure} lack a digest"
            )
            return
        await asyncio.sleep(0.2)


# --- Spark --------------------------------------------------------------------------------------


def wants_spark() -> bool:
    """Return whether Spark is a part of this run."""
    return os.environ.get("DEMO_SPARK", "1") != "0"


async def analyse(run: Run, admin: Admin) -> None:
    """Have Spark read the topic while it lies in two places and a node has just died."""
    from examples.flights_pipeline import RESULT_TOPIC, run_pipeline, start

    settings = TopicSettings(partitions=1, replication_factor=REPLICAS)
    await admin.create_topic(RESULT_TOPIC, settings)
    spark = await asyncio.to_thread(start)
    try:
        run.note(f"Spark {spark.version} is there")
        tiered = await _tiered_part(run, admin)
        if not TIERED_MIN <= tiered < 1:
            raise IcecoreError(f"{tiered:.0%} of the records are tiered: that tests too little")
        victim = await _kill_the_first_leader(run, admin)
        run.note(f"node {victim} killed; {tiered:.0%} of the records are in object storage")
        pipeline = asyncio.to_thread(
            run_pipeline, spark, run.cluster.bootstrap, TOPIC, run.source, run.note
        )
        run.pipeline = await pipeline
    finally:
        await asyncio.to_thread(spark.stop)
    await _restart(run, victim)
    await heal(run, admin)
    await admin.alter_topic(TOPIC, tier="on")


async def _leave_the_rest_on_nodes(run: Run, admin: Admin) -> None:
    """Wait until a good part is in object storage, and have no more copied for now.

    Raises:
        IcecoreError: It takes too long.
    """
    deadline = time.monotonic() + HEAL_TIMEOUT_S
    while (part := await _tiered_part(run, admin)) < TIERED_MIN:
        if time.monotonic() > deadline:
            raise IcecoreError(f"only {part:.0%} of the records were tiered in time")
        await asyncio.sleep(0.2)
    await admin.alter_topic(TOPIC, tier="off")


async def _tiered_part(run: Run, admin: Admin) -> float:
    """Return the tiered share of all records."""
    segments = await admin.list_segments(TOPIC)
    records = sum(each.end_offset - each.base_offset for each in segments if each.is_tiered)
    return records / len(run.source)


async def _kill_the_first_leader(run: Run, admin: Admin) -> int:
    (topic,) = await admin.describe_topics([TOPIC])
    leaders = [each.tail.leader for each in topic.partitions if each.tail is not None]
    victim = next(leader for leader in leaders if leader)
    run.cluster.kill_node(victim)
    return victim


# --- all of it ----------------------------------------------------------------------------------


async def drive(run: Run) -> None:
    """Everything that needs the cluster running, then the check of its files."""
    async with Admin(run.cluster.bootstrap) as admin:
        settings = TopicSettings(
            partitions=PARTITIONS,
            replication_factor=REPLICAS,
            segment_bytes=SEGMENT_BYTES,
            tier="on",
        )
        topic = await _create(admin, settings)
        await produce(run, admin)
        await fetch(run)
        await find(run)
        await heal(run, admin)
        if wants_spark():
            await analyse(run, admin)
        tiered = await wait_until_tiered(admin, TOPIC)
        run.note(f"{tiered} sealed segments are in object storage")
        await heal(run, admin)
        segments = await admin.list_segments(TOPIC)
        run.state = await admin.describe_cluster()
    run.problems += run.cluster.stop()
    run.note("stopped; computing digests from the files")
    folders = {i: run.cluster.folder / f"node-{i}" for i in run.cluster.addresses}
    run.copies = compare_copies(segments, folders)
    run.table = count(run.cluster.folder / TIER_FOLDER, topic.topic_id, run.source)
    run.note(f"DuckDB counts {run.table.rows:,} rows in {run.table.tiered_segments} objects")


async def _create(admin: Admin, settings: TopicSettings) -> TopicDescription:
    """As soon as a node has looked at its object store."""
    async with asyncio.timeout(HEAL_TIMEOUT_S):
        while not (await admin.describe_tiering()).tier_urls:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return await admin.create_topic(TOPIC, settings)


def main() -> int:
    """Exit status: 0 when nothing differs."""
    tune_process()
    output = Output(is_json=False, is_quiet=False)
    folder = Path(tempfile.mkdtemp(prefix="icecore-demo-"))
    output.note("reading the departures")
    cluster = LocalCluster(folder, NODES, tier_url=(folder / TIER_FOLDER).as_uri())
    run = Run(cluster, list(read_departures()), output)
    try:
        with run.cluster:
            run.note(f"{NODES} nodes and a coordinator in {folder}")
            asyncio.run(drive(run))
    except (IcecoreError, TimeoutError) as error:
        run.problems.append(f"{type(error).__name__}: {error}")
    if run.state is not None:
        show_cluster(output, run.state)
    problems = run.check()
    for problem in problems:
        output.error(problem)
    if problems:
        output.error(f"data and logs are kept in {folder}")
    else:
        shutil.rmtree(folder)
    print(run.last_line(), flush=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
