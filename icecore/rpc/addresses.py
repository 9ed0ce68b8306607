"""Addresses: their text, the transport that each names, the one of a node that our processes call,
those that a server may listen on or tell others, and whether a host still answers at one.

``host:port`` is gRPC's, ``native://host:port`` the native transport's. The scheme is part of what
``icecore.rpc.ports.Net`` is called with; a node's record has two plain addresses, one of each.
"""

import asyncio
import errno
import ipaddress
import re
import socket
from typing import Final, Literal, Protocol, TypeAlias, get_args

from icecore.errors import ConfigurationError

Transport: TypeAlias = Literal["auto", "grpc"]
"""``auto`` = the native transport wherever a node has it, ``grpc`` = never."""
TRANSPORTS: Final[tuple[Transport, ...]] = get_args(Transport)
NATIVE: Final = "native://"
PORT_MAX: Final = 65_535
_NOWHERE: Final = bytes(4)
_NUMBERS: Final = re.compile(r"(([0-9]+|0[xX][0-9a-fA-F]*)(\.|$))+")


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
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(within_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, kind, number, _, where in found:
                with socket.socket(family, kind, number) as sock:
                    sock.setblocking(False)
                    try:
                        await loop.sock_connect(sock, where)
                    except ConnectionRefusedError:
                        continue
                    return False
            return bool(found)
    except (ConfigurationError, OSError, ValueError):  # a TimeoutError is an OSError, too
        return False


# --- the text of an address -----------------------------------------------------------------------


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; the host is without its brackets.

    Raises ConfigurationError when it is neither, or when no host has such a name.
    """
    host, colon, port = text.rpartition(":")
    if _is_v6(text):  # ``::1`` is all host, ``::1:7400`` could be host and port
        hint = f"[{host}]:{port}" if _is_v6(host) else f"[{text}]:PORT"
        raise ConfigurationError(f"{text!r} is not host:port: write {hint}", value=text)
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        hint = f"{text}:PORT" if text.startswith("[") else "HOST:PORT"
        raise ConfigurationError(f"{text!r} is not host:port: write {hint}", value=text)
    if int(port) > PORT_MAX:
        raise ConfigurationError(f"{text!r} is not host:port: ports end at {PORT_MAX}", value=text)
    if ":" in host and not host.startswith("["):
        raise ConfigurationError(f"{text!r} is not host:port: write HOST:PORT", value=text)
    return bare_host(host), int(port)


def join_address(host: str, port: int | str) -> str:
    """``host:port``, with brackets around what has colons in it."""
    bare = host.removeprefix("[").removesuffix("]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def bare_host(text: str) -> str:
    """A host without brackets.

    Raises ConfigurationError when it is neither an IP address nor a possible name.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in host or host != text:
        is_possible = _is_v6(host)
    else:
        is_possible = all(each.isalnum() or each in "-_." for each in host) and _is_name(host)
    if not is_possible:
        raise ConfigurationError(f"{text!r} is no host: write a name or an IP address", value=text)
    if _NUMBERS.fullmatch(host) and not is_wildcard(host):  # which is nobody's, however written
        _check_v4(host)
    return host


def _check_v4(host: str) -> None:
    """The system reads ``0177.0.0.1`` in eights, gRPC in tens, so each would call another machine.

    Raises ConfigurationError unless it has the one form that all read alike.
    """
    try:
        ipaddress.IPv4Address(host)
    except ValueError as error:
        try:
            hint = f"write {socket.inet_ntoa(socket.inet_aton(host))}, if you mean that"
        except (OSError, UnicodeError):
            hint = "write four numbers from 0 to 255, with a dot between two"
        raise ConfigurationError(f"{host!r} is no IPv4 address: {hint}", value=host) from error


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    """As name servers know them: labels with something in them, none too long."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host.strip("."))


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach a server that listens on ``host``.

    Names other than ``localhost`` are not resolved: they count as reachable from outside.
    """
    bare = host.removeprefix("[").removesuffix("]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return whether ``host`` means each address of the machine: to listen on, never to call."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        try:
            return socket.inet_aton(bare) == _NOWHERE  # ``0`` and ``0x0``, as the system reads them
        except (OSError, UnicodeError):
            return not bare
    inner = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found.is_unspecified or (inner is not None and inner.is_unspecified)


def check_called(name: str, address: str) -> None:
    """Check an address that somebody wants to connect to.

    Args:
        name: Where it was given.
        address: ``host:port``.

    Raises:
        ConfigurationError: It is no such address, or nobody can listen there.
    """
    try:
        _, port = split_address(address)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error.message}", value=address) from error
    if not port:
        raise ConfigurationError(f"{name} {address}: nobody listens on port 0", address=address)


def check_told(name: str, address: str) -> None:
    """Check an address that others are told to connect to.

    Args:
        name: Of the setting.
        address: ``host:port``.

    Raises:
        ConfigurationError: It is no such address, or nobody elsewhere can connect to it.
    """
    check_called(name, address)
    host, _ = split_address(address)
    if is_wildcard(host):
        raise ConfigurationError(
            f"{name} {address}: others can't connect to {host}, which means each address of their "
            "own machine: write the address or the name of this machine",
            address=address,
        )


# --- addresses to listen on -----------------------------------------------------------------------

# Checks where a server may listen: beyond this machine only with leave, because there is no TLS
# yet.


def check_listen(address: str, *, insecure_bind: bool) -> tuple[str, int]:
    """The host and the port of an address that a server may listen on; IPv6 in brackets.

    Args:
        address: ``host:port``.
        insecure_bind: Whether other machines may reach it, without TLS.

    Raises:
        ConfigurationError: It is no such address, or other machines reach it and must not.
    """
    host, port = split_address(address)
    if not insecure_bind and not is_loopback(host):
        raise ConfigurationError(
            f"{address} can be reached from other machines and there is no TLS: listen on "
            "127.0.0.1, or accept that anyone may read and write with --insecure-bind",
            address=address,
        )
    return join_address(host, port).rpartition(":")[0], port


def why_not_bound(host: str, port: int) -> str:
    """Return why the system refused to listen there, found out by trying once more with a bare
    socket.
    """
    try:
        resolved = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(resolved[0], resolved[1]) as probe:
            probe.bind(resolved[4])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} is in use"
        return f"cannot listen on {host}:{port}: {error.strerror or error}"
    return f"port {port} is in use"
