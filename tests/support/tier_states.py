"""A small cluster with an object store, for tests of decisions about what lies there."""

from typing import Any

from icecore.tier_records import TierCopy, TierRecord
from icecore.topic_settings import Tiering
from icecore_coordinator.decisions.remote.tiering import Attempt, begin, committed, publish
from icecore_coordinator.decisions.remote.verified_copies import drop_copies
from icecore_coordinator.decisions.sealed_copies import set_full_digest
from icecore_coordinator.decisions.topic_changes import alter_topic
from icecore_coordinator.state.records import Change, PartitionKey, updated
from tests.support.cluster_states import ALL, KEY, SETTINGS, TOPIC, Cluster, commit, roll, started

FULL_DIGEST = b"\x01" + b"f" * 32
COPY = TierCopy(b"m" * 32, b"c" * 33, 500, 10, "parquet")


def tiered_topic(**settings: Any) -> Cluster:
    """As ``started``, every node with the object store, and the topic with tier=on."""
    state = started()
    for node_id in ALL:
        commit(state, Change((updated(state.nodes[node_id], tier_url="s3://bucket"),)))
    tier(state, **settings)
    return state


def tier(state: Cluster, *, is_on: bool = True, name: str = "events", **settings: Any) -> None:
    """Alter what of a topic is tiered."""
    wanted = Tiering(is_on=is_on, **settings)
    commit(state, alter_topic(state, state.live, name, SETTINGS, None, None, wanted))


def sealed(state: Cluster, key: PartitionKey = KEY) -> int:
    """One more sealed segment of 100 bytes, whose full digest is agreed on: its id."""
    segment_id = roll(state, key=key)
    for node_id in (1, 2):
        commit(state, set_full_digest(state, segment_id, 0, FULL_DIGEST, node_id))
    return segment_id


def begun(state: Cluster, segment_id: int, owner: int = 1) -> Attempt:
    """An upload of it is under way."""
    change = commit(state, begin(state, segment_id, owner))
    [found] = [each for each in change.puts if isinstance(each, TierRecord)]
    return Attempt(segment_id, found.attempt, owner, ALL[owner])


def published(state: Cluster) -> int:
    """A sealed segment with a copy that counts: its id."""
    segment_id = sealed(state)
    store_id = state.tiers.store_id
    commit(state, publish(state, begun(state, segment_id), COPY, 0, store_id))
    return segment_id


def tabled(state: Cluster) -> int:
    """The same, and the table names it."""
    segment_id = published(state)
    commit(state, committed(state, KEY, state.partitions[KEY].tier_revision))
    return segment_id


def seen(state: Cluster) -> dict[int, int]:
    """All that is published, as if nodes had just looked for it."""
    tiers = state.tiers.segments
    return {each: tiers[each].attempt for each in state.tiers.published.get(KEY, ())}


def remote(state: Cluster) -> int:
    """A segment that lies in object storage alone: its id."""
    segment_id = tabled(state)
    commit(state, drop_copies(state, segment_id, seen(state), 0))
    return segment_id


def tier_of(state: Cluster, segment_id: int) -> TierRecord:
    """The record of its copy."""
    found = state.tiers.segments[segment_id]
    assert found.topic_id == TOPIC
    return found
