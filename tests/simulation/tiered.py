"""A topic whose segments move into object storage under traffic, leave the nodes after that, and
are merged there now and then.

Its traffic and its verdict on records are those of ``expiring``: every record that was acknowledged
is read, wherever it lies. Here is what has to be true of the bucket in the end (I16): each
published copy is all there and proves itself, the table names these and no others, and nothing else
is left of uploads that failed, were overtaken, or belonged to segments that are gone.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.model import SegmentId
from icecore.tier_records import TierRecord, TierState, topic_folder
from icecore_coordinator.state.cluster_state import ClusterState, stored_version
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    SUFFIXES,
    TieredDamageError,
    parse_manifest,
)
from icecore_node.remote.format.stored_settings import SETTINGS_PATH, parse_settings
from tests.simulation.cluster import COORDINATOR
from tests.simulation.expiring import EarlierLife, ExpiringTopic
from tests.simulation.history import Produce
from tests.simulation.invariants_tiering import copy_name
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.simulation.observer import Observer
from tests.simulation.plan import Plan
from tests.simulation.shells import timing
from tests.simulation.topic_table import SimTopicTable

if TYPE_CHECKING:
    from tests.simulation.cluster import World

SETTLE_S = 90.0
COMPARED_S = 10.0
"""By then a coordinator that started has compared the table."""
STORE = "objects_"
TIERED = "topic_is_tiered"
"""Name of the fault that makes a tiered topic. Names of an object store's own faults begin with
``STORE``."""
SETTINGS: Mapping[str, Any] = {"tier": "on", "local_retention_ms": 500}

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def _persist(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Call until it succeeds, or an earlier call has."""
    while True:
        try:
            await call()
        except UnknownTopicError:
            return  # it is deleted, or not deleted, already
        except IcecoreError:
            await asyncio.sleep(0.2)
        else:
            return


def stored_settings(bucket: SimBucket, topic_id: bytes) -> dict[str, Any]:
    """Return the settings in a bucket that count; empty = there are none."""
    objects, folder = bucket.objects, topic_folder(topic_id) + "/"
    keys = [each for each in objects if SETTINGS_PATH.fullmatch(each.removeprefix(folder))]
    for key in sorted(keys, reverse=True):
        try:
            return parse_settings(objects[key], topic_id)
        except TieredDamageError:
            continue  # what was put untruly is put again
    return {}


class _Here:
    """Runs what decodes where it is called."""

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return function(*args)


class TieredTopic:
    """One such topic. The world has a bucket.

    Args:
        world: Where it lives.
        plan: Of the world.
        name: Of the topic.
        settings: Besides ``SETTINGS``.
        merges: Whether segments are merged.
        loses_table: Whether the table is lost in the end, before it is judged.
        deletes_by_hand: Whether somebody deletes records.
        earlier: In the cluster from whose bucket it is restored; None = it is new.
    """

    def __init__(
        self,
        world: "World",
        plan: Plan,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        merges: bool = True,
        loses_table: bool = False,
        deletes_by_hand: bool = False,
        earlier: EarlierLife | None = None,
    ) -> None:
        self._world = world
        self.name = name
        given = {**SETTINGS, **(settings or {})}
        self._inner = ExpiringTopic(
            world, plan, name, given, deletes_by_hand=deletes_by_hand, earlier=earlier
        )
        self._inherited = frozenset(world.bucket.objects) if earlier else frozenset()
        """Objects of that cluster: nobody knows what is left of its uploads."""
        self._rng = random.Random(f"merges of {name} {world.seed}")
        self._merges = merges
        self._loses_table = loses_table
        self._merging: asyncio.Task[None] | None = None
        self._deletions = 0
        self._untold: list[str] = []
        """Deletions that the bucket did not say in time."""
        self._lost: dict[SegmentId, None] = {}
        """Segments whose objects vanished while nodes had copies."""
        keep_s = timing(plan.knobs).tier_closed_keep_ms / 1000
        self._is_overslept = any(each.lasts_s > keep_s for each in plan.faults)
        """True = a fault may pause a node for longer than attempts are remembered: the objects it
        puts then are never swept (R89). Attempts are remembered for a day, in these worlds for
        seconds."""

    async def live(self) -> None:
        """Be made, and be written, read and merged from then on."""
        self._world.count_fault(TIERED)
        await self._inner.live()
        if not self._merges:
            return
        process, admin = self._open_admin("merger")
        self._merging = process.spawn(self._merge_now_and_then(admin))

    def _open_admin(self, who: str) -> tuple[Any, Admin]:
        process, net, clock, rng = self._world.client(f"{who} of {self.name}")
        address = self._world.coordinator_address
        return process, Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng)

    @property
    def produces(self) -> list[Produce]:
        """Everything that was sent so far."""
        return self._inner.produces

    def stop_sending(self) -> None:
        """Send nothing more."""
        self._inner.stop_sending()

    async def delete(self) -> bytes:
        """Delete the topic, whatever fails meanwhile: its id."""
        self._deletions += 1
        process, admin = self._open_admin(f"deleter {self._deletions}")
        topic_id = self._topic_id()
        await process.spawn(_persist(lambda: admin.delete_topic(topic_id=topic_id)))
        self._world.count_fault("topic_deleted")
        return topic_id

    async def undelete(self, topic_id: bytes) -> None:
        """Bring it back, once the bucket says that it is deleted."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while not self._stored(topic_id).get("is_deleted"):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        except TimeoutError:
            self._untold.append(f"the bucket does not say that {self.name} is deleted")
        process, admin = self._open_admin(f"undeleter {self._deletions}")
        await process.spawn(_persist(lambda: admin.undelete_topic(topic_id=topic_id)))
        self._world.count_fault("topic_undeleted")

    def is_in_bucket_alone(self) -> bool:
        """Return whether some of its segments are on no node any more."""
        if COORDINATOR not in self._world.shells or self.name not in self._state().topic_ids:
            return False
        state = self._state()
        ids = state.tiers.of_topic.get(self._topic_id(), ())
        return any(state.segments[each].segment.is_remote_only for each in ids)

    def lose_metadata(self) -> None:
        """Nobody knows any more which uploads were under way, and which were to be swept."""
        self._is_overslept = True

    def lose_objects(self, young_ms: int) -> int:
        """Remove for good all objects of what was published so lately that nodes have it, too, and
        keep it for a while; what the table does not name yet stays, for no table could be brought
        up to date without its manifest. Return of how many segments."""
        if COORDINATOR not in self._world.shells or self.name not in self._state().topic_ids:
            return 0
        state, objects = self._state(), self._world.bucket.objects
        found = 0
        for segment_id in state.tiers.held.get(self._topic_id(), ()):
            tier = state.tiers.segments[segment_id]
            is_old = state.counted_ms - state.segments[segment_id].since_ms > young_ms
            if is_old or state.partitions[tier.partition_key].table_revision < tier.revision:
                continue
            for key in [copy_name(tier).key(suffix) for suffix in SUFFIXES]:
                if key in objects:
                    self._world.bucket.lose(key)
            found += segment_id not in self._lost
            self._lost[segment_id] = None
        return found

    def lose_commits(self, count: int | None) -> int:
        """Remove the last commits of the table for good; all without a count. Return how many."""
        objects = self._world.bucket.objects
        keys = sorted(each for each in objects if "/_delta_log/" in each)
        lost = keys if count is None else keys[-count:]
        for key in lost:
            self._world.bucket.lose(key)
        return len(lost)

    async def _merge_now_and_then(self, admin: Admin) -> None:
        """Merge small segments now and then, sometimes by two calls at once."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))
            try:
                plan = await admin.plan_merges(self.name, self._rng.choice([4_000, 1 << 20]))
                if not plan.groups:
                    continue
                group = self._rng.choice(plan.groups)
                calls = [
                    admin.merge_segments(self.name, group.segment_ids)
                    for _ in range(self._rng.choice([1, 1, 2]))
                ]
                merged = await asyncio.gather(*calls)
            except IcecoreError as error:
                self._world.loop.trace(f"{self.name} not merged: {error.reason}")
            else:
                assert {each.records for each in merged} == {group.records}
                self._world.count_fault("segments_merged")

    async def finish(self, observer: Observer) -> list[str]:
        """Stop, read what is there, and judge. Everything is healed by now.

        Raises:
            TimeoutError: The producer or a consumer is stuck.
        """
        faults = self._world.bucket.faults
        faults.heal()
        for kind in [*faults.struck.elements()]:
            self._world.count_fault(f"{STORE}{kind}")
        if self._merging is not None:
            self._merging.cancel()
        problems = [*self._untold, *await self._inner.finish(observer)]
        if unsettled := await self._settle():
            return [*problems, f"object storage of {self.name}: {unsettled}"]
        if self._loses_table:
            self._world.kill(COORDINATOR, kind="")
            assert self.lose_commits(None)
            self._world.start(COORDINATOR)
            await asyncio.sleep(COMPARED_S)
        state, topic_id = self._state(), self._topic_id()
        tiers = [state.tiers.segments[each] for each in state.tiers.of_topic.get(topic_id, ())]
        for each in tiers:
            is_here = not state.segments[each.segment_id].segment.is_remote_only
            if not (is_here and each.segment_id in self._lost):
                problems += await self._wrong_copy(each)
        problems += self._wrong_table(tiers)
        problems += [] if self._is_overslept else self._left_behind(tiers)
        problems += self._wrong_settings(tiers)
        if any(state.segments[each.segment_id].segment.is_remote_only for each in tiers):
            self._world.count_fault("segments_remote_only")
        return problems

    # --- until nothing is left to be done -------------------------------------------------------

    async def _settle(self) -> str:
        """Wait for all uploads, tables and sweeps; what is not done, when time is up."""
        deadline_s = self._world.loop.time() + SETTLE_S
        while missing := self._missing():
            if self._world.loop.time() > deadline_s:
                return missing
            await asyncio.sleep(0.5)
        return ""

    def _missing(self) -> str:
        if COORDINATOR not in self._world.shells:
            return "there is no coordinator"
        tiers, topic_id = self._state().tiers, self._topic_id()
        records = [tiers.segments[each] for each in tiers.of_topic.get(topic_id, ())]
        stale = [key for key in tiers.stale_tables if key[0] == topic_id]
        left = [each for each in records if each.state is not TierState.PUBLISHED]
        unswept = [each for each in records if each.closed_attempts]
        found = {
            "not tiered": list(tiers.untiered.get(topic_id, ())),
            "not published": [each.segment_id for each in left],
            "not swept": [each.segment_id for each in unswept],
            "tables behind": stale,
        }
        return ", ".join(f"{what} {which}" for what, which in found.items() if which)

    def _state(self) -> ClusterState:
        state: ClusterState = self._world.shells[COORDINATOR].ledger.state
        return state

    def _topic_id(self) -> bytes:
        return self._state().topic(self.name).topic_id

    # --- what has to be true (I16) --------------------------------------------------------------

    async def _wrong_copy(self, tier: TierRecord) -> list[str]:
        store = SimObjectStore(self._world.bucket, None)
        try:
            data = await store.get_whole(copy_name(tier).key(MANIFEST), MANIFEST_BYTES_MAX)
            manifest = parse_manifest(data, tier.copy.manifest_sha256)
            await CopyReader(store, manifest, _Here()).verify()
        except IcecoreError as error:
            return [f"published copy of segment {tier.segment_id} is damaged: {error}"]
        return []

    def _wrong_table(self, tiers: list[TierRecord]) -> list[str]:
        table = SimTopicTable(self._world.bucket, None, self._state().cluster_id, self._topic_id())
        wanted = {copy_name(each).path for each in tiers if each.copy.records}
        named = set(table.files())
        return [f"the table of {self.name} differs in {sorted(named ^ wanted)}"] * (named != wanted)

    def _left_behind(self, tiers: list[TierRecord]) -> list[str]:
        folder = topic_folder(self._topic_id()) + "/"
        wanted = {copy_name(each).key(suffix) for each in tiers for suffix in SUFFIXES}
        found = [
            key
            for key in self._world.bucket.objects
            if key.startswith(folder)
            and "/_delta_log/" not in key
            and not SETTINGS_PATH.fullmatch(key.removeprefix(folder))
            and key not in wanted | self._inherited
        ]
        return [f"nobody sweeps {key}" for key in found]

    def _wrong_settings(self, tiers: list[TierRecord]) -> list[str]:
        """A restore would find the last alteration."""
        found, topic = self._stored(self._topic_id()), self._state().topic(self.name)
        if not found:
            return [f"no settings of {self.name} are in the bucket"] if tiers else []
        version, wanted = found["settings_version"], stored_version(self._state(), topic)
        if version == wanted and not found["is_deleted"] and found["name"] == self.name:
            return self._wrong_starts(tiers, found["log_starts"])
        return [f"settings {version} of {self.name} count, not {wanted}: {found}"]

    def _stored(self, topic_id: bytes) -> dict[str, Any]:
        return stored_settings(self._world.bucket, topic_id)

    def _wrong_starts(self, tiers: list[TierRecord], stored: list[int]) -> list[str]:
        """A restore would begin each log where it begins (R99): at its first copy, or higher where
        the settings say so."""
        problems, state = list[str](), self._state()
        topic_id = self._topic_id()
        for partition in state.partitions_of(state.topic(self.name)):
            number, start = partition.partition, partition.log_start_offset
            bases = [each.base_offset for each in tiers if each.partition == number]
            told = stored[number] if number < len(stored) else 0
            if told > 0:
                self._world.count_fault("starts_told")
            if bases and max(told, min(bases)) != self._first(topic_id, number, start):
                problems.append(
                    f"a restore of {self.name} begins partition {number} at {told} or "
                    f"{min(bases)}, its log starts at {start}"
                )
        return problems

    def _first(self, topic_id: bytes, partition: int, start: int) -> int:
        """Return where the first record may be: a log may start in the middle of offsets that are
        left out, of which a bucket has nothing."""
        for record in self._state().segments.values():
            each = record.segment
            is_there = each.base_offset <= start < each.end_offset and each.is_skipped
            if (each.topic_id, each.partition) == (topic_id, partition) and is_there:
                return each.end_offset
        return start
