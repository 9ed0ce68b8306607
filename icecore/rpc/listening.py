"""Checks where a server may listen: beyond this machine only with leave, because there is no TLS
yet."""

import errno
import ipaddress
import socket

from icecore.errors import ConfigurationError


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
