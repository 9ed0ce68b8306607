"""The base of producer, consumer and admin: network, coordinator, waiting before a retry.

A coordinator that is gone or on standby is replaced by the next address that is known, or by the
one that a standby or a node names. Who leads what is asked of anybody, for every node knows it; so
there are two servers that are turned to: one for that question, and one for all the others. Time
and chance come from ports, so the simulator can run all of it.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from icecore.client.cluster.bootstrap import Bootstrap
from icecore.client.retries import OnRetry, Retries
from icecore.errors import (
    ConfigurationError,
    ConflictError,
    IcecoreError,
    NotCoordinatorError,
    NotLeaderError,
    RequestTimeoutError,
    ThrottledError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from icecore.process.system import SystemClock, SystemRng
from icecore.rpc import framing
from icecore.rpc.addresses import TRANSPORTS, Transport
from icecore.rpc.methods import ADMIN, DATA
from icecore.rpc.ports import STRANGER, Clock, Net, Rng
from icecore.rpc.transports import Transports
from icecore.v1 import admin_pb2

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)

_TRANSPORT_VARIABLES = ("ICECORE_CLIENT__TRANSPORT", "ICECORE_TRANSPORT")
_ATTEMPT_S = 5.0
_REST_MS_MAX = 500
"""Between two rounds of questions who the coordinator is: another one may have begun meanwhile."""
_ANSWERED_BY_ALL = "GetMetadata"
"""The method that nodes answer, too."""
STALE_MS = 3_000
"""A node that has heard nothing for so long is left for another server, which may know more."""
_AWAY_MS = 2_000
"""For so long nobody waits for a coordinator that did not answer, where nodes know it, too."""
_NO_TOPIC = "-"
"""Asked about by who wants to know only which cluster it is: an answer about all could be large."""
_NO_METHOD = "UNIMPLEMENTED"
"""How gRPC begins what it says of a server that lacks a method."""
_SILENCE = "DEADLINE_EXCEEDED"
"""How a message begins when nobody answered in time."""
_ADMIN_RETRIED = (
    UnavailableError,
    RequestTimeoutError,
    NotCoordinatorError,
    ThrottledError,
    ConflictError,
)


def share(coroutine: Coroutine[Any, Any, _T]) -> "asyncio.Future[_T]":
    """A task for several waiters; when all of them have gone, nobody misses its failure."""
    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def all_of(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them together; the first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


class Backoff:
    """Waiting times that double up to a limit, with jitter so that clients do not march in step."""

    def __init__(self, rng: Rng, first_ms: float = 30, limit_ms: float = 1000) -> None:
        self._rng = rng
        self._first_ms = first_ms
        self._limit_ms = limit_ms
        self.attempts = 0

    def next_s(self, error: IcecoreError | None = None) -> float:
        """Seconds to wait before the next attempt; a server's ``retry_after_ms`` is respected."""
        delay: float = min(self._limit_ms, self._first_ms * 2.0 ** min(self.attempts, 20))
        self.attempts += 1
        if error is not None and error.metadata.get("retry_after_ms", "").isdecimal():
            delay = max(delay, min(60_000, int(error.metadata["retry_after_ms"])))
        return delay * (0.5 + self._rng.random()) / 1000


class Connection:
    """The way to one cluster.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas; with
            ``native://`` in front where a server has that.
        net: Made here unless given; a given one is not closed.
        clock: Of the system unless given.
        rng: Of the system unless given.
        transport: How nodes may be called. Unless given, the environment says so:
            ``ICECORE_CLIENT__TRANSPORT``, or ``ICECORE_TRANSPORT``, which is for nodes, too.
        on_retry: Called with all that is tried again.

    Raises:
        ConfigurationError: There is no address, or one is not ``host:port``; the transport is
            neither ``auto`` nor ``grpc``.
    """

    def __init__(
        self,
        bootstrap: str,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        transport: Transport | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self._bootstrap = Bootstrap(bootstrap)
        self._owns_net = net is None
        self.transport = _transport(transport)
        self.net = net if net is not None else Transports()
        self.clock = clock if clock is not None else SystemClock()
        self.rng = rng if rng is not None else SystemRng()
        self.retries = Retries(self.clock, on_retry)
        self._coordinator = self._server = self._bootstrap.first
        self._named = "", ""
        """An address that somebody named, and whom it stands for of those that are gone round."""
        self._cluster_id = b""
        """Cluster id of the first answer."""
        self._ours: set[str] = set()
        """Servers that have said so."""
        self._was_answered = False
        """Before that, who speaks another protocol was given by mistake; later it is a proxy."""
        self._away_until_ms = 0.0
        self._is_closed = False
        self._trouble: IcecoreError | None = None
        """Why no coordinator answered the last time; None once one did."""

    async def close(self) -> None:
        """Close the network if it was made here."""
        self._is_closed = True
        if self._owns_net:
            await self.net.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def check_open(self) -> None:
        """Raises UnavailableError when it is closed: to try again would not help."""
        if self._is_closed:
            raise UnavailableError("the client is closed: make another one")

    def deadline_ms(self, timeout_s: float) -> float:
        """A moment of ``clock.monotonic_ms``."""
        return self.clock.monotonic_ms() + timeout_s * 1000

    async def admin(
        self,
        method: str,
        request: Message,
        answer: type[_M],
        *,
        timeout_s: float,
        attempt_s: float = _ATTEMPT_S,
    ) -> _M:
        """Call the active coordinator, wherever it is, until it answers; who leads what, whoever
        knows it.

        Raises:
            IcecoreError: What the coordinator answered, or the last failure when time ran out;
                metadata ``repeated`` says whether an earlier attempt may have taken effect.
        """
        body = request.SerializeToString()
        since_ms, backoff, repeated = (
            self.clock.monotonic_ms(),
            Backoff(self.rng, limit_ms=_REST_MS_MAX),
            False,
        )
        end_ms = since_ms + timeout_s * 1000
        was_sent_on, heard = False, ""
        while True:
            self.check_open()
            address = self._server if method == _ANSWERED_BY_ALL else self._coordinator
            left_s = max(0.001, min(attempt_s, (end_ms - self.clock.monotonic_ms()) / 1000))
            try:
                if method != _ANSWERED_BY_ALL and not await self._is_ours(address, left_s):
                    continue
                raw = await self.net.call(address, ADMIN[method], body, timeout_s=left_s)
                self._trouble, self._was_answered = None, True
                return framing.parse(answer, raw)
            except _ADMIN_RETRIED as error:
                repeated = repeated or error.indeterminate
                if STRANGER in error.metadata and not self._was_answered:
                    self._pass_by_program(error, address)
                    continue
                is_sent_on = self._turn_to_another(error, method, address)
                if self._trouble is None or not is_sent_on:  # who can't be reached says more
                    self._trouble = _unreachable(error, address, heard)
                    if not error.message.startswith(_SILENCE):
                        heard = self._trouble.message
                if is_sent_on and not was_sent_on:
                    was_sent_on = True
                    continue
                delay_s = backoff.next_s(error)
                if self.clock.monotonic_ms() + delay_s * 1000 >= end_ms:
                    raise self._trouble from error
                if not is_sent_on:  # else it says who is asked next
                    self.retries.note(self._trouble, since_ms=since_ms, until_ms=end_ms)
            except IcecoreError as error:
                error.metadata.setdefault("repeated", "true" if repeated else "false")
                if isinstance(error, UnsupportedError) and error.message.startswith(_NO_METHOD):
                    if self._bootstrap.leave_out(address):
                        self._turn_to_another(error, method, address)
                        continue
                    raise UnsupportedError(
                        f"{address} does not answer as a server of icecore does: give the address "
                        f"of a coordinator or a node ({error.message})"
                    ) from error
                raise
            await asyncio.sleep(delay_s)
            was_sent_on = False

    def no_answer(self, timeout_s: float) -> IcecoreError:
        """The error of who has waited so long for a coordinator: the last reason, if any."""
        if self._trouble is not None:
            return self._trouble.again()
        return RequestTimeoutError(f"nobody of {self._bootstrap} answered within {timeout_s:g} s")

    def _turn_to_another(self, error: IcecoreError, method: str, address: str) -> bool:
        """Ask somebody else next time. Whether it was the asked one who said whom."""
        if isinstance(error, ThrottledError | ConflictError):
            return False
        named = error.metadata.get("address", "") if isinstance(error, NotCoordinatorError) else ""
        following = named or self._after(address)
        if named:
            self._named = named, self._stands_for(address)
        elif address == self._named[0]:  # it counts no more, or the last standby leads here again
            self._named = "", ""
            following = following if following != address else self._bootstrap.after(address)
        if method == _ANSWERED_BY_ALL and self._server == address:
            self._server = following
        elif method != _ANSWERED_BY_ALL and self._coordinator == address:
            self._coordinator = following
        return bool(named)

    def _after(self, address: str) -> str:
        """Return the address to ask after ``address``. A node may name a coordinator address that
        clients can't reach; then the given addresses and other nodes follow."""
        return self._bootstrap.after(self._stands_for(address))

    def _stands_for(self, address: str) -> str:
        named, by = self._named
        return by if address == named else address

    async def _is_ours(self, address: str, timeout_s: float) -> bool:
        """Return whether it belongs to the cluster that is known; else another one is asked next.
        Of who was only given, it is asked; whoever was named was named by one of ours.

        Raises IcecoreError, and WrongClusterError when nobody else is left.
        """
        if not self._cluster_id or address in self._ours or address == self._named[0]:
            return True
        request = admin_pb2.GetMetadataRequest(topics=[_NO_TOPIC]).SerializeToString()
        raw = await self.net.call(address, ADMIN[_ANSWERED_BY_ALL], request, timeout_s=timeout_s)
        found = framing.parse(admin_pb2.GetMetadataResponse, raw).cluster_id
        if found != self._cluster_id:
            self._pass_by(address, found)
            return False
        self._ours.add(address)
        return True

    def _pass_by_program(self, error: IcecoreError, address: str) -> None:
        """Leave an address that is no server of icecore: the next one is asked at once. Raises
        UnsupportedError when nobody else is left; waiting would not help."""
        if not self._bootstrap.pass_by(address):
            raise UnsupportedError(
                f"{address} is no server of icecore (a page of metrics, a web server?): give the "
                "address of a coordinator or a node "
                f"({_unreachable(error, address).message})"
            ) from error
        self._server = self._coordinator = self._bootstrap.after(address)

    def check_server(self, found: bytes) -> bool:
        """Return whether who said last who leads what belongs to the cluster that is known; else
        another one is asked next. Raises WrongClusterError when nobody else is left."""
        if self._cluster_id in (b"", found):
            return True
        self._pass_by(self._server, found)
        return False

    def _pass_by(self, address: str, found: bytes) -> None:
        stranger = self._stands_for(address)
        is_anybody_left = self._bootstrap.pass_by(stranger)
        following = self._bootstrap.after(stranger)
        if self._stands_for(self._server) == stranger:
            self._server = following
        if self._stands_for(self._coordinator) == stranger:
            self._coordinator = following
        if not is_anybody_left:
            raise WrongClusterError(
                f"{address} answers for cluster {found.hex()}, not for {self._cluster_id.hex()}, "
                "with which this client began: give the addresses of one cluster; where another "
                "one has taken its place, begin anew"
            )

    def meet(self, addresses: Iterable[str], age_ms: int, cluster_id: bytes = b"") -> None:
        """Nodes of this cluster that were told of, by somebody who knew it so long ago."""
        self._cluster_id = self._cluster_id or cluster_id
        self._ours.add(self._server)
        self._bootstrap.meet(addresses, self.rng)
        if age_ms > STALE_MS:
            self._server = self._bootstrap.after(self._server)

    @property
    def is_coordinator_away(self) -> bool:
        """Return whether none has answered a moment ago."""
        return self.clock.monotonic_ms() < self._away_until_ms

    def note_away(self) -> None:
        """No coordinator has answered."""
        self._away_until_ms = self.clock.monotonic_ms() + _AWAY_MS

    async def data(
        self, address: str, method: str, request: Message, answer: type[_M], *, timeout_s: float
    ) -> _M:
        """One small call to a node. Raises what it answers, see ``moved``; nothing is retried."""
        try:
            return await self.call(address, DATA[method], request, answer, timeout_s=timeout_s)
        except WrongClusterError as error:
            raise moved(error, address) from error

    async def call(
        self, address: str, method: str, request: Message, answer: type[_M], *, timeout_s: float
    ) -> _M:
        """As ``data``, of a method by its full name."""
        raw = await self.net.call(address, method, request.SerializeToString(), timeout_s=timeout_s)
        return framing.parse(answer, raw)


class AdminCalls:
    """Calls the coordinator for one Admin.

    Args:
        connection: The Admin closes it.
        timeout_s: Seconds for one call, retries included.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self.connection = connection
        self.timeout_s = timeout_s

    async def call(self, method: str, request: Message, answer: type[_M]) -> _M:
        """Call the coordinator. An attempt to change something may take the whole timeout; an
        attempt to read is given up and repeated sooner."""
        is_read = method.startswith(("Describe", "Plan"))
        return await self.connection.admin(
            method,
            request,
            answer,
            timeout_s=self.timeout_s,
            attempt_s=_ATTEMPT_S if is_read else self.timeout_s,
        )


def moved(error: IcecoreError, where: str) -> IcecoreError:
    """Addresses are given out again: where another cluster's node answers a call for one of ours,
    ours listens elsewhere by now. Other errors stay as they are."""
    if not isinstance(error, WrongClusterError):
        return error
    return NotLeaderError(f"another cluster listens at {where} by now: {error.message}")


def _unreachable(error: IcecoreError, address: str, heard: str = "") -> IcecoreError:
    """An error of the connection itself says who was called, in words; others stay as they are.

    Args:
        heard: An earlier attempt ended with this. The last one may have had a moment only, and its
            silence explains nothing; nobody knows whether it took effect, so the kind stays.
    """
    code, _, text = error.message.partition(": ")
    if code == _SILENCE:
        said = f"the coordinator at {address} did not answer in time"
        return type(error)(f"{said}; before that: {heard}" if heard else said, **error.metadata)
    if code == "UNAVAILABLE":
        why = (text.rpartition(": ")[2] or text).rstrip("]")
        return type(error)(f"can't reach the coordinator at {address}: {why}", **error.metadata)
    return error


def _transport(given: Transport | None) -> Transport:
    """Return the transport given by the program, else by the environment, else ``auto``."""
    said: list[tuple[str, str | None]] = [("transport", given)]
    said += [(each, os.environ.get(each) or None) for each in _TRANSPORT_VARIABLES]
    for source, name in said:
        if name is None:
            continue
        for known in TRANSPORTS:
            if known == name:
                return known
        raise ConfigurationError(f"{source} is {' or '.join(TRANSPORTS)}, not {name!r}")
    return "auto"
