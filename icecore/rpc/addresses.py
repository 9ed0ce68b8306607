"""Addresses: the transport that each names, the one of a node that our processes call, those
that a server may listen on, and whether a host still answers at one.

``host:port`` is gRPC's, ``native://host:port`` the native transport's. The scheme is part of what
``icecore.rpc.ports.Net`` is called with; a node's record has two plain addresses, one of each.
"""

import asyncio
import errno
import ipaddress
import socket
from typing import Final, Literal, Protocol, TypeAlias, get_args

from icecore.errors import ConfigurationError

Transport: TypeAlias = Literal["auto", "grpc"]
"""``auto`` = the native transport wherever a node has it, ``grpc`` = never."""
TRANSPORTS: Final[tuple[Transport, ...]] = get_args(Transport)
NATIVE: Final = "native://"


class Addressed(Protocol):
    """A node, in whatever record it stands."""

    @property
    def address(self) -> str:
        """``host:port`` of gRPC; empty when it is not known."""
        ...

    @property
    def native_address(self) -> str:
        """``host:port`` of the native transport; empty when there is none."""
        ...


def native(address: str) -> str:
    """The address of the native transport at ``host:port``."""
    return NATIVE + address


def peer_address(node: Addressed, transport: Transport = "auto") -> str:
    """Return the address for calls to a node: native if both sides can, else gRPC.

    Nodes of before the native transport have no such address, so that old and new ones talk
    with each other while a cluster is updated. Empty when the node has no address at all.
    """
    if transport == "auto" and node.native_address:
        return native(node.native_address)
    return node.address


# --- a host that still answers --------------------------------------------------------------------

# Whether a process that broke its connections is gone: does its host still let anybody in?
#
# A host answers for a port without a listener at once. So a process that has died is told from
# one whose connection broke on the way, without waiting for it to come back.


async def refuses(address: str, within_s: float) -> bool:
    """Knock at ``host:port``: connect, and hang up.

    Args:
        address: Of a server, without a scheme.
        within_s: How long to wait for an answer.

    Returns:
        True when the host says that nobody listens there. False when somebody does, and when
        nothing is known: no answer, no way to the host, no such name.
    """
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(within_s):
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            for family, kind, number, _, where in found:
                with socket.socket(family, kind, number) as sock:
                    sock.setblocking(False)
                    try:
                        await loop.sock_connect(sock, where)
                    except ConnectionRefusedError:
                        continue
                    return False
            return bool(found)
    except (OSError, ValueError):  # a TimeoutError is an OSError, too
        return False


# --- addresses to listen on -----------------------------------------------------------------------

# Checks where a server may listen: beyond this machine only with leave, because there is no TLS
# yet.


def check_listen(address: str, *, insecure_bind: bool) -> tuple[str, int]:
    """The host and the port of an address that a server may listen on.

    Args:
        address: ``host:port``.
        insecure_bind: Whether other machines may reach it, without TLS.

    Raises:
        ConfigurationError: It is no such address, or other machines reach it and must not.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(f"{address!r} is not host:port")
    if not insecure_bind and not _is_loopback(host):
        raise ConfigurationError(
            f"{host} is reachable from other machines and there is no TLS: "
            "listen on 127.0.0.1, or allow it with --insecure-bind"
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def why_not_bound(host: str, port: int) -> str:
    """Why the system refused to listen there, found out by trying once more with a bare socket."""
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(resolved[0], resolved[1]) as probe:
            probe.bind(resolved[4])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} is in use"
        return f"cannot listen on {host}:{port}: {error.strerror or error}"
    return f"port {port} is in use"
