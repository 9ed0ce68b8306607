"""A server may listen on loopback always, and elsewhere only with leave."""

import socket

import pytest

from icecore.errors import ConfigurationError
from icecore.rpc.addresses import check_listen, why_not_bound


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("localhost:0", "localhost", 0),
        ("[::1]:1", "[::1]", 1),
    ],
)
def test_loopback_needs_no_leave(address: str, host: str, port: int) -> None:
    assert check_listen(address, insecure_bind=False) == (host, port)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "example.org"])
def test_other_machines_need_leave(host: str) -> None:
    with pytest.raises(ConfigurationError, match="insecure-bind"):
        check_listen(f"{host}:7400", insecure_bind=False)
    assert check_listen(f"{host}:7400", insecure_bind=True) == (host, 7400)


@pytest.mark.parametrize("address", ["", "7400", ":7400", "127.0.0.1", "127.0.0.1:http"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        check_listen(address, insecure_bind=True)


def test_why_a_port_cannot_be_had() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert why_not_bound("127.0.0.1", port) == f"port {port} is in use"
    assert "cannot listen on 203.0.113.7:7400" in why_not_bound("203.0.113.7", 7400)
