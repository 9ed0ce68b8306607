"""Addresses: their transport, and which address of a node a process of ours calls.

``host:port`` is gRPC's, ``native://host:port`` the native transport's. The scheme is part of what
``icecore.rpc.ports.Net`` is called with; a node's record has two plain addresses, one of each.
"""

from typing import Final, Literal, Protocol, TypeAlias, get_args

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
