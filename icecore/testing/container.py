"""A cluster in a container, for testcontainers: ``with IcecoreContainer() as icecore: …``.

A node tells clients its own address, so a port is the same inside and outside. Each container
takes ports of the machine that are free, which is why several run side by side.
"""

import os
import random
import socket
import time
from contextlib import ExitStack
from typing import Any, Final, Self

import icecore
from icecore.blocking import Admin, Producer
from icecore.client import checks
from icecore.errors import IcecoreError, UnavailableError
from icecore.extras import explained

with explained("testing"):
    from testcontainers.core.container import DockerContainer

IMAGE: Final = f"icecore:{icecore.__version__}"
DATA: Final = "/var/lib/icecore"
_PORTS: Final = range(20_000, 30_000)
"""Below those that systems give to outgoing connections."""
_TRIES: Final = 100
_POLL_S: Final = 0.2


class IcecoreContainer(DockerContainer):
    """One coordinator and some nodes in one container.

    Args:
        image: Of icecore.
        nodes: How many; with three, topics have three copies.
        start_timeout_s: How long it may take until a record is acknowledged.
        options: As ``DockerContainer`` takes them.

    Raises:
        TypeError, ValueError: An argument is of a wrong type or out of range.
    """

    def __init__(
        self, image: str = IMAGE, nodes: int = 1, *, start_timeout_s: float = 60.0, **options: Any
    ) -> None:
        checks.whole("nodes", nodes, 1, 9)
        checks.duration("start_timeout_s", start_timeout_s, 0)
        super().__init__(image, **options)
        self.nodes, self.start_timeout_s = nodes, start_timeout_s
        self.port = _free_ports(nodes + 1)
        for each in range(self.port, self.port + nodes + 1):
            self.with_bind_ports(each, each)
        self.with_command(
            f"icecore dev --data {DATA} --nodes {nodes} --port {self.port} --tier-url none"
            " --host 0.0.0.0 --advertise 127.0.0.1 --insecure-bind"
        )

    @property
    def bootstrap(self) -> str:
        """``HOST:PORT`` for ``Producer``, ``Consumer``, ``Lookup`` and ``Admin``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it; return when a record was acknowledged.

        Raises UnavailableError when that takes longer than ``start_timeout_s``.
        """
        super().start()
        deadline = time.monotonic() + self.start_timeout_s
        while True:
            try:
                self._produce()
                return self
            except IcecoreError as error:
                if time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                out, err = self.get_logs()
                said = (out + err).decode(errors="replace")[-2_000:]
                self.stop()
                raise UnavailableError(
                    f"icecore in {self.image} acknowledged nothing in {self.start_timeout_s:g} s"
                    f" ({error.message}); it said:\n{said}"
                ) from error

    def _produce(self) -> None:
        """Append a record to a topic that is deleted again; each node has a copy. Raises
        IcecoreError."""
        name = f"ready-{os.urandom(6).hex()}"
        left_s = self.start_timeout_s
        with Admin(self.bootstrap) as admin:
            admin.create_topic(name, replication_factor=self.nodes)
            with Producer(self.bootstrap) as producer:
                producer.send(name, b"").result(left_s)
            admin.delete_topic(name)


def _free_ports(count: int) -> int:
    """The first of some ports in a row that nobody uses at the moment.

    Raises UnavailableError when there are none, as far as many tries can tell.
    """
    for _ in range(_TRIES):
        first = random.choice(_PORTS)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise UnavailableError(f"no {count} free ports in a row: stop what uses them")
