"""TLS under the native transport: a socket that encrypts, in the place of one that does not.

``TlsSocket`` has the methods that a connection uses of a socket, and like those of a socket that
does not block they raise BlockingIOError. The handshake comes before the connection is made, within
a time limit. Only TLS 1.3: there is no renegotiation, so a read never waits for a write. A peer
that ends without TLS's own goodbye is nothing special, because frames say where they end.

Linux can encrypt in the kernel where it has the module ``tls`` (kTLS); ``offer_ktls`` asks for it,
which needs Python 3.12.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from icecore.errors import ConfigurationError
from icecore.rpc.ports import Buffer

RECORD_BYTES: Final = 16 << 10
"""Maximum payload of one TLS record; smaller buffers are joined to one."""
_READ_BYTES_MAX: Final = 256 << 10
"""Maximum bytes of one call, so that the connection gets a turn to look at its budget."""
_WAITS: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSecurity:
    """Certificates of a process and its demands on peers, by role. None = no TLS in that role.

    Who a caller is (``CallContext.principal``) is known only if ``server`` asks for a certificate
    (``verify_mode``). Whether a server's name is checked is up to ``client.check_hostname``.

    Raises:
        ConfigurationError: A context would speak an older TLS than 1.3.
    """

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        for context in (self.server, self.client):
            if context is not None and context.minimum_version < ssl.TLSVersion.TLSv1_3:
                raise ConfigurationError("the native transport speaks TLS 1.3: set minimum_version")


def offer_ktls(context: ssl.SSLContext) -> bool:
    """Let the kernel encrypt where it can; whether this Python knows how to ask for it."""
    option: Any = getattr(ssl, "OP_ENABLE_KTLS", None)  # since Python 3.12
    if option is None:
        return False
    context.options |= option
    return True


class TlsSocket:
    """One connected socket with TLS, made by ``shake_hands``."""

    def __init__(self, inner: ssl.SSLSocket) -> None:
        self._inner = inner
        self._stuck = b""
        """Bytes that OpenSSL has begun to send: it must be given the same bytes again."""
        self.principal = _principal(inner)

    def fileno(self) -> int:
        """As of a socket."""
        return self._inner.fileno()

    def pending(self) -> int:
        """Bytes that were decrypted already, which no selector tells of."""
        return self._inner.pending()

    def recv_into(self, target: memoryview) -> int:
        """As of a socket."""
        return self.recvmsg_into([target])[0]

    def recvmsg_into(self, targets: Sequence[memoryview]) -> tuple[int, None]:
        """As of a socket, but for what comes after the count. Record by record, into its place."""
        total = 0
        try:
            for target in targets:
                at = 0
                while at < len(target) and total < _READ_BYTES_MAX:
                    count = self._inner.recv_into(target[at:])
                    if not count:
                        return total, None
                    at += count
                    total += count
        except _WAITS:
            if not total:
                raise BlockingIOError from None
        return total, None

    def send(self, data: Buffer) -> int:
        """As of a socket."""
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """As of a socket. What it has sent in part it is given again, at the front."""
        total, at, begun = 0, 0, 0
        try:
            while at < len(buffers):
                record = self._stuck or _next_record(buffers, at, begun)
                try:
                    count = self._inner.send(record)
                except _WAITS:
                    self._stuck = bytes(record)
                    raise
                self._stuck = b""
                total += count
                begun += count
                while at < len(buffers) and begun >= len(buffers[at]):
                    begun -= len(buffers[at])
                    at += 1
        except _WAITS:
            if not total:
                raise BlockingIOError from None
        return total

    def close(self) -> None:
        """As of a socket."""
        self._inner.close()


def _next_record(buffers: Sequence[Buffer], at: int, begun: int) -> Buffer:
    """Return the bytes of one record: those after the first ``begun`` bytes of ``buffers[at]``."""
    first = memoryview(buffers[at])[begun : begun + RECORD_BYTES]
    if len(first) == RECORD_BYTES or at + 1 == len(buffers):
        return first
    parts, room = [first], RECORD_BYTES - len(first)
    for each in buffers[at + 1 :]:
        parts.append(memoryview(each)[:room])
        room -= len(parts[-1])
        if not room:
            break
    return b"".join(parts)


def _principal(inner: ssl.SSLSocket) -> str:
    """The common name of the peer's checked certificate; ``anonymous`` if there is none."""
    certificate: Any = inner.getpeercert() or {}
    for part in certificate.get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return "anonymous"


async def shake_hands(
    sock: socket.socket, context: ssl.SSLContext, within_s: float, server_name: str | None = None
) -> TlsSocket:
    """Make a connected socket one with TLS; it is closed when that fails.

    Args:
        sock: Connected, and not blocking.
        context: Of this side.
        within_s: How long the peer may take.
        server_name: Whom a client means to talk to; None at the server.

    Raises:
        OSError: What is wrong, in words for people.
    """
    is_server = server_name is None
    try:
        inner = context.wrap_socket(
            sock,
            server_side=is_server,
            do_handshake_on_connect=False,
            server_hostname=server_name,
        )
    except BaseException:
        sock.close()
        raise
    try:
        async with asyncio.timeout(within_s):
            await _shake(inner)
        return TlsSocket(inner)
    except TimeoutError as error:
        inner.close()
        raise OSError("the peer did not end the TLS handshake in time") from error
    except ssl.SSLError as error:
        inner.close()
        raise OSError(_in_words(error)) from error
    except BaseException:
        inner.close()
        raise


async def _shake(inner: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    descriptor = inner.fileno()
    while True:
        ready = loop.create_future()
        try:
            inner.do_handshake()
            return
        except ssl.SSLWantReadError:
            loop.add_reader(descriptor, _settle, ready)
        except ssl.SSLWantWriteError:
            loop.add_writer(descriptor, _settle, ready)
        try:
            await ready
        finally:
            with suppress(ValueError):
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _in_words(error: ssl.SSLError) -> str:
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return "the peer does not speak TLS"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not good: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the peer closed the connection during the TLS handshake"
    return f"TLS failed: {error.reason or error}"
