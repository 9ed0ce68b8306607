"""A host refuses a connection, accepts it, or says nothing: only a refusal counts as one."""

import asyncio
import socket

import pytest

from icecore.rpc.addresses import refuses


def taken() -> socket.socket:
    """A socket of a port that nobody else gets, and that does not listen."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found


async def test_a_port_without_a_listener_refuses() -> None:
    with taken() as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        assert await refuses(address, 5)
        sock.listen()
        assert not await refuses(address, 5)


async def test_a_host_that_says_nothing_is_not_known_to_refuse() -> None:
    with taken() as sock:
        sock.listen(0)
        where = sock.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # the backlog is full: the next connection gets no answer
            each.setblocking(False)
            each.connect_ex(where)
        began_s = asyncio.get_running_loop().time()
        assert not await refuses(f"127.0.0.1:{where[1]}", 0.3)
        assert asyncio.get_running_loop().time() - began_s >= 0.25
        for each in waiting:
            each.close()


async def test_one_address_of_a_name_that_lets_somebody_in_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with taken() as closed, taken() as opened:
        opened.listen()
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", each.getsockname())
            for each in (closed, opened)
        ]

        async def resolve(*_: object, **__: object) -> object:
            return found

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        assert not await refuses("two.example:1", 5)
        found.pop()
        assert await refuses("two.example:1", 5)
        found.clear()
        assert not await refuses("two.example:1", 5)


@pytest.mark.parametrize(
    "address", ["", "here", "127.0.0.1:", "127.0.0.1:x", "no.such.name.invalid:1", ":99999"]
)
async def test_what_is_no_address_is_not_known_to_refuse(address: str) -> None:
    assert not await refuses(address, 5)
