"""Certificates for tests, made by the ``openssl`` command once per run: an authority that signs a
server's and a client's, and a stranger that signed its own.
"""

import atexit
import functools
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path

from icecore.rpc.native.tls import TransportSecurity

CLIENT_NAME = "producer-7"


@functools.cache
def folder() -> Path:
    """``NAME.pem`` and ``NAME.key`` of authority, server, client and stranger."""
    if shutil.which("openssl") is None:
        raise RuntimeError("tests of TLS need the openssl command")
    made = Path(tempfile.mkdtemp(prefix="icecore-certificates-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    _make(made, "authority", "test authority", "basicConstraints=critical,CA:TRUE")
    _make(made, "server", "node-1", "subjectAltName=IP:127.0.0.1,DNS:localhost", "authority")
    _make(made, "client", CLIENT_NAME, "extendedKeyUsage=clientAuth", "authority")
    _make(made, "stranger", CLIENT_NAME, "subjectAltName=IP:127.0.0.1")
    return made


def _make(made: Path, name: str, common_name: str, extension: str, issuer: str = "") -> None:
    """A certificate, signed by its own key unless somebody issues it."""
    key, signed = made / f"{name}.key", made / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-keyout", str(key), "-out", str(signed)]
    command += ["-subj", f"/CN={common_name}", "-addext", extension]
    if issuer:
        command += ["-CA", str(made / f"{issuer}.pem"), "-CAkey", str(made / f"{issuer}.key")]
    subprocess.run(command, check=True, capture_output=True)


def server_context(name: str = "server", *, asks: bool = True) -> ssl.SSLContext:
    """Return the context of a server; with ``asks`` it asks callers for a certificate of the
    authority."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, name)
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    return context


def client_context(name: str | None = "client") -> ssl.SSLContext:
    """Return the context of a client that trusts the authority. Without a name it has no
    certificate."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, name)


def _context(protocol: int, name: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder() / "authority.pem")
    if name is not None:
        context.load_cert_chain(folder() / f"{name}.pem", folder() / f"{name}.key")
    return context


def security() -> TransportSecurity:
    """Both sides prove who they are."""
    return TransportSecurity(server=server_context(), client=client_context())
