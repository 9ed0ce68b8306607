"""Faults of the network: links that are cut, late or lossy, and requests that arrive again."""

import asyncio

from tests.simulation.cluster import COORDINATOR
from tests.simulation.faults import Fault, Kind, Scene


async def cut(scene: Scene, fault: Fault) -> None:
    """One direction, or both, between two hosts, or around one host."""
    rng, network = scene.rng(fault), scene.world.network
    scene.world.count_fault(fault.kind)
    victim = scene.victim(fault) if rng.random() < 0.9 else scene.world.who(COORDINATOR)
    everybody = (*scene.world.hosts, *scene.world.coordinators)
    others = [name for name in everybody if name != victim]
    peers = others if rng.random() < 0.4 else rng.sample(others, rng.randint(1, 2))
    directions = rng.choice(["out", "in", "both"])
    for peer in peers:
        if directions in ("out", "both"):
            network.cut(victim, peer)
        if directions in ("in", "both"):
            network.cut(peer, victim)
    await asyncio.sleep(fault.lasts_s)
    for peer in peers:
        network.heal(victim, peer)
        network.heal(peer, victim)


async def clog(scene: Scene, fault: Fault) -> None:
    """Links that deliver nothing for a while, then everything."""
    rng = scene.rng(fault)
    scene.world.count_fault(fault.kind)
    everybody = [*scene.world.hosts, *scene.world.coordinators]
    for _ in range(rng.randint(1, 6)):
        source, target = rng.sample(everybody, 2)
        scene.world.network.clog(source, target, fault.lasts_s)


async def slow_messages(scene: Scene, fault: Fault) -> None:
    """Some messages take twenty times as long, so that calls overtake each other."""
    scene.world.count_fault(fault.kind)
    scene.world.network.faults.slow = 0.05
    await asyncio.sleep(fault.lasts_s)
    scene.world.network.faults.slow = 0.0


async def lost_requests(scene: Scene, fault: Fault) -> None:
    """Connections break before the request arrives; each one counts."""
    scene.world.network.faults.request_loss = 0.01
    await asyncio.sleep(fault.lasts_s)
    scene.world.network.faults.request_loss = 0.0


async def lost_replies(scene: Scene, fault: Fault) -> None:
    """Connections break after the request was carried out; each one counts."""
    scene.world.network.faults.reply_loss = 0.01
    await asyncio.sleep(fault.lasts_s)
    scene.world.network.faults.reply_loss = 0.0


async def repeated_requests(scene: Scene, fault: Fault) -> None:
    """Requests arrive once more, at once or much later; each one counts."""
    scene.world.network.faults.repeats = scene.rng(fault).choice([0.03, 0.03, 0.1, 0.4])
    await asyncio.sleep(fault.lasts_s)
    scene.world.network.faults.repeats = 0.0


KINDS = (
    Kind("cut", cut, (0.1, 5.0)),
    Kind("clog", clog, (0.05, 1.5)),
    Kind("slow_messages", slow_messages, (0.5, 5.0)),
    Kind("lost_requests", lost_requests, (0.5, 5.0)),
    Kind("lost_replies", lost_replies, (0.5, 5.0)),
    Kind("repeated_requests", repeated_requests, (0.5, 5.0)),
)
