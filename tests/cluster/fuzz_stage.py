"""A cluster that is told wrong things: facts for messages, a small load, and the verdict.

Somebody who knows what anybody may ask for sends messages between servers (``fuzz_messages``) to
three nodes with an object store and their coordinator. Meanwhile records are produced. Nothing that
was acked may be lost, no process may end or grow without bound, and no partition may stand still.
"""

import asyncio
import itertools
import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, randbytes
from typing import Any, Final

from benchmarks.harness.machine import rss_bytes
from icecore import Admin, Consumer, Producer
from icecore.codec import chain
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError, InternalError
from icecore.model import PROTOCOL_VERSION
from icecore.rpc.grpc_net import GrpcNet
from icecore.v1 import admin_pb2
from icecore_replication.producers import ProducerTable
from tests.cluster import fuzz_messages
from tests.cluster.fuzz_messages import Facts, Target
from tests.cluster.traffic import Log
from tests.stranger import Known, Stranger
from tests.support.tier_places import has_store, until, until_tiered

TOPICS: Final = ("fuzz-tiered", "fuzz-kept")
PARTITIONS: Final = 2
STREAMS: Final = {("CoordinatorService", "Heartbeat"), ("ReplicationService", "Replicate")}
TO_COORDINATOR: Final = ("CoordinatorService", "MirrorService")
WORKERS: Final = 4
CALL_S: Final = 10.0
STILL_S: Final = 60.0
"""A partition that acks nothing for so long stands still."""
GROWTH_BYTES_MAX: Final = 256 << 20
FACTS_EVERY: Final = 10
SHOWN: Final = 40
"""Messages that are shown before a finding."""


@dataclass
class Verdict:
    """The outcome of a run; good when nothing was found."""

    seed: int
    sent: int = 0
    acked: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        answers = ", ".join(f"{name} {count}" for name, count in self.answers.most_common())
        lines = [f"fuzz: seed={self.seed} sent={self.sent} acked={self.acked}: {answers}"]
        return "\n".join([*lines, *self.found])


class Load:
    """Records into each partition, and where the acked ones are."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.acked: dict[str, Log] = {topic: defaultdict(list) for topic in TOPICS}
        self.last_s: dict[tuple[str, int], float] = {}
        self.count = 0

    async def run(self, topic: str) -> None:
        """Send to all partitions of a topic until cancelled."""
        self.last_s |= {(topic, each): time.monotonic() for each in range(PARTITIONS)}
        await asyncio.gather(*(self._send(topic, each) for each in range(PARTITIONS)))

    async def _send(self, topic: str, partition: int) -> None:
        for number in itertools.count():
            with suppress(IcecoreError, TimeoutError):
                await self._send_some(topic, partition, number)
            await asyncio.sleep(0.2)

    async def _send_some(self, topic: str, partition: int, number: int) -> None:
        """Send with one producer until it fails: then nobody knows, and the next one begins."""
        async with Producer(self._bootstrap, delivery_timeout_ms=15_000) as producer:
            while True:
                value = b"%s/%d/%d/%d" % (topic.encode(), partition, number, self.count)
                self.count += 1
                sent = await (
                    await producer.send_wait(
                        topic, value + b"\n" + randbytes(600), key=value, partition=partition
                    )
                )
                self.acked[topic][partition].append((sent.offset, value))
                self.last_s[topic, partition] = time.monotonic()
                await asyncio.sleep(0.1)

    def still(self) -> list[str]:
        """Return the partitions that stand still."""
        now = time.monotonic()
        return [
            f"{topic}/{partition} has acked nothing for {now - last:.0f} s"
            for (topic, partition), last in self.last_s.items()
            if now - last > STILL_S
        ]

    async def lost(self, topic: str) -> list[str]:
        """Read everything; return the acked records that are not there."""
        found: dict[int, set[tuple[int, bytes]]] = defaultdict(set)
        async with asyncio.timeout(120):
            async with Consumer(self._bootstrap, topic, stop_at_end=True) as consumer:
                async for record in consumer:
                    value = (record.value or b"").partition(b"\n")[0]
                    found[record.partition].add((record.offset, value))
        return [
            f"LOST {topic}/{partition} at {offset}: {value!r}"
            for partition, log in self.acked[topic].items()
            for offset, value in log
            if (offset, value) not in found[partition]
        ]


class Knowledge:
    """All that anybody may ask for, as it is now."""

    def __init__(self, net: GrpcNet, bootstrap: str) -> None:
        self._net = net
        self._bootstrap = bootstrap
        self.segments: list[Any] = []
        self.nodes: dict[int, Any] = {}
        self._copies: dict[int, Any] = {}
        self._common: dict[str, Any] = {}
        self._others: dict[str, list[Any]] = {}
        self._firsts: dict[int, tuple[int, bytes]] = {}

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        body = request.SerializeToString()
        path = f"/icecore.v1.AdminService/{method}"
        found = await self._net.call(self._bootstrap, path, body, timeout_s=CALL_S)
        return answer.FromString(bytes(found))

    async def look(self) -> None:
        """Ask for everything once more."""
        pb = admin_pb2
        metadata = await self._ask(
            "GetMetadata", pb.GetMetadataRequest(topics=TOPICS), pb.GetMetadataResponse
        )
        about = await self._ask(
            "DescribeCluster", pb.DescribeClusterRequest(), pb.DescribeClusterResponse
        )
        tiers = await self._ask(
            "DescribeTiering",
            pb.DescribeTieringRequest(topics=TOPICS, with_copies=True),
            pb.DescribeTieringResponse,
        )
        segments: list[Any] = []
        for topic in TOPICS:
            listed = await self._ask(
                "ListSegments", pb.ListSegmentsRequest(topic=topic), pb.ListSegmentsResponse
            )
            segments += list(listed.segments)[-12:]
        if not (segments and metadata.nodes):
            return
        self.segments = segments
        for each in segments:
            if each.segment_id not in self._firsts and each.leader in self.nodes:
                with suppress(IcecoreError):
                    self._firsts[each.segment_id] = await self._first_batch(each)
        self.nodes = {each.node_id: each for each in metadata.nodes}
        self._copies = {each.segment_id: each for topic in tiers.topics for each in topic.copies}
        self._common = {
            "cluster_id": metadata.cluster_id,
            "coordinator_epoch": about.coordinator_epoch,
            "protocol_version": PROTOCOL_VERSION,
            "tier_url": tiers.tier_url,
            "store_id": tiers.store_id,
            "disk_id": b"\x66" * 16,
            "producer_snapshot": ProducerTable().snapshot(),
            "producer_digest": ProducerTable().digest(),
            "format": "delta",
            "topics": [TOPICS[0]],
            "count": 1,
            "attach": True,
            "max_bytes": 1 << 20,
            "credit_bytes": 1 << 20,
            "min_epoch": 1,
        }
        others: dict[str, list[Any]] = defaultdict(list)
        messages: Iterable[Any] = (
            *self.segments,
            *self.nodes.values(),
            *self._copies.values(),
        )
        for message in messages:
            others[message.DESCRIPTOR.name].append(message)
            for each, value in message.ListFields():
                if not each.is_repeated and each.message_type is None:
                    others[each.name].append(value)
        self._others = others

    async def _first_batch(self, segment: Any) -> tuple[int, bytes]:
        common = self._common
        known = Known(common["cluster_id"], common["coordinator_epoch"], segment, [], self.nodes)
        stranger = Stranger(self._net, self._bootstrap)
        return await stranger.first_batch(known, known.leader.address)

    def facts(self, receiver: int, *, is_node: bool, rng: Random) -> Facts:
        """Facts of one segment, for a message to a node, or to the coordinator."""
        tails = [each for each in self.segments if each.end_offset < 0 or each.state == 2]
        segment = rng.choice(tails if tails and rng.random() < 0.6 else self.segments)
        node = self.nodes[receiver if is_node else (segment.leader or receiver)]
        known = self._common | _plain(segment) | {"SegmentAssignment": segment}
        if (copy := self._copies.get(segment.segment_id)) is not None:
            known |= _plain(copy) | {"PublishedCopy": copy}
        other = rng.choice(list(self.nodes.values()))
        if segment.segment_id in self._firsts and rng.random() < 0.5:
            end_offset, digest = self._firsts[segment.segment_id]
        else:
            end_offset = max(segment.end_offset, segment.base_offset + 1)
            digest = segment.seal_digest
        seed = _seed(known["cluster_id"], segment)
        known |= {
            "node_id": node.node_id,
            "incarnation": node.incarnation,
            "address": node.address,
            "native_address": node.native_address,
            "leader_node_id": receiver,
            "leader_incarnation": self.nodes[receiver].incarnation,
            "isr_incarnations": [self.nodes[each].incarnation for each in segment.isr],
            "donor_address": other.address,
            "durable_end_offset": segment.base_offset,
            "last_header_crc32c": chain.chain_seed(seed),
            "start_offset": segment.base_offset,
            "end_offset": end_offset,
            "seal_digest": digest,
            "high_watermark": segment.base_offset,
            "successor_segment_id": segment.segment_id + 1,
            "topic_settings": json.dumps({}),
        }
        own = {
            **_plain(self.nodes[receiver]),
            "segment_id": segment.segment_id,
            "donor_address": self.nodes[receiver].address,
            "leader": receiver,
            "replicas": receiver,
            "isr": receiver,
        }
        if not is_node:  # a follower calls the leader in its own name
            known["node_id"], known["incarnation"] = node.node_id, node.incarnation
        return Facts(known, own, self._others)


def _seed(cluster_id: bytes, segment: Any) -> bytes:
    return chain.segment_seed(
        cluster_id,
        segment.topic_id,
        segment.partition,
        segment.segment_id,
        segment.base_offset,
        segment.epoch,
    )


def _plain(message: Any) -> dict[str, Any]:
    return {
        each.name: list(getattr(message, each.name))
        if each.is_repeated
        else getattr(message, each.name)
        for each in message.DESCRIPTOR.fields
        if each.message_type is None
    }


class Fuzz:
    """One run.

    Args:
        cluster: It runs, with an object store.
        seed: Decides which message comes when, and how it is altered.
        only: Part of a target's name; empty = all.
    """

    def __init__(self, cluster: LocalCluster, seed: int, only: str = "") -> None:
        self._cluster = cluster
        self._seed = seed
        self._net = GrpcNet()
        self._known = Knowledge(self._net, cluster.bootstrap)
        self._load = Load(cluster.bootstrap)
        self._newest: deque[str] = deque(maxlen=SHOWN)
        self._numbers = itertools.count()
        self._requests = fuzz_messages.methods()
        self.verdict = Verdict(seed)
        plan = [
            (target, way)
            for target in fuzz_messages.targets()
            for way in fuzz_messages.WAYS
            if only in f"{target} {way}"
        ]
        Random(seed).shuffle(plan)
        self._plan = plan

    async def run(self, seconds: float) -> Verdict:
        """Send messages for so long, then read everything."""
        bootstrap = self._cluster.bootstrap
        async with Admin(bootstrap) as admin:
            await until(lambda: has_store(admin))
            settings: dict[str, Any] = {"partitions": PARTITIONS, "segment_bytes": 64 << 10}
            await admin.create_topic(TOPICS[0], tier="on", local_retention_ms=5_000, **settings)
            await admin.create_topic(TOPICS[1], **settings)
        tasks = [asyncio.ensure_future(self._load.run(each)) for each in TOPICS]
        try:
            async with Admin(bootstrap) as admin:
                await until_tiered(admin, TOPICS[0])
            await until(self._is_whole)
            await self._attack(seconds)
            await self._calm()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._net.close()
        self.verdict.acked = sum(
            len(each) for log in self._load.acked.values() for each in log.values()
        )
        if not self._cluster.dead():
            for topic in TOPICS:
                try:
                    self.verdict.found += (await self._load.lost(topic))[:SHOWN]
                except (IcecoreError, TimeoutError) as error:
                    self.verdict.found.append(f"{topic} can't be read: {error!r}")
        return self.verdict

    async def _is_whole(self) -> bool:
        """Each partition has acked, and something is published."""
        await self._known.look()
        is_acked = all(self._load.acked[each[0]][each[1]] for each in self._load.last_s)
        return is_acked and bool(self._known._copies)

    async def _attack(self, seconds: float) -> None:
        before = {name: rss_bytes(pid) for name, pid in self._cluster.pids.items()}
        until_s = time.monotonic() + seconds
        workers = [asyncio.ensure_future(self._work(until_s)) for _ in range(WORKERS)]
        try:
            while not (await asyncio.wait(workers, timeout=0.5))[0] and not self._is_over(before):
                pass
        finally:
            for each in workers:
                each.cancel()
            ended = await asyncio.gather(*workers, return_exceptions=True)
        self.verdict.found += [
            f"the fuzz failed: {each!r}" for each in ended if isinstance(each, Exception)
        ]

    def _is_over(self, before: dict[str, int]) -> bool:
        """Return whether something was found after which it makes no sense to go on."""
        found = [f"{each.name} {each.end}: {each.log_tail()}" for each in self._cluster.dead()]
        found += self._load.still()
        for name, pid in self._cluster.pids.items():
            grown = rss_bytes(pid) - before.get(name, 0)
            if grown > GROWTH_BYTES_MAX:
                found.append(f"{name} has grown by {grown >> 20} MiB")
        if found:
            self.verdict.found += [*self._newest, *found]
        return bool(found)

    async def _calm(self) -> None:
        """Nobody lies any more: each partition acks again."""
        if self._cluster.dead():
            return
        began_s = time.monotonic()
        while min(self._load.last_s.values()) < began_s:
            if time.monotonic() > began_s + STILL_S:
                self.verdict.found += [*self._newest, *self._load.still()]
                return
            await asyncio.sleep(0.2)

    async def _work(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            number = next(self._numbers)
            if number % FACTS_EVERY == 0:
                with suppress(IcecoreError):
                    await self._known.look()
            await self._send(number, *self._plan[number % len(self._plan)])

    async def _send(self, number: int, target: Target, way: str) -> None:
        """Send one altered message, sometimes altered twice."""
        rng = Random(f"{self._seed}/{number}")
        is_node = target.service not in TO_COORDINATOR
        receiver = rng.choice(sorted(self._known.nodes))
        facts = self._known.facts(receiver, is_node=target.service == "NodeService", rng=rng)
        address = self._known.nodes[receiver].address if is_node else self._cluster.bootstrap
        descriptor = self._requests[target.service, target.method]
        message = fuzz_messages.build(descriptor, facts, rng)
        first = message.SerializeToString()
        what = fuzz_messages.alter(message, target.path, way, facts, rng)
        body = message.SerializeToString()
        if way == "cut":
            body = body[: rng.randrange(len(body) + 1)] + rng.randbytes(rng.randrange(9))
        method = f"/icecore.v1.{target.service}/{target.method}"
        shown = f"{number}: {target} {way}: {what} (segment {facts.true['segment_id']})"
        shown = f"{shown} to {receiver if is_node else 'coordinator'}"
        self._newest.append(shown)
        self.verdict.sent += 1
        answer = "done"
        try:
            if (target.service, target.method) in STREAMS:
                await self._converse(
                    address, method, [first, body] if rng.random() < 0.5 else [body]
                )
            else:
                await self._net.call(address, method, body, timeout_s=CALL_S)
        except InternalError as error:
            answer = error.reason
            if "from Core" in error.message:  # gRPC's word for writing to a stream that has ended
                return
            self.verdict.found.append(f"{shown}: {error}")
        except IcecoreError as error:
            answer = error.reason
        except TimeoutError:
            answer = "TIMEOUT"
        self.verdict.answers[answer] += 1

    async def _converse(self, address: str, method: str, bodies: list[bytes]) -> None:
        """Say these on a stream, and listen for a moment."""
        stream = self._net.open_stream(address, method)
        try:
            for body in bodies:
                await stream.write(body)
            async with asyncio.timeout(0.3):
                while await stream.read() is not None:
                    pass
        finally:
            stream.cancel()


def settings_of(folder: Path) -> dict[str, Any]:
    """Settings of nodes that tier to a folder."""
    return {"tier_url": (folder / "bucket").as_uri()}
