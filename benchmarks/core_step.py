"""Measures the core of a leader per batch: alone and in groups, with its invariants checked.

    python -m benchmarks.core_step

One leader at RF 3, ``acks=all``, one idempotent producer. A group of batches is four steps: all of
them are received in one, then the leader's own disk and two followers report that they have them,
and they are answered. No disk, no network, no event loop. ``check_every_steps`` is as the setting
of the node (0: no checks at all). Figures are processor time in µs per batch, the median of several
rounds; each round has a core of its own, and takes its turn with those of the other cases, so that
a busy machine is as unkind to all. stdout gets one JSON line.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

from benchmarks.harness.lifetime import exit_with
from icecore.model import (
    Acks,
    Epoch,
    Incarnation,
    NodeId,
    NodeInfo,
    NodeState,
    ProducerId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.topic_settings import SegmentSettings
from icecore_replication.checked import Checked
from icecore_replication.effects import CompleteProduce, LeaderEffect
from icecore_replication.inputs import FollowerProgress, LeaderInput, LocalDurable, ProduceReceived
from icecore_replication.leader import LeaderCore, LeaderStart
from icecore_replication.producers import ProducerTable

Step: TypeAlias = Callable[[Sequence[LeaderInput], float], Sequence[LeaderEffect]]

CHECKS = {"unchecked": 0, "each_16th_step": 16, "each_step": 1}
"""By the name of a case, ``check_every_steps``."""
GROUPS = (1, 8, 64)
"""Batches received in one step."""
BATCHES, ROUNDS = 2048, 15
RECORDS, LENGTH_BYTES = 10, 1000
LEADER, FOLLOWERS = NodeId(1), (NodeId(2), NodeId(3))
INCARNATION = Incarnation(1)
PRODUCER_ID = ProducerId(1)


def measure(batches: int = BATCHES, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """µs per batch, by what is checked and by group; ``batches`` in each round."""
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in product(CHECKS, GROUPS)}
    for _ in range(rounds):
        for (checks, group), us in taken.items():
            us.append(_round_us(CHECKS[checks], group, batches))
    return {
        checks: {str(group): round(statistics.median(taken[checks, group]), 2) for group in GROUPS}
        for checks in CHECKS
    }


def _round_us(check_every_steps: int, group: int, batches: int) -> float:
    """Return the processor time of one batch in µs."""
    step = _leader(check_every_steps)
    turns = _inputs(group, batches)
    answered = 0
    began_s = time.process_time()
    for inputs in turns:
        answered += sum(type(effect) is CompleteProduce for effect in step(inputs, 0.0))
    taken_s = time.process_time() - began_s
    assert answered == batches, "the core did not answer every batch"
    return 1e6 * taken_s / batches


def _leader(check_every_steps: int) -> Step:
    """The step of a fresh leader that all followers are attached to."""
    nodes = (LEADER, *FOLLOWERS)
    segment = Segment(
        segment_id=SegmentId(1),
        topic_id=bytes(16),
        topic="flights",
        partition=0,
        state=SegmentState.ACTIVE,
        epoch=Epoch(1),
        settings=SegmentSettings(replication_factor=len(nodes), min_insync_replicas=2),
        base_offset=0,
        leader=LEADER,
        leader_incarnation=INCARNATION,
        replicas=nodes,
        isr=nodes,
        version=1,
    )
    start = LeaderStart(
        segment=segment,
        node_id=LEADER,
        incarnation=INCARNATION,
        producers=ProducerTable(),
        max_append_timestamp_ms=0,
        nodes={n: NodeInfo(n, f"n{n}:1", INCARNATION, NodeState.UP) for n in FOLLOWERS},
        now_ms=0.0,
    )
    core = LeaderCore(start)
    step = (
        Checked(core, check_every_steps=check_every_steps).step if check_every_steps else core.step
    )
    step([FollowerProgress(n, INCARNATION, 0, attach=True) for n in FOLLOWERS], 0.0)
    return step


def _inputs(group: int, batches: int) -> list[list[LeaderInput]]:
    """Return the inputs of every step, made beforehand so that only the core is measured."""
    turns: list[list[LeaderInput]] = []
    for first in range(0, batches, group):
        numbers = range(first, min(first + group, batches))
        end_offset = RECORDS * numbers.stop
        turns.append([_produced(number) for number in numbers])
        turns.append([LocalDurable(end_offset)])
        turns += [[FollowerProgress(n, INCARNATION, end_offset)] for n in FOLLOWERS]
    return turns


def _produced(number: int) -> ProduceReceived:
    return ProduceReceived(
        number,
        Acks.ALL,
        RECORDS,
        LENGTH_BYTES,
        producer_id=PRODUCER_ID,
        base_sequence=RECORDS * number,
    )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be positive")
    print(json.dumps({"benchmark": "core_step", "us_per_batch": measure(rounds=options.rounds)}))
    return 0


if __name__ == "__main__":
    exit_with(main)
