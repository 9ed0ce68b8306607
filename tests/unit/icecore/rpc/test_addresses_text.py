"""The text of an address: IPv6 in brackets, names that can be, and hosts that nobody can call."""

import pytest

from icecore.errors import ConfigurationError
from icecore.rpc.addresses import (
    bare_host,
    check_called,
    check_told,
    is_wildcard,
    join_address,
    split_address,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400),
        ("[::1]:7400", "::1", 7400),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("node-1.example.com.:0", "node-1.example.com.", 0),
        ("my_node:65535", "my_node", 65_535),
        ("knödel.example:1", "knödel.example", 1),
        ("web.1:1", "web.1", 1),
        ("1.web:1", "1.web", 1),
    ],
)
def test_what_is_split_can_be_joined(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert join_address(host, port) == join_address(f"[{host}]", port) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("::1", r"write \[::1\]:PORT"),
        ("::1:7400", r"write \[::1\]:7400"),
        ("2001:db8::1", r"write \[2001:db8::1\]:PORT"),
        ("[::1]", r"write \[::1\]:PORT"),
        ("here", "write HOST:PORT"),
        (":7400", "write HOST:PORT"),
        ("here:", "write HOST:PORT"),
        ("here:http", "write HOST:PORT"),
        ("here:٣", "write HOST:PORT"),
        ("here:65536", "ports end at 65535"),
        ("here:-1", "write HOST:PORT"),
        ("http://here:7400", "host:port"),
        ("user@here:7400", "no host"),
        ("node1..example.com:7400", "'node1..example.com' is no host"),
        (f"{'x' * 64}.example.com:7400", "no host"),
        ("[here]:7400", "no host"),
        ("[::1:7400", "no host"),
        (".:7400", "no host"),
        ("two words:7400", "no host"),
        ("*:7400", "no host"),
        ("127.1:7400", r"'127.1' is no IPv4 address: write 127\.0\.0\.1"),
        ("2130706433:7400", r"write 127\.0\.0\.1"),
        ("0x7f.1:7400", r"write 127\.0\.0\.1"),
        ("0X7f000001:7400", r"write 127\.0\.0\.1"),
        ("0177.0.0.1:7400", r"write 127\.0\.0\.1"),
        ("127.0.0.010:7400", r"write 127\.0\.0\.8"),
        ("127.000.000.001:7400", r"write 127\.0\.0\.1"),
        ("127.0.0.1.:7400", "write four numbers from 0 to 255"),
        ("127.0.0.08:7400", "write four numbers from 0 to 255"),
        ("256.0.0.1:7400", "write four numbers from 0 to 255"),
        ("127.0.0.1.1:7400", "write four numbers from 0 to 255"),
        ("", "write HOST:PORT"),
    ],
)
def test_what_is_no_address_is_told_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        split_address(text)
    with pytest.raises(ConfigurationError, match=r"^bootstrap: "):
        check_called("bootstrap", text)


@pytest.mark.parametrize("host", ["::1", "[::1]", "127.0.0.1", "here", "a.b"])
def test_a_host_with_and_without_brackets(host: str) -> None:
    assert bare_host(host) == host.strip("[]")


WILDCARDS = ["0.0.0.0", "::", "[::]", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "0", "0x0", "0.0", ""]


@pytest.mark.parametrize("host", WILDCARDS)
def test_hosts_that_mean_each_address_of_a_machine(host: str) -> None:
    assert is_wildcard(host)
    if host:
        with pytest.raises(ConfigurationError, match=r"^advertise .* others can't connect"):
            check_told("advertise", join_address(host, 7400))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.1", "here", "0.example.com", "é"])
def test_hosts_that_can_be_told(host: str) -> None:
    assert not is_wildcard(host)
    check_told("advertise", join_address(host, 7400))
    with pytest.raises(ConfigurationError, match="nobody listens on port 0"):
        check_told("advertise", join_address(host, 0))
