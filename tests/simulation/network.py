"""The network of the simulator: who listens where, how long a message takes, what gets lost.

A process has one host, named like itself. Each directed link between hosts has its own latency and
can be cut (messages wait, as TCP does, until it heals or the connections time out), clogged
(messages wait for a while) or lossy (a connection breaks before the request or before the reply
arrives). Transport runs outside of all processes, so a paused process still receives into its
buffers and a dead one resets its connections.
"""

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field

from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedError,
)
from icecore.rpc.methods import DATA
from icecore.rpc.ports import Body, CallContext, ClientStream, Done, Handlers, Received, Server
from icecore.rpc.waiting import all_unary, start_in_task
from tests.simulation.loop import SimLoop
from tests.simulation.process import SimProcess
from tests.simulation.stream import SimConnection, SimStreamEnd, on_the_wire

CONNECT_TIMEOUT_S = 1.0
MESSAGE_BYTES_MAX = 2 << 20
"""Maximum bytes of one message, as small as everything else here is: gRPC has 64 MiB."""
EPHEMERAL_PORT = 40_000
REPEATS_AFTER = (-5.0, 1.5)
"""From 10 microseconds to 30 seconds, as powers of ten: each distance is as likely."""


@dataclass
class LinkFaults:
    """The random faults of all links; the world sets and heals these."""

    request_loss: float = 0.0
    reply_loss: float = 0.0
    slow: float = 0.0
    """Probability that a message takes 20 times as long as its link's latency."""
    repeats: float = 0.0
    """Probability that a unary request arrives once more, perhaps much later."""
    sent_once: set[str] = field(default_factory=set)
    """Clients whose requests never arrive once more by chance."""
    echo_s: dict[str, float] = field(default_factory=dict)
    """Method to the time after which each of its requests arrives once more."""


@dataclass
class Link:
    """One direction between two hosts."""

    latency_s: float
    is_cut: bool = False
    cut_serial: int = 0
    clogged_until_s: float = 0.0
    held: list[Callable[[], None]] = field(default_factory=list)
    """Messages on their way when the link was cut."""


class SimNetwork:
    """All links and listeners of one world.

    Args:
        loop: The world's loop.
        rng: Source of latencies and losses.
        latency_s: Of the slowest links; each link has its own below that.
        keepalive_s: A connection over a link that stays cut so long breaks at both ends.
        count_fault: Told of each message that was lost or repeated.
    """

    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        *,
        latency_s: float = 0.002,
        keepalive_s: float = 2.0,
        count_fault: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self.loop = loop
        self.faults = LinkFaults()
        self.keepalive_s = keepalive_s
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.keeps_order = False
        """Requests to produce arrive in their order, as on a connection of the native transport.
        Each is still lost on its own: what comes after it goes on."""
        self._lines: dict[tuple[SimProcess, str], list[Exchange]] = {}
        self._count_fault = count_fault
        self._rng = rng
        self._latency_s = latency_s
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[str, SimServer] = {}
        self._connections: dict[SimConnection, None] = {}
        self._context = Context()

    # --- listeners ----------------------------------------------------------------------------

    def listen(self, server: "SimServer") -> None:
        """Raises ConfigurationError when the address is taken."""
        if server.address in self._listeners:
            raise ConfigurationError(f"{server.address} is taken")
        self._listeners[server.address] = server

    def forget(self, server: "SimServer") -> None:
        """Idempotent."""
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    def listener(self, address: str) -> "SimServer | None":
        """Return the server that listens there now; None = no server."""
        return self._listeners.get(address)

    def free_port(self) -> int:
        """A port nobody had before."""
        return EPHEMERAL_PORT + self.loop.next_serial()

    def move_away(self, address: str) -> None:
        """Hide the server that listens there; its connections stay."""
        self._listeners.pop(address, None)

    # --- links --------------------------------------------------------------------------------

    def link(self, source: str, target: str) -> Link:
        """The link, made at first use."""
        found = self._links.get((source, target))
        if found is None:
            found = Link(latency_s=self._rng.uniform(0.0001, self._latency_s))
            self._links[source, target] = found
        return found

    def cut(self, source: str, target: str) -> None:
        """Nothing passes in this direction until it heals."""
        link = self.link(source, target)
        if link.is_cut:
            return
        link.is_cut = True
        link.cut_serial += 1
        self.loop.trace(f"cut {source} > {target}")
        self.loop.call_later(
            self.keepalive_s,
            self._keepalive,
            source,
            target,
            link.cut_serial,
            context=self._context,
        )

    def heal(self, source: str, target: str) -> None:
        """Messages held since the cut travel on."""
        link = self.link(source, target)
        if link.is_cut:
            link.is_cut = False
            self.loop.trace(f"heal {source} > {target}")
            held, link.held = link.held, []
            for callback in held:
                self.send(source, target, callback)

    def clog(self, source: str, target: str, duration_s: float) -> None:
        """Nothing arrives for a while, then everything."""
        self.loop.trace(f"clog {source} > {target} {duration_s:.6f}")
        link = self.link(source, target)
        link.clogged_until_s = max(link.clogged_until_s, self.loop.time() + duration_s)

    def heal_all(self) -> None:
        """No faults from now on."""
        self.faults = LinkFaults()
        for source, target in list(self._links):
            self.heal(source, target)
            self._links[source, target].clogged_until_s = 0.0

    def _keepalive(self, source: str, target: str, serial: int) -> None:
        link = self.link(source, target)
        if not link.is_cut or link.cut_serial != serial:
            return
        for connection in list(self._connections):
            if {connection.client_host, connection.server_host} == {source, target}:
                connection.reset("keepalive timed out")

    # --- transport ----------------------------------------------------------------------------

    def send(self, source: str, target: str, callback: Callable[[], None]) -> None:
        """Deliver by calling back, some time later; messages may overtake each other."""
        link = self.link(source, target)
        if link.is_cut:
            link.held.append(callback)
            return
        latency_s = link.latency_s * self._rng.uniform(0.7, 1.5)
        if self.faults.slow and self._rng.random() < self.faults.slow:
            latency_s *= 20
        if source == target:
            latency_s = 0.00005
        at_s = max(self.loop.time() + latency_s, link.clogged_until_s)
        self.loop.call_at(at_s, self._arrive, source, target, callback, context=self._context)

    def _arrive(self, source: str, target: str, callback: Callable[[], None]) -> None:
        link = self.link(source, target)
        if link.is_cut:
            link.held.append(callback)
        elif link.clogged_until_s > self.loop.time():
            self.loop.call_at(
                link.clogged_until_s,
                self._arrive,
                source,
                target,
                callback,
                context=self._context,
            )
        else:
            callback()

    def join_line(self, request: "Exchange") -> None:
        """Nothing that comes after it arrives before it."""
        self._lines.setdefault(request.line, []).append(request)

    def may_arrive(self, request: "Exchange") -> bool:
        """Return whether it is the first of its line; if not, it arrives when it is."""
        return request.line not in self._lines or self._lines[request.line][0] is request

    def leave_line(self, request: "Exchange") -> None:
        """It arrived, or never will. Idempotent."""
        line = self._lines.get(request.line, [])
        if request not in line:
            return
        line.remove(request)
        if not line:
            del self._lines[request.line]
        elif line[0].is_there:
            self.loop.call_soon(line[0].arrive, context=self._context)

    def check_size(self, method: str, body: Received) -> None:
        """Raises InvalidRequestError, as a sender's gRPC does, when a message is too large."""
        if len(body) > self.message_bytes_max:
            what = f"{len(body)} bytes, larger than max {self.message_bytes_max}"
            raise InvalidRequestError(f"{method}: sent message of {what}")

    def happens(self, probability: float, kind: str) -> bool:
        """Return whether this message is one that is lost or repeated."""
        if probability and self._rng.random() < probability:
            self._count_fault(kind)
            return True
        return False

    def repeat(self, request: "Exchange", delay_s: float | None = None) -> None:
        """Deliver a request that nobody waits for: from microseconds later to when the world has
        moved on."""
        if delay_s is None:
            delay_s = 10 ** self._rng.uniform(REPEATS_AFTER[0], REPEATS_AFTER[1])
        self.loop.call_later(delay_s, request.depart, context=self._context)

    def connect(self, connection: SimConnection) -> None:
        """Remember a connection so that a cut or a death can break it."""
        self._connections[connection] = None

    def disconnect(self, connection: SimConnection) -> None:
        """Idempotent."""
        self._connections.pop(connection, None)

    def process_died(self, process: SimProcess) -> None:
        """Its kernel closes all its sockets: peers see resets, if the link lets them through."""
        for address, server in list(self._listeners.items()):
            if server.process is process:
                del self._listeners[address]
        for connection in list(self._connections):
            if process in (connection.client, connection.server):
                connection.process_died(process)


class SimServer:
    """icecore.rpc.ports.Server."""

    def __init__(
        self, network: SimNetwork, process: SimProcess, address: str, handlers: Handlers
    ) -> None:
        self.network = network
        self.process = process
        self.handlers = handlers
        self.unary = all_unary(handlers)
        self.running: dict[asyncio.Task[None], None] = {}
        self._address = address

    @property
    def address(self) -> str:
        """As bound."""
        return self._address

    def run(self, task: asyncio.Task[None]) -> None:
        """Remember a handler's task for ``stop``."""
        self.running[task] = None
        task.add_done_callback(lambda done: self.running.pop(done, None))

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait for running ones, then cancel them and let them unwind."""
        self.process.check()
        self.network.forget(self)
        current = asyncio.current_task()
        waiting = [task for task in self.running if task is not current]
        if waiting and grace_s > 0:
            await asyncio.wait(waiting, timeout=grace_s)
        rest = [task for task in self.running if task is not current]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)


class SimNet:
    """icecore.rpc.ports.Net of one life of a process."""

    def __init__(self, network: SimNetwork, process: SimProcess) -> None:
        self._network = network
        self._process = process
        self._started: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def keeps_order(self, address: str) -> bool:
        """As icecore.ports: in some worlds."""
        return self._network.keeps_order

    def start_call(
        self, address: str, method: str, body: Body, *, timeout_s: float, done: Done
    ) -> Callable[[], object]:
        """As icecore.ports."""
        call = self.call(address, method, body, timeout_s=timeout_s)
        return start_in_task(call, done, self._started)

    async def call(self, address: str, method: str, body: Body, *, timeout_s: float) -> Received:
        """As icecore.ports."""
        self._check()
        if timeout_s <= 0:
            raise RequestTimeoutError(f"{method} at {address}: no time left")
        message = on_the_wire(body)
        self._network.check_size(method, message)
        exchange = Exchange(self._network, self._process, address, method, message, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await exchange.start()
        except TimeoutError:
            raise RequestTimeoutError(f"{method} at {address}: {timeout_s} s passed") from None
        finally:
            exchange.finish()
        self._process.check()
        if isinstance(outcome, IcecoreError):
            raise outcome
        return outcome

    async def refuses(self, address: str, *, within_s: float) -> bool:
        """As icecore.ports."""
        self._check()
        network, here, there = self._network, self._process.name, address.rpartition(":")[0]
        answer: asyncio.Future[bool] = network.loop.create_future()

        def knock() -> None:
            is_refused = network.listener(address) is None
            network.send(there, here, lambda: answer.done() or answer.set_result(is_refused))

        network.send(here, there, knock)
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            return False

    def open_stream(self, address: str, method: str) -> ClientStream:
        """As icecore.ports."""
        self._check()
        network = self._network
        connection = SimConnection(network, self._process, address, method)
        network.connect(connection)
        network.send(connection.client_host, connection.server_host, connection.arrive)
        connection.connect_timer = network.loop.call_later(
            CONNECT_TIMEOUT_S, connection.connect_timed_out, context=Context()
        )
        return SimStreamEnd(connection, is_client=True)

    async def serve(self, address: str, handlers: Handlers) -> Server:
        """As icecore.ports."""
        self._process.check()
        host, _, port = address.rpartition(":")
        if port == "0":
            address = f"{host}:{self._network.free_port()}"
        server = SimServer(self._network, self._process, address, handlers)
        self._network.listen(server)
        return server

    async def close(self) -> None:
        """Break this process's client connections."""
        self._process.check()
        self._is_closed = True
        for connection in list(self._network._connections):
            if connection.client is self._process:
                connection.reset("client closed")

    def _check(self) -> None:
        self._process.check()
        if self._is_closed:
            raise UnavailableError("the network is closed")


class Exchange(SimConnection):
    """One unary call, from both ends."""

    def __init__(
        self,
        network: SimNetwork,
        client: SimProcess,
        address: str,
        method: str,
        body: Received,
        timeout_s: float,
    ) -> None:
        super().__init__(network, client, address, method)
        self._body = body
        self._timeout_s = timeout_s
        self._outcome: asyncio.Future[Received | IcecoreError] = network.loop.create_future()
        self.line = (client, address)
        """Requests of one line arrive in their order, if the network keeps it."""
        self.is_in_line = False
        self.is_there = False
        """At the server's host, perhaps behind others of its line."""

    def arrive(self) -> None:
        """The first packet is at the server's host."""
        self.is_there = True
        self.stop_timer()
        if self.is_in_line and not self.network.may_arrive(self):
            return
        super().arrive()
        self.network.leave_line(self)

    def depart(self) -> None:
        """The request is on its way."""
        self.network.send(self.client_host, self.server_host, self.arrive)

    async def start(self) -> Received | IcecoreError:
        """Send the request and wait for what comes back."""
        network = self.network
        network.connect(self)
        if network.keeps_order and self.method == DATA["Produce"]:
            self.is_in_line = True
            network.join_line(self)
        self.depart()
        self.connect_timer = network.loop.call_later(
            CONNECT_TIMEOUT_S, self.connect_timed_out, context=Context()
        )
        again = (self.client, self.address, self.method, self._body, self._timeout_s)
        is_once = self.client.name in network.faults.sent_once
        if not is_once and network.happens(network.faults.repeats, "repeated_requests"):
            network.repeat(Exchange(network, *again))
        if self.method in network.faults.echo_s:
            network.repeat(Exchange(network, *again), network.faults.echo_s[self.method])
        return await self._outcome

    def finish(self) -> None:
        """The client has its answer or gave up: a handler still running runs to its end."""
        self.network.disconnect(self)
        self.network.leave_line(self)
        self.is_broken = True
        self.stop_timer()

    def cancel_handler(self) -> None:
        """Never: as over gRPC, a unary handler runs to its end."""

    def fail(self, error: IcecoreError) -> None:
        """The connection broke."""
        if not self._outcome.done():
            self._outcome.set_result(error)

    def accepted(self, server: SimServer) -> None:
        """The request arrived at a listener."""
        network = self.network
        if network.happens(network.faults.request_loss, "lost_requests"):
            self.reset("request lost")
            return
        handler = server.unary.get(self.method)
        network.loop.trace(f"{self.client} > {server.process} {self.method} {len(self._body)}")
        if handler is None:
            self._reply(UnsupportedError(f"no such method: {self.method}"))
            return
        context = CallContext(self.client_host, "anonymous", self._timeout_s)

        async def serve() -> None:
            outcome: Received | IcecoreError
            try:
                outcome = on_the_wire(await handler(self._body, context))
                network.check_size(self.method, outcome)
            except asyncio.CancelledError:
                self._reply(UnavailableError("the server is stopping"))
                raise
            except IcecoreError as error:
                outcome = error.again()
            except Exception as error:
                outcome = self.unexpected(error)
            self._reply(outcome)

        self.run_handler(server, serve())

    def _reply(self, outcome: Received | IcecoreError) -> None:
        if self.is_broken or (self.server is not None and not self.server.alive):
            return
        network = self.network
        if network.happens(network.faults.reply_loss, "lost_replies"):
            self.reset("reply lost")
            return
        network.send(self.server_host, self.client_host, lambda: self._answer(outcome))

    def _answer(self, outcome: Received | IcecoreError) -> None:
        if not self._outcome.done():
            size = outcome.reason if isinstance(outcome, IcecoreError) else len(outcome)
            self.network.loop.trace(f"{self.client} < {self.server} {self.method} {size}")
            self._outcome.set_result(outcome)
