"""Suite for every ``Net``: requests that are admitted by their header are refused, answered or run.

Each admitted call either runs or is abandoned, whatever breaks. Whether the body has arrived by
then is the transport's affair, and so is memory (``test_server_admission.py`` of the native one).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    ThrottledError,
    UnavailableError,
    UnsupportedError,
)
from icecore.rpc import framing
from icecore.rpc.ports import (
    Admitted,
    Answer,
    Body,
    Bulk,
    CallContext,
    DirectHandler,
    Handlers,
    Received,
    join,
)
from icecore.v1 import data_pb2
from tests.conformance.net_suite import in_world, noise
from tests.conformance.net_world import World
from tests.support.waiting import until

PUT = "/t.T/put"
SIZES = (0, 1, 16 << 10, 3 << 20)


def request(header: bytes, *batches: bytes) -> Bulk:
    return framing.bulk_request(header, batches)


class FakeStore:
    """A direct handler under test. What a header says happens."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, int]] = []
        self.contexts: list[CallContext] = []
        self.run: list[Received] = []
        self.admitted = 0
        self.abandoned = 0
        self.waiting: list[Answer] = []

    def admit(self, header: bytes, body_bytes: int, context: CallContext) -> Admitted | Body:
        self.asked.append((header, body_bytes))
        self.contexts.append(context)
        if header == b"refuse":
            raise ThrottledError("not now", retry_after_ms=7)
        if header == b"crash":
            raise ValueError("a secret")
        if header == b"answer":
            return [b"with", b"out it"]
        self.admitted += 1

        def run(body: Received, answer: Answer) -> None:
            self.run.append(body)
            if header == b"wait":
                self.waiting.append(answer)
            elif header == b"fail":
                raise InvalidRequestError("the batches are wrong")
            else:
                answer(b"put " + bytes(body[:10]))

        return Admitted(run, self._abandon)

    def _abandon(self) -> None:
        self.abandoned += 1

    async def plain(self, body: Received, context: CallContext) -> Body:
        return body

    @property
    def is_settled(self) -> bool:
        """Each admitted call has run or was abandoned."""
        return self.admitted == len(self.run) + self.abandoned

    @property
    def handlers(self) -> Handlers:
        direct = {PUT: DirectHandler(data_pb2.ProduceRequest, self.admit)}
        return Handlers({"/t.T/plain": self.plain}, {}, direct)


class BulkSuite:
    """Inherit and define ``run``."""

    principal = "anonymous"
    """The caller's name, as servers know it."""

    def run(self, main: Callable[[World], Awaitable[None]]) -> None:
        raise NotImplementedError

    @in_world
    async def test_the_handler_gets_header_and_batches(self, world: World) -> None:
        store = FakeStore()
        address = (await world.serve(store.handlers)).address
        for size_bytes in SIZES:
            for header in (b"", b"h", noise(20_000), noise(100_000)):
                body = noise(size_bytes)
                sent = request(header, body[:7], b"", body[7:])
                answer = await world.client.call(address, PUT, sent, timeout_s=10)
                assert answer == b"put " + body[:10]
                assert store.asked[-1] == (header, size_bytes)
                assert store.run[-1] == body
        assert store.is_settled and not store.abandoned
        assert all(each.principal == self.principal and each.peer for each in store.contexts)

    @in_world
    async def test_a_request_in_one_piece_is_the_same(self, world: World) -> None:
        store = FakeStore()
        address = (await world.serve(store.handlers)).address
        for size_bytes in SIZES:
            body = noise(size_bytes)
            for whole in (request(b"h", body), join(request(b"h", body))):
                answer = await world.client.call(address, PUT, whole, timeout_s=10)
                assert answer == b"put " + body[:10]
        assert set(store.asked) == {(b"h", size_bytes) for size_bytes in SIZES}
        assert store.is_settled

    @in_world
    async def test_what_is_refused_never_runs(self, world: World) -> None:
        store = FakeStore()
        address = (await world.serve(store.handlers)).address
        for size_bytes in SIZES:
            with pytest.raises(ThrottledError) as caught:
                sent = request(b"refuse", noise(size_bytes))
                await world.client.call(address, PUT, sent, timeout_s=5)
            assert caught.value.metadata["retry_after_ms"] == "7"
            sent = request(b"answer", noise(size_bytes))
            assert await world.client.call(address, PUT, sent, timeout_s=5) == b"without it"
        assert not store.run and not store.admitted
        sent = request(b"h", b"still in step")
        assert await world.client.call(address, PUT, sent, timeout_s=5) == b"put still in s"

    @in_world
    async def test_refused_and_admitted_ones_mixed(self, world: World) -> None:
        store = FakeStore()
        address = (await world.serve(store.handlers)).address
        headers = [b"h", b"refuse", b"answer", b"fail", b"h"] * 8

        async def one(number: int, header: bytes) -> str:
            sent = request(header, noise(SIZES[number % 4] + number))
            try:
                answer = await world.client.call(address, PUT, sent, timeout_s=20)
            except IcecoreError as error:
                return error.reason
            return bytes(answer[:4]).decode()

        told = await asyncio.gather(*(one(*each) for each in enumerate(headers)))
        assert told == ["put ", "THROTTLED", "with", "INVALID_REQUEST", "put "] * 8
        assert store.is_settled and len(store.run) == 24

    @in_world
    async def test_failures(self, world: World) -> None:
        store = FakeStore()
        address = (await world.serve(store.handlers)).address
        for size_bytes in SIZES:
            sent = request(b"crash", noise(size_bytes))
            with pytest.raises(InternalError) as caught:
                await world.client.call(address, PUT, sent, timeout_s=5)
            assert "secret" not in str(caught.value)
            assert "a secret" in world.failures()
            with pytest.raises(InvalidRequestError, match="batches are wrong"):
                sent = request(b"fail", noise(size_bytes))
                await world.client.call(address, PUT, sent, timeout_s=5)
        assert store.is_settled

    @in_world
    async def test_what_is_no_bulk_message(self, world: World) -> None:
        store = FakeStore()
        address = (await world.serve(store.handlers)).address
        for body in (b"\xff\xff\xff", b"\x0a\x05" + noise(100_000)):
            with pytest.raises(InvalidRequestError):
                await world.client.call(address, PUT, body, timeout_s=5)
        assert not store.asked
        assert await world.client.call(address, PUT, request(b"h"), timeout_s=5) == b"put "

    @in_world
    async def test_an_unknown_method(self, world: World) -> None:
        address = (await world.serve(FakeStore().handlers)).address
        for size_bytes in SIZES:
            sent = request(b"h", noise(size_bytes))
            with pytest.raises(UnsupportedError):
                await world.client.call(address, "/t.T/unheard_of", sent, timeout_s=5)
        assert await world.client.call(address, "/t.T/plain", b"x", timeout_s=5) == b"x"

    @in_world
    async def test_a_handler_that_knows_only_whole_messages(self, world: World) -> None:
        address = (await world.serve(FakeStore().handlers)).address
        for size_bytes in SIZES:
            sent = request(b"h", noise(size_bytes))
            answer = await world.client.call(address, "/t.T/plain", sent, timeout_s=10)
            assert answer == join(sent)

    @in_world
    async def test_a_server_that_dies(self, world: World) -> None:
        store = FakeStore()
        address, break_all = await world.serve_mortal(store.handlers)
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(
                world.client.call(address, PUT, request(b"wait", noise(size_bytes)), timeout_s=30)
            )
            for size_bytes in SIZES
        ]
        await until(lambda: len(store.waiting) == len(SIZES))
        break_all()
        for call in calls:
            async with asyncio.timeout(5):
                with pytest.raises(UnavailableError):
                    await call
        assert store.is_settled
        for answer in store.waiting:
            answer(b"late")  # nobody hears it, nothing breaks
