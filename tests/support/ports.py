"""Ports for servers that can't take any and tell which: below those that outgoing connections take.

A port that the kernel gives for 0 comes from the range outgoing connections take theirs from. It is
free for a moment only, and so is the port of a server that is dead until a test starts it again.
"""

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_TRIES = 200
_random = random.SystemRandom()
"""Neither a test's seed nor that of a process beside it may lead to the same ports."""


def free_ports(count: int) -> list[int]:
    """So many ports, each free at the moment."""
    found = set[int]()
    while len(found) < count:
        found.add(free_port_block([0]))
    return list(found)


def free_port_block(offsets: Sequence[int]) -> int:
    """A port such that it plus each of ``offsets`` is free.

    Raises:
        RuntimeError: There is none, as far as many tries can tell.
    """
    outgoing = int(_RANGE.read_text().split()[0])
    for _ in range(_TRIES):
        port = _random.randrange(_LOWEST, outgoing - max(offsets))
        if all(_is_free(port + each) for each in offsets):
            return port
    raise RuntimeError(f"no port below {outgoing} with free ones at {list(offsets)} from it")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        # As servers do it: connections of a server before this one may still be closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return True
    return False
