"""A cut between two processes holds back one way, tells nobody, and leaves everybody else alone."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icecore.dev import HOST
from icecore.process.members import Member
from tests.chaos.proxies import Proxies

WAIT_S = 20.0
HELD_S = 0.5
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[2], int(sys.argv[1]))) as there:
    for line in sys.stdin:
        there.sendall(line.encode())
        print(there.recv(100).decode(), end="", flush=True)
"""


def port_of(argument: str) -> int:
    return int(argument.rpartition(":")[2])


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies(["coordinator", "node-1", "node-2"]) as running:
        yield running


@pytest.mark.parametrize("host", [HOST, f"::ffff:{HOST}"])  # gRPC dials by the second one
def test_a_cut_holds_back_one_way_until_it_heals(
    proxies: Proxies, tmp_path: Path, host: str
) -> None:
    one, two = (Member(name, [], "", tmp_path / name) for name in ("node-1", "node-2"))
    proxies.attach(one)
    proxies.attach(two)
    front = port_of(two.extra[two.extra.index("--advertise") + 1])
    with socket.create_server((HOST, port_of(two.listen))) as server:
        server.settimeout(WAIT_S)
        one.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(front), host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            _talk(proxies, one.process, server.accept()[0])
            _stranger(proxies, front, server)
        finally:
            one.process.kill()
            one.process.communicate()


def _talk(proxies: Proxies, client: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
    assert client.stdin is not None and client.stdout is not None
    with connection:
        connection.settimeout(WAIT_S)
        client.stdin.write(b"before\n")
        client.stdin.flush()
        assert connection.recv(100) == b"before\n"
        proxies.cut("node-1", "node-2")
        connection.sendall(b"the other way\n")
        assert client.stdout.readline() == b"the other way\n"
        client.stdin.write(b"held\n")
        client.stdin.flush()
        connection.settimeout(HELD_S)
        with pytest.raises(TimeoutError):
            connection.recv(100)
        connection.settimeout(WAIT_S)
        proxies.heal()
        assert connection.recv(100) == b"held\n"


def _stranger(proxies: Proxies, front: int, server: socket.socket) -> None:
    """A client, which is none of the processes, is not concerned."""
    proxies.separate(["node-1"], ["node-2"])
    with socket.create_connection((HOST, front)) as client, server.accept()[0] as connection:
        connection.settimeout(WAIT_S)
        client.sendall(b"hello")
        assert connection.recv(100) == b"hello"


def test_a_process_that_is_cut_off_makes_no_connection(proxies: Proxies, tmp_path: Path) -> None:
    """It dials again and again, and each time it gives up: nothing of that is left."""
    one, two = (Member(name, [], "", tmp_path / name) for name in ("node-1", "node-2"))
    proxies.attach(one)
    proxies.attach(two)
    front = port_of(two.extra[two.extra.index("--advertise") + 1])
    proxies.cut("node-2", "node-1")
    with socket.create_server((HOST, port_of(two.listen))) as server:
        server.settimeout(HELD_S)
        with _dialing(proxies, one, front) as client:
            with pytest.raises(TimeoutError):
                server.accept()
            client.kill()
        with _dialing(proxies, one, front) as client:
            assert client.stdin is not None
            client.stdin.write(b"sent meanwhile\n")
            client.stdin.flush()
            proxies.heal()
            server.settimeout(WAIT_S)
            with server.accept()[0] as connection:
                assert connection.recv(100) == b"sent meanwhile\n"


@contextlib.contextmanager
def _dialing(proxies: Proxies, member: Member, front: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that the proxy has recognized: a dead one would be a stranger, who may connect."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(front), HOST], **pipes)  # type: ignore[call-overload]
    member.process = client
    try:
        _until(lambda: proxies.held == [("node-1", "node-2")])
        yield client
    finally:
        client.kill()
        client.communicate()
    _until(lambda: not proxies.held)


def _until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)
