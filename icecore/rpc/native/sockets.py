"""Kernel settings of a connection, and the kernel's knowledge of a silent peer's host.

A host that vanishes sends neither FIN nor RST. While nothing is under way to it, the kernel asks it
(keep-alive) at no cost to us, and breaks the connection after about 3 s. ``TCP_USER_TIMEOUT`` would
also bound what is under way, but it ends connections to peers that live and take nothing for a
while, which is how a slow reader holds its writer. So who can't ask the peer itself looks at
``is_host_silent``.
"""

import contextlib
import ipaddress
import socket
import struct
import sys
from typing import Final

_KEEPALIVE_IDLE_S: Final = 1
_KEEPALIVE_EVERY_S: Final = 1
_KEEPALIVE_PROBES: Final = 2
_UNPACED: Final = b"reno"
"""Congestion control that every Linux has and allows. One that paces (BBR) sends each few segments
of a connection without any bottleneck by a timer, a tenth of all processor time
(docs/adr/tried.md)."""
_SILENT_MS: Final = 2_500
_RETRANSMISSIONS_MIN: Final = 2

_INFO: Final = struct.Struct("=2xB21xI28xI")
"""Fields of Linux's ``tcp_info``: retransmissions since the last ack, segments without an ack,
milliseconds since the last ack."""


def prepare(sock: socket.socket) -> None:
    """Make a connected socket one that a connection can use."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_EVERY_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def spare_pacing(sock: socket.socket, host: str) -> None:
    """Have no segment wait for a timer where none crosses a network.

    Call it before the socket connects or listens: a socket that was paced once stays so. Who is
    accepted has what its listener has.

    Args:
        sock: Of TCP.
        host: The IP address that it will connect to or listen at.
    """
    if sys.platform == "linux" and ipaddress.ip_address(host).is_loopback:
        with contextlib.suppress(OSError):  # kernels that are not Linux's own may know no other
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)


def is_host_silent(descriptor: int) -> bool:
    """Return whether what was sent is repeated in vain; a peer that just reads nothing still
    acks."""
    if sys.platform != "linux":
        return False
    duplicate = socket.socket(fileno=descriptor)
    try:
        info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    finally:
        duplicate.detach()
    retransmissions, unacked, last_ack_ms = _INFO.unpack(info)
    return bool(unacked and retransmissions >= _RETRANSMISSIONS_MIN and last_ack_ms > _SILENT_MS)
