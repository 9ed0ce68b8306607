"""Calls to the members of one etcd cluster: the next member has its turn when one is silent.

Every call has a deadline of its own, so that a frozen member costs one wait and no more. A member
that failed gets a new connection with its next turn: gRPC would wait ever longer before it connects
again, and would never read renewed certificates. Nothing here knows what is stored.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import grpc

from icecore.errors import ConfigurationError, IcecoreError, OutOfSpaceError, StorageError
from icecore.process.system import read_small_file
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores.etcd_messages import (
    AuthenticateRequest,
    AuthenticateResponse,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
    RangeRequest,
    RangeResponse,
    StatusRequest,
    StatusResponse,
    TxnRequest,
    TxnResponse,
    WatchRequest,
    WatchResponse,
    ask_progress,
    watch,
)

T = TypeVar("T")

OLDEST_VERSION: Final = (3, 4)
"""Older ones are not tested."""
_LOSE_DATA: Final = ((3, 5, 0), (3, 5, 3))
"""Versions from the first to below the second: a crash may leave members with different data."""
_RANGE: Final = ("/etcdserverpb.KV/Range", RangeResponse)
_TXN: Final = ("/etcdserverpb.KV/Txn", TxnResponse)
_STATUS: Final = ("/etcdserverpb.Maintenance/Status", StatusResponse)
_AUTHENTICATE: Final = ("/etcdserverpb.Auth/Authenticate", AuthenticateResponse)
_GRANT: Final = ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantResponse)
_REVOKE: Final = ("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeResponse)
_KEEP_ALIVE: Final = ("/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveResponse)
"""A stream; each call opens one for one request."""
_WATCH: Final = "/etcdserverpb.Watch/Watch"
_FIRST_REST_S: Final = 0.05
_LONGEST_REST_S: Final = 0.5
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),  # etcd does not limit its answers
)
_FULL: Final = (
    "etcd has no space left (alarm NOSPACE) and takes no changes: shorten its history (etcdctl"
    " compact REVISION), give the room back (etcdctl defrag), clear the alarm (etcdctl alarm"
    " disarm); or raise --quota-backend-bytes"
)
_NO_LEASE: Final = "requested lease not found"
_LIMITS: Final = ("request is too large", "too many operations", "larger than max")
_IS_TOO_LARGE: Final = (
    "etcd refuses a change for its size: give its members the default --max-request-bytes (1.5 MiB)"
    " and --max-txn-ops (128), or more"
)


class CompactedError(StorageError):
    """etcd has shortened its history: changes from that revision on are not told any more."""


class EtcdAnswer(NamedTuple):
    """An answer, and whether the call may have been carried out before it, too."""

    message: Any
    is_repeated: bool


class EtcdClient:
    """Calls to a cluster of etcd, each to one member at a time.

    Args:
        settings: Where it is, and who asks.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._members = settings.members
        self._at = 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._cluster_id = 0
        self._token = ""
        self._said: dict[str, str] = {}

    async def range(
        self, key: bytes, range_end: bytes = b"", limit: int = 0, revision: int = 0
    ) -> Any:
        """The values of a key, or of all keys below ``range_end``: the newest ones, or those of a
        revision of etcd. Raises as ``txn``."""
        request = RangeRequest(key=key, range_end=range_end, limit=limit, revision=revision)
        return (await self._call(_RANGE, request)).message

    async def count(self, key: bytes, range_end: bytes) -> int:
        """Return how many keys there are from ``key`` to below ``range_end``. Raises as ``txn``."""
        request = RangeRequest(key=key, range_end=range_end, count_only=True)
        return int((await self._call(_RANGE, request)).message.count)

    async def txn(
        self, conditions: Sequence[Any], success: Sequence[Any], failure: Sequence[Any]
    ) -> EtcdAnswer:
        """One transaction. It must not matter when it is carried out twice.

        Raises:
            ConfigurationError: etcd refuses this user, or asks for one.
            OutOfSpaceError: etcd takes no changes; nothing was changed.
            StorageError: No member answered in time, and the outcome is unknown.
        """
        request = TxnRequest(compare=conditions, success=success, failure=failure)
        return await self._call(_TXN, request)

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Return a new lease and its seconds, which may be more than were asked for. Raises as
        ``txn``."""
        answer = (await self._call(_GRANT, LeaseGrantRequest(TTL=ttl_s))).message
        return answer.ID, answer.TTL

    async def keep_alive(self, lease: int) -> int:
        """Let a lease begin anew; its seconds, 0 = it has ended. Raises as ``txn``."""
        answer = (await self._call(_KEEP_ALIVE, LeaseKeepAliveRequest(ID=lease))).message
        return max(0, int(answer.TTL))

    async def revoke(self, lease: int) -> None:
        """End a lease: its keys go. Raises as ``txn``, except where it has ended."""
        try:
            await self._call(_REVOKE, LeaseRevokeRequest(ID=lease))
        except StorageError as error:
            if error.message != _NO_LEASE:
                raise

    async def watch(
        self, key: bytes, range_end: bytes, start_revision: int, silence_s: float
    ) -> AsyncGenerator[Any, None]:
        """Yield what one member says of changes from a revision of etcd on, in their order.

        Args:
            key: The first.
            range_end: Behind the last.
            start_revision: Of the first change.
            silence_s: A member that says nothing is asked after this time, and given up after this
                time again.

        Raises:
            CompactedError: History begins later.
            StorageError: It broke; the next watch asks another member.
            ConfigurationError: As ``txn``.
        """
        member = self._members[self._at]
        try:
            await self._log_in(member, self._attempt_s)
            call: Any = self._channel(member).stream_stream(
                _WATCH,
                request_serializer=WatchRequest.SerializeToString,
                response_deserializer=WatchResponse.FromString,
            )
            stream = call(metadata=self._metadata())
            try:
                await _kept(stream.write(watch(key, range_end, start_revision)))
                while True:
                    yield await self._heard(stream, silence_s)
            finally:
                stream.cancel()
        except grpc.aio.AioRpcError as error:
            if (refusal := self._refusal(member, error)) is not None:
                raise refusal from error
            if not self._is_forgotten(error):
                await self._give_up(member, error)
                self._at = (self._at + 1) % len(self._members)
            raise StorageError(f"the watch at {member} broke: {_details(error)}") from error

    async def _heard(self, stream: Any, silence_s: float) -> Any:
        """The next message of a watch. A read that is given up would end the stream."""
        reading = asyncio.ensure_future(_kept(stream.read()))
        try:
            for _ in range(2):
                await asyncio.wait((reading,), timeout=silence_s)
                if reading.done():
                    break
                await _kept(stream.write(ask_progress()))
            else:
                self._at = (self._at + 1) % len(self._members)
                raise StorageError(f"a watch has heard nothing for {2 * silence_s:g} s")
            answer = reading.result()
        finally:
            reading.cancel()
        if answer is not grpc.aio.EOF and answer.compact_revision:
            raise CompactedError("etcd has shortened its history")
        if answer is grpc.aio.EOF or answer.canceled:
            why = "" if answer is grpc.aio.EOF else answer.cancel_reason
            raise StorageError(f"a watch has ended: {why or 'its member stops'}")
        if answer.header.cluster_id != (self._cluster_id or answer.header.cluster_id):
            raise StorageError("a watch was at a member of another etcd cluster")
        return answer

    async def check(self) -> list[str]:
        """Ask all members who they are; wait until one answers.

        Returns:
            What a person should know: members that are silent, and alarms.

        Raises:
            ConfigurationError: A member is too old, or two belong to different clusters.
            StorageError: No member answers in time.
        """
        until = self._now() + self._settings.timeout_ms / 1000
        while True:
            found = await asyncio.gather(*map(self._status, self._members))
            answered = {
                name: each
                for name, each in zip(self._members, found, strict=True)
                if each is not None
            }
            if answered:
                return self._judge(answered)
            if self._now() > until:
                raise self._no_answer()
            await asyncio.sleep(_LONGEST_REST_S)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _status(self, member: str) -> Any:
        try:
            await self._log_in(member, self._attempt_s)
            return await self._once(member, _STATUS, StatusRequest(), self._attempt_s)
        except grpc.aio.AioRpcError as error:
            if (refusal := self._refusal(member, error)) is not None:
                raise refusal from error
            if not self._is_forgotten(error):
                await self._give_up(member, error)
            return None

    def _judge(self, answered: dict[str, Any]) -> list[str]:
        by_cluster = {each.header.cluster_id: member for member, each in answered.items()}
        if len(by_cluster) > 1:
            raise ConfigurationError(
                "etcd.endpoints names members of different etcd clusters: "
                f"{' and '.join(by_cluster.values())}. Name the members of one"
            )
        [self._cluster_id] = by_cluster
        for member, each in answered.items():
            version = tuple(int(part) for part in each.version.split("-")[0].split("."))
            if version < OLDEST_VERSION or _LOSE_DATA[0] <= version < _LOSE_DATA[1]:
                raise ConfigurationError(
                    f"etcd at {member} is of version {each.version}, which is too old or loses"
                    " data: run 3.4, or 3.5.3 and later"
                )
        silent = [each for each in self._members if each not in answered]
        # The first that answers is asked first.
        self._at = self._members.index(next(iter(answered)))
        return [f"{each}: {self._said[each]}" for each in silent] + [
            f"{member}: {error}" for member, each in answered.items() for error in each.errors
        ]

    async def _call(self, method: tuple[str, Any], request: Any) -> EtcdAnswer:
        """Ask one member after the other until one answers."""
        until = self._now() + self._settings.timeout_ms / 1000
        tries, rest_s, is_repeated = 0, _FIRST_REST_S, False
        while (left_s := until - self._now()) > 0:
            member = self._members[self._at]
            # A slow cluster must not be asked for ever in waits that are too short for it.
            patience_s = self._attempt_s * (1 + tries // len(self._members))
            try:
                await self._log_in(member, min(patience_s, left_s))
                answer = await self._once(member, method, request, min(patience_s, left_s))
            except grpc.aio.AioRpcError as error:
                if (refusal := self._refusal(member, error)) is not None:
                    if isinstance(refusal, OutOfSpaceError) and is_repeated:
                        raise StorageError(refusal.message) from error
                    raise refusal from error
                if not self._is_forgotten(error):
                    is_repeated = True
                    await self._give_up(member, error)
                    self._at = (self._at + 1) % len(self._members)
            else:
                if answer.header.cluster_id == (self._cluster_id or answer.header.cluster_id):
                    return EtcdAnswer(answer, is_repeated)
                self._said[member] = "it belongs to another etcd cluster"
                self._at = (self._at + 1) % len(self._members)
            tries += 1
            if tries >= len(self._members):
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, _LONGEST_REST_S)
        raise self._no_answer()

    async def _log_in(self, member: str, patience_s: float) -> None:
        """Tokens end after minutes, and with a member that starts again: see ``_is_forgotten``."""
        if not self._settings.user or self._token:
            return
        password = _read(self._settings.password_file).decode().rstrip("\r\n")
        request = AuthenticateRequest(name=self._settings.user, password=password)
        try:
            answer = await self._once(member, _AUTHENTICATE, request, patience_s)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in _details(error):
                return
            raise
        self._token = answer.token

    def _is_forgotten(self, error: grpc.aio.AioRpcError) -> bool:
        """Return whether the token is no use any more; the next call gets another one."""
        said = _details(error)
        is_forgotten = "invalid auth token" in said or ("revision" in said and "auth" in said)
        if is_forgotten:
            self._token = ""
        return is_forgotten

    def _refusal(self, member: str, error: grpc.aio.AioRpcError) -> IcecoreError | None:
        """The error of a member that has refused for good; None = ask again."""
        said, user = _details(error), self._settings.user
        if "database space exceeded" in said:
            return OutOfSpaceError(_FULL)
        if "required revision has been compacted" in said:
            return CompactedError("etcd has shortened its history")
        if _NO_LEASE in said:
            return StorageError(_NO_LEASE)
        if any(limit in said for limit in _LIMITS):
            return StorageError(_IS_TOO_LARGE)
        if "authentication failed" in said:
            return ConfigurationError(
                f"etcd knows no user {user!r} with this password: look at etcd.user and"
                " etcd.password_file"
            )
        if "user name is empty" in said:
            return ConfigurationError(
                "etcd asks who this is: give etcd.user with etcd.password_file, or a certificate"
            )
        if "permission denied" in said:
            prefix = self._settings.prefix
            return ConfigurationError(
                f"etcd denies {user or 'this client'!r} the keys that begin with {prefix!r}: grant"
                f" it (etcdctl role grant-permission ROLE readwrite --prefix=true {prefix})"
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ConfigurationError(f"{member} is no etcd: name members in etcd.endpoints")
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT and not self._is_forgotten(error):
            return StorageError(f"etcd refuses a call: {said}")
        return None

    def _no_answer(self) -> StorageError:
        said = "; ".join(f"{member}: {why}" for member, why in self._said.items())
        waited_s = self._settings.timeout_ms / 1000
        return StorageError(
            f"no member of etcd has answered for {waited_s:g} s ({said}): look at etcd and at"
            " etcd.endpoints"
        )

    async def _once(
        self, member: str, method: tuple[str, Any], request: Any, patience_s: float
    ) -> Any:
        if method is _KEEP_ALIVE:
            return await self._once_streamed(member, request, patience_s)
        path, answer = method
        call: Callable[..., Awaitable[Any]] = self._channel(member).unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await _kept(call(request, timeout=patience_s, metadata=self._metadata()))

    async def _once_streamed(self, member: str, request: Any, patience_s: float) -> Any:
        """As ``_once``, of the one method that etcd has as a stream only."""
        path, answer = _KEEP_ALIVE
        call: Any = self._channel(member).stream_stream(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        stream = call(timeout=patience_s, metadata=self._metadata())
        try:
            await _kept(stream.write(request))
            found = await _kept(stream.read())
            if found is grpc.aio.EOF:
                raise _broken("the member has ended the call")
            return found
        finally:
            stream.cancel()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    def _channel(self, member: str) -> grpc.aio.Channel:
        channel = self._channels.get(member)
        if channel is None:
            settings = self._settings
            if settings.is_tls:
                credentials = grpc.ssl_channel_credentials(
                    _read(settings.ca_file) or None,
                    _read(settings.key_file) or None,
                    _read(settings.certificate_file) or None,
                )
                channel = grpc.aio.secure_channel(member, credentials, options=_OPTIONS)
            else:
                channel = grpc.aio.insecure_channel(member, options=_OPTIONS)
            self._channels[member] = channel
        return channel

    async def _give_up(self, member: str, error: grpc.aio.AioRpcError) -> None:
        """Forget the connection: the next turn of this member begins anew."""
        is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        self._said[member] = "it is silent" if is_late else _details(error)
        if (channel := self._channels.pop(member, None)) is not None:
            await channel.close()

    @property
    def _attempt_s(self) -> float:
        return self._settings.attempt_ms / 1000

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _kept(work: Awaitable[T]) -> T:
    """Wait for a call. gRPC says of one whose connection we have closed meanwhile, for the sake of
    another call, that its caller is cancelled; it is not."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _broken("its connection was given up") from error


def _broken(why: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=why)


def _details(error: grpc.aio.AioRpcError) -> str:
    """Return why it failed, without the words that gRPC and etcd begin with."""
    said = error.details() or error.code().name
    return said.rpartition("last error: ")[2].removeprefix("etcdserver: ")


def _read(path: str) -> bytes:
    """A file that the settings name, empty where they name none. It is read anew each time, since
    certificates and passwords are renewed."""
    try:
        return read_small_file(Path(path)) if path else b""
    except OSError as error:
        raise ConfigurationError(
            f"etcd: {path} cannot be read: {error.strerror}", file=path
        ) from error
