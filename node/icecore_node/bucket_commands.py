"""``python -m icecore_node.bucket_commands COMMAND URL``: verify, plan, inventory, take-over, hive.

The tier commands of the CLI run this in a process of its own, because clients do not have the
libraries behind object stores. No cluster is asked: the metadata come in by stdin. The answer is
one JSON document on stdout; progress goes to stderr.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import Any, Final
from uuid import UUID

from icecore.errors import ConfigurationError, IcecoreError, ObjectStoreError, WrongClusterError
from icecore.process.system import SystemRng
from icecore.topic_settings import SETTINGS
from icecore_node.io.executor import ThreadExecutor

try:
    from icecore_node.remote.opening import open_store
    from icecore_node.remote.store.object_store import ObjectDeniedError, ObjectStoreSetupError
    from icecore_node.remote.store.obstore_store import StoreSettings
    from icecore_node.remote.verify.behind_table import has_unnamed
    from icecore_node.remote.verify.bucket import (
        Bucket,
        CountingStore,
        TopicObjects,
        list_log_again,
        read_bucket,
    )
    from icecore_node.remote.verify.bucket_acts import take_over, write_hive_file
    from icecore_node.remote.verify.bucket_check import BucketCheck, Published, TopicReport, name_of
    from icecore_node.remote.verify.restore_choice import choose_topics
    from icecore_node.remote.verify.restore_plan import (
        holders_of,
        plan_of,
        table_problem,
        without_remains,
    )
    from icecore_node.remote.verify.table_look import (
        TableLook,
        damage_of_log,
        look_at_table,
        removed_paths,
        take_over_table,
    )
except ImportError as missing:
    if missing.name not in ("obstore", "deltalake", "pyarrow"):
        raise
    sys.exit(f"icecore: {missing.name} is not installed: pip install 'icecore[tier]'")

READER_THREADS: Final = 2


class BucketCommands:
    """The acts on one bucket, each of which returns what is printed. Loop only.

    Args:
        given: The arguments.
        executor: Runs blocking work.
    """

    def __init__(self, given: argparse.Namespace, executor: ThreadExecutor) -> None:
        self._given = given
        self._executor = executor
        self._settings = StoreSettings(
            url=given.url,
            region=given.region,
            endpoint=given.endpoint,
            retries_max=3,
            makes_folder=False,
        )
        self._store = CountingStore(open_store(self._settings, executor))

    async def verify(self) -> dict[str, Any]:
        """See ``BucketCheck``."""
        published = _published(self._given.published)
        bucket = await self._bucket()
        check = BucketCheck(self._store, bucket, self._executor, self._told)
        reports: list[TopicReport] = []
        for topic, table in await self._chosen(bucket):
            known = None if published is None else published.pop(topic.topic_id, None)
            if published is not None and known is None:
                reports.append(_gone(topic, table))
                continue
            report = await check.topic(topic, table, known)
            if table and bucket.cluster_id and table.cluster_id != bucket.cluster_id:
                report.strange.append(f"the table says: {table.about!r}")
            reports.append(report)
        for topic_id, known in (published or {}).items():
            report = TopicReport(topic="", topic_id=str(UUID(bytes=topic_id)), has_table=False)
            if known:
                report.damage.append(f"{len(known)} copies are published, and nothing lies here")
            reports.append(report)
        return {
            **self._about(bucket),
            "damaged": sum(each.damaged for each in reports),
            "topics": [{**asdict(each), "damaged": each.damaged} for each in reports],
        }

    async def plan(self) -> dict[str, Any]:
        """See ``plan_of`` and ``choose_topics``. New numbers must be above those of topics that are
        not asked for."""
        bucket = await self._bucket(counts_all=True)
        looks = await self._chosen(bucket)
        self._adopt(bucket, looks)
        plans = [
            (topic, plan_of(bucket, topic, table, skip_gaps=self._given.skip_gaps))
            for topic, table in looks
        ]
        chosen, left = choose_topics(
            plans, self._given.topic, with_deleted=self._given.with_deleted
        )
        return {
            **self._about(bucket),
            "topics": [asdict(each) for each in chosen],
            "left_out": [asdict(each) for each in left],
            "other_tables": [
                topic.topic_id.hex()
                for topic, table in looks
                if table is not None and table.cluster_id != bucket.cluster_id
            ],
        }

    async def inventory(self) -> dict[str, Any]:
        """Everything that a cluster may get back beside what its nodes have: each topic, whether
        deleted or not, as ``plan_of`` has parts of it."""
        bucket = await self._bucket(counts_all=True)
        looks = await self._chosen(bucket)
        plans = [
            plan_of(bucket, topic, table, skip_gaps=self._given.skip_gaps, is_part=True)
            for topic, table in looks
        ]
        parts = [asdict(without_remains(each)) for each in plans]
        return {**self._about(bucket), "topics": parts}

    def _adopt(
        self, bucket: Bucket, looks: Sequence[tuple[TopicObjects, TableLook | None]]
    ) -> None:
        """Take what these clusters left for the bucket's own. Raises ConfigurationError."""
        there = bucket.clusters()
        holders = {each for topic, table in looks for each in holders_of(topic, table)}
        for each in self._given.adopt:
            if each not in there and each not in holders:
                known = ", ".join(f"{count} of {one}" for one, count in sorted(there.items()))
                raise ConfigurationError(
                    f"no copy in {self._given.url} is of cluster {each[:64]}; "
                    f"copies are {known or 'not there'}"
                )
        bucket.earlier = (*sorted({*bucket.earlier, *self._given.adopt}),)

    async def take_over(self) -> dict[str, Any]:
        """See ``bucket_acts.take_over``. The marker first: then the old cluster commits no more."""
        cluster_id = _id_of(self._given.cluster)
        bucket = await self._bucket()
        if bucket.cluster_id and bucket.cluster_id not in (self._given.old, cluster_id.hex()):
            raise WrongClusterError(
                f"{self._given.url} belongs to cluster {bucket.cluster_id} by now: look again"
            )
        is_new = await take_over(self._store, bucket, cluster_id, self._given.adopt, SystemRng())
        owners = {bucket.cluster_id, *bucket.earlier, *self._given.adopt}
        if is_new and bucket.cluster_id:
            owners |= {*bucket.clusters()}
        left = {}
        for topic in bucket.topics.values():
            if not topic.has_table:
                continue
            if damage := await self._log_damage(topic):
                left[topic.topic_id.hex()] = damage  # its topic is not restored either
                continue
            try:
                await self._executor.run(
                    take_over_table, self._settings, topic.topic_id, cluster_id, owners
                )
            except ObjectStoreError as error:
                if _is_of_store(error):
                    raise
                left[topic.topic_id.hex()] = error.message
        return {
            **self._about(bucket),
            "cluster_id": cluster_id.hex(),
            "was_taken": is_new,
            "tables_left": left,
        }

    async def hive(self) -> dict[str, Any]:
        """See ``write_hive_file``."""
        bucket, written = await self._bucket(), list[dict[str, Any]]()
        looks = await self._chosen(bucket)
        for topic, table in looks:
            if table is None:
                continue
            url = await write_hive_file(
                self._store, self._given.url, topic.topic_id, sorted(table.paths)
            )
            written.append({"topic": name_of(topic, table), "url": url, "files": len(table.paths)})
        for topic, _ in looks:
            if topic.table_damage:
                raise ObjectStoreError(f"{name_of(topic, None)}: {table_problem(topic)}")
        if not written:
            raise ConfigurationError(f"no table is in {self._given.url}")
        return {**self._about(bucket), "manifests": written}

    async def _bucket(self, *, counts_all: bool = False) -> Bucket:
        self._told("listing")
        topic_ids = [UUID(each).bytes for each in self._given.topic if _is_uuid(each)]
        everything = len(topic_ids) < len(self._given.topic)
        chosen = [] if everything else topic_ids
        return await read_bucket(self._store, chosen, counts_all=counts_all)

    async def _chosen(self, bucket: Bucket) -> list[tuple[TopicObjects, TableLook | None]]:
        """Topics that were asked for, with their tables. Raises ConfigurationError."""
        found, left = list[tuple[TopicObjects, TableLook | None]](), {*self._given.topic}
        for topic in bucket.topics.values():
            table = None
            if topic.has_table and not self._stays_deleted(topic):
                table = await self._table(topic)
            names = {name_of(topic, table), str(UUID(bytes=topic.topic_id))}
            if not self._given.topic or names & {*self._given.topic}:
                found.append((topic, table))
                left -= names
        if left:
            raise ConfigurationError(
                f"nothing of topic {', '.join(sorted(left))} is in {self._given.url}"
            )
        return found

    async def _table(self, topic: TopicObjects) -> TableLook | None:
        """Content of a topic's table. None where there is none, and where it is damaged: then the
        topic says so, and the others are not touched."""
        topic.table_damage = await self._log_damage(topic)
        if topic.table_damage:
            return None
        try:
            table = await self._executor.run(
                look_at_table, self._settings, topic.topic_id, self._partitions(topic)
            )
            if table is not None and has_unnamed(topic, table):
                table = replace(table, removed=await removed_paths(self._store, topic))
        except ObjectStoreError as error:
            if _is_of_store(error):
                raise
            topic.table_damage = error.message
            return None
        return table

    async def _log_damage(self, topic: TopicObjects) -> str:
        """See ``damage_of_log``."""
        if damage_of_log(topic):
            await list_log_again(self._store, topic)
        return damage_of_log(topic)

    def _stays_deleted(self, topic: TopicObjects) -> bool:
        """Return whether a plan leaves the topic out: a sweeper may be at its table."""
        is_asked = self._given.with_deleted or str(UUID(bytes=topic.topic_id)) in self._given.topic
        return self._given.command == "plan" and topic.is_deleted and not is_asked

    def _partitions(self, topic: TopicObjects) -> int:
        """Partitions whose revisions are asked for, also those without objects."""
        if self._given.command not in ("plan", "verify", "inventory"):
            return 0
        known = max(int(self._given.partitions), topic.partitions())
        return min(known, int(SETTINGS["partitions"].high))

    def _about(self, bucket: Bucket) -> dict[str, Any]:
        return {
            "url": self._given.url,
            "cluster_id": bucket.cluster_id,
            "earlier_clusters": bucket.earlier,
            "objects": bucket.objects,
            "length_bytes": bucket.length_bytes,
            "requests": self._store.requests,
            "read_bytes": self._store.length_bytes,
            "strange": bucket.strange,
        }

    def _told(self, what: str) -> None:
        if self._given.progress:
            print(f"{what} ({self._store.requests} requests)", file=sys.stderr, flush=True)


def _gone(topic: TopicObjects, table: TableLook | None) -> TopicReport:
    """Return the report of a topic that metadata do not know; its objects are not read."""
    return TopicReport(
        topic=name_of(topic, table),
        topic_id=str(UUID(bytes=topic.topic_id)),
        has_table=table is not None,
        strange=["the cluster knows no such topic: the sweeper takes it, or it is to be restored"],
    )


def _is_of_store(error: ObjectStoreError) -> bool:
    """Return whether the store refuses or is away, so that nothing is said of an object."""
    return error.retriable or isinstance(error, ObjectDeniedError | ObjectStoreSetupError)


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _id_of(text: str) -> bytes:
    """Parse the id of a cluster. Raises ConfigurationError."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ConfigurationError(f"no id of a cluster: {text[:64]!r}")
    return found


def _published(is_told: bool) -> dict[bytes, Published] | None:
    """Read the published copies by topic from stdin; None when none are given. Raises
    ConfigurationError."""
    if not is_told:
        return None
    try:
        return {
            bytes.fromhex(topic["topic_id"]): {
                (each["segment_id"], each["attempt"]): bytes.fromhex(each["manifest_sha256"])
                for each in topic["copies"]
            }
            for topic in json.load(sys.stdin)
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"what metadata say can't be read: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m icecore_node.bucket_commands")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("verify", "plan", "inventory", "take-over", "hive"):
        each = commands.add_parser(name)
        each.add_argument("url")
        each.add_argument("--region", default="")
        each.add_argument("--endpoint", default="")
        each.add_argument("--topic", action="append", default=[], help="name or UUID")
        each.add_argument("--progress", action="store_true", help="tell on stderr")
        each.add_argument("--published", action="store_true", help="what metadata say is on stdin")
        each.add_argument(
            "--skip-gaps",
            action="store_true",
            help="begin behind the last hole; lost copies are holes",
        )
        each.add_argument("--with-deleted", action="store_true", help="deleted topics, too")
        each.add_argument("--partitions", type=int, default=0, help="how many a topic had")
        each.add_argument("--cluster", default="", help="who takes it over")
        each.add_argument(
            "--adopt", action="append", default=[], help="a cluster whose copies are ours"
        )
        each.add_argument("--old", default="", help="whose it is thought to be")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 it can't be done; what is damaged is in the answer."""
    given = _parser().parse_args(argv)
    executor = ThreadExecutor(reader_threads=READER_THREADS)
    try:
        commands = BucketCommands(given, executor)
        acts: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
            "verify": commands.verify,
            "plan": commands.plan,
            "inventory": commands.inventory,
            "take-over": commands.take_over,
            "hive": commands.hive,
        }
        print(json.dumps(asyncio.run(acts[given.command]()), indent=2))
    except IcecoreError as error:
        print(f"icecore: {error.message}", file=sys.stderr)
        return 1
    finally:
        executor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
