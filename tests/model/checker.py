"""Breadth-first search over all states: the first violation found has a shortest trace.

Of a state that was visited only its hash is kept, with the hash of the state it was reached from; a
trace is rebuilt by walking the model along those hashes. (64-bit hashes of a few million states
coincide with a probability below 10^-5; then some states would be missed.)
"""

import sys
from dataclasses import dataclass, field
from time import process_time

from tests.model.state import SEALED, World
from tests.model.steps import Protocol


@dataclass
class Result:
    """The result of a search."""

    states: int
    cpu_seconds: float
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    """The steps that lead to the violation."""


def violation(world: World, synced: bool) -> str:
    """The invariant that this state breaks, "" if none."""
    record = world.record
    if record.broken or record.lossy:
        return record.broken
    if record.state == SEALED:
        if max(record.acked_all, record.acked_quorum) > len(record.end):
            return "I1: an acked record is lost"
        if len(record.seen) > len(record.end):
            return "I3: a high watermark above the end was visible"
        if not record.end.startswith(record.seen):
            return "I2: an offset has two values"
        return ""
    for peer in world.peers:
        replica = peer.replica
        if peer.member.stored and replica.intact:
            held = replica.durable if synced else len(replica.log)
            if held < record.acked_all:
                return "I8: a stored member lacks a record acked by all"
    return ""


def search(model: Protocol) -> Result:
    """Visit every reachable state, or stop at the first one that breaks an invariant."""
    started = process_time()
    synced = model.config.synced
    start = model.start()
    parents = {hash(start): 0}
    level = [start]
    while level:
        below: list[World] = []
        for world in level:
            origin = hash(world)
            for _, _, following in model.successors(world):
                key = hash(following)
                if key in parents:
                    continue
                parents[key] = origin
                wrong = violation(following, synced)
                if wrong:
                    trace = _trace(model, parents, key)
                    return Result(len(parents), process_time() - started, wrong, trace)
                below.append(following)
        level = below
    return Result(len(parents), process_time() - started)


def _trace(model: Protocol, parents: dict[int, int], key: int) -> list[str]:
    """Labels of the steps from the start to the state with this hash."""
    path = [key]
    while parents[path[-1]]:
        path.append(parents[path[-1]])
    world, labels = model.start(), []
    for wanted in reversed(path[:-1]):
        for name, node, following in model.successors(world):
            if hash(following) == wanted:
                labels.append(f"{name}({node + 1})")
                world = following
                break
        else:
            sys.exit("a trace could not be rebuilt: two states have the same hash")
    return labels
