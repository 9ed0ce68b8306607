"""Whether a process that broke its connections is gone: does its host still let anybody in?

A host answers for a port without a listener at once. So a process that has died is told from one
whose connection broke on the way, without waiting for it to come back.
"""

import asyncio
import socket


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
