"""Finds out who is behind a port before anybody waits for an answer: a server of icecore, another
program, or one that says nothing.

A server says its first words as soon as somebody greets it, also while its loop is busy. So who
says others, or none, is no server that will answer later.
"""

import socket
import time
from typing import Final

from icecore.errors import UnavailableError, UnsupportedError
from icecore.rpc.addresses import NATIVE, split_address
from icecore.rpc.native.frame import is_hello, pack_hello

_GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The first words of an HTTP/2 client, with an empty SETTINGS frame."""
_HTTP: Final = (b"http/", b"<!doc", b"<html")
_SETTINGS_AT: Final = slice(3, 4)
_ENOUGH_BYTES: Final = 9
"""The head of an HTTP/2 frame; a hello comes in one piece."""
_SHOWN_BYTES: Final = 40


def stranger(said: bytes, *, is_native: bool) -> str:
    """Return who else it is that begins with these bytes; empty for a server that speaks as asked.

    Args:
        said: First bytes of a server that was greeted.
        is_native: Whether the native transport was asked for, rather than gRPC.
    """
    is_http2 = said[_SETTINGS_AT] == b"\x04" and said[:1] == b"\0"
    if is_hello(said):
        return "" if is_native else "the native transport of icecore: write native:// in front"
    if is_http2:
        return "a gRPC server: write the address without native://" if is_native else ""
    if said[:5].lower() in _HTTP:
        return "an HTTP server, and no server of icecore (a page of metrics?)"
    if said[:2] in (b"\x15\x03", b"\x16\x03"):
        return "a server that expects TLS, which icecore does not speak yet"
    return f"no server of icecore: it begins with {said[:_SHOWN_BYTES]!r}"


def knock(address: str, connect_s: float, silent_s: float) -> None:
    """Greet the server at an address, and hang up.

    Args:
        address: With its scheme.
        connect_s: How long the connection may take.
        silent_s: How long the server may be silent.

    Raises:
        UnavailableError: Nobody is there, or who is there says nothing.
        UnsupportedError: Somebody else is there.
    """
    is_native = address.startswith(NATIVE)
    try:
        with socket.create_connection(split_address(address.removeprefix(NATIVE)), connect_s) as it:
            said = _first_words(it, pack_hello() if is_native else _GREETING, silent_s)
    except OSError as error:
        why = error.strerror or str(error)
        raise UnavailableError(f"can't connect to {address}: {why}") from error
    if said is None:
        raise UnavailableError(
            f"{address} takes connections and says nothing for {silent_s:g} s: "
            "it is stopped, or no server of icecore"
        )
    if not said:
        raise UnavailableError(
            f"{address} closes each connection at once: it is no server of icecore, expects TLS, "
            "or refuses this machine"
        )
    if who := stranger(said, is_native=is_native):
        raise UnsupportedError(f"{address} is {who}")


def _first_words(sock: socket.socket, greeting: bytes, within_s: float) -> bytes | None:
    """None when there are none in time; empty when the other side hangs up."""
    end_s, said = time.monotonic() + within_s, b""
    try:
        sock.sendall(greeting)
        while len(said) < _ENOUGH_BYTES:
            sock.settimeout(max(0.001, end_s - time.monotonic()))
            if not (more := sock.recv(_SHOWN_BYTES)):
                break
            said += more
    except TimeoutError:
        return said or None
    except ConnectionError:
        return said
    return said
