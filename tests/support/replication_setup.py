"""A segment of three nodes and a leader under test: what the tests of `replication/` start from.

`Led` wraps a `LeaderCore`: each call is one step, and after each step the invariants are checked.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from icecore.model import Acks, NodeInfo, NodeState, Segment, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_replication.checked import Checked
from icecore_replication.effects import LeaderEffect
from icecore_replication.inputs import FollowerProgress, LeaderInput, LocalDurable, ProduceReceived
from icecore_replication.leader import LeaderCore, LeaderLimits, LeaderStart
from icecore_replication.producers import ProducerTable
from icecore_replication.sealing import gives_out_offsets

BASE = 100
LEADER, INCARNATION = 1, 11
OTHERS = {2: 12, 3: 13, 4: 14, 5: 15}

T = TypeVar("T")


def settings(**changes: Any) -> SegmentSettings:
    """RF 3, min_insync_replicas 2, unless told otherwise."""
    return SegmentSettings(**{"replication_factor": 3, "min_insync_replicas": 2, **changes})


def segment(**changes: Any) -> Segment:
    """ACTIVE, base 100, epoch 5, version 1, led by node 1 on nodes 1, 2, 3."""
    fields: dict[str, Any] = {
        "segment_id": 7,
        "topic_id": b"t" * 16,
        "topic": "flights",
        "partition": 0,
        "state": SegmentState.ACTIVE,
        "epoch": 5,
        "settings": settings(),
        "base_offset": BASE,
        "leader": LEADER,
        "leader_incarnation": INCARNATION,
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "version": 1,
        **changes,
    }
    return Segment(**fields)


def node(node_id: int, state: NodeState = NodeState.UP, incarnation: int = 0) -> NodeInfo:
    """A node as the coordinator would push it."""
    return NodeInfo(node_id, f"n{node_id}:1", incarnation or OTHERS.get(node_id, 0), state)


def nodes(ids: Iterable[int] = (2, 3)) -> Mapping[int, NodeInfo]:
    return {node_id: node(node_id) for node_id in ids}


def only(kind: type[T], effects: Iterable[object]) -> list[T]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def start(record: Segment, **changes: Any) -> LeaderStart:
    """Return the state with which node 1 begins to lead, at time 0 unless ``changes`` say
    otherwise."""
    fields: dict[str, Any] = {
        "segment": record,
        "node_id": LEADER,
        "incarnation": INCARNATION,
        "producers": ProducerTable(),
        "max_append_timestamp_ms": 0,
        "nodes": nodes(n for n in record.replicas if n != LEADER),
        "now_ms": 0.0,
        **changes,
    }
    return LeaderStart(**fields)


class Led:
    """A leader under test; time stands still unless `at` moves it."""

    def __init__(
        self, record: Segment | None = None, limits: LeaderLimits | None = None, **changes: Any
    ) -> None:
        self.segment = record or segment(**changes)
        self.producer_fences: dict[int, int] = {}
        self.core = LeaderCore(
            start(self.segment, producer_fences=self.producer_fences),
            limits,
        )
        self._checked = Checked(self.core, check_every_steps=1)
        self.now_ms = 0.0
        self._requests = 0

    @property
    def rolling(self) -> bool:
        """From the choice of an end offset on: produce is refused with ROLLING."""
        return not gives_out_offsets(self.core.roll)

    def do(self, *inputs: LeaderInput, at: float | None = None) -> list[LeaderEffect]:
        """One step, checked."""
        self.now_ms = self.now_ms if at is None else at
        return self._checked.step(inputs, self.now_ms)

    def produce(
        self, count: int = 10, acks: Acks = Acks.ALL, at: float | None = None, **fields: Any
    ) -> list[LeaderEffect]:
        """One batch; request ids count from 1."""
        self._requests += 1
        length = fields.pop("length_bytes", 1000)
        return self.do(ProduceReceived(self._requests, acks, count, length, **fields), at=at)

    def durable(self, end: int, *node_ids: int, at: float | None = None) -> list[LeaderEffect]:
        """The nodes (1 = the leader's own disk) become durable to `end`, in one step."""
        return self.do(
            *(
                LocalDurable(end)
                if node_id == LEADER
                else FollowerProgress(node_id, OTHERS[node_id], end)
                for node_id in node_ids
            ),
            at=at,
        )

    def attach(self, node_id: int, end: int, incarnation: int = 0) -> list[LeaderEffect]:
        return self.do(FollowerProgress(node_id, incarnation or OTHERS[node_id], end, attach=True))
